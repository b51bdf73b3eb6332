"""Which rules match a module by themselves: decided once for all modules that no rule tells apart.

Module paths differ mostly in layer and expert numbers, and most patterns do not look at all of them
(:attr:`~kt_core.rules.pattern_facts.Facts.numbers`). A rule is tried once for each combination of
class, path without numbers, and the numbers it looks at.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kt_core.errors import Problem, RuleError
from kt_core.rules import classes, patterns
from kt_core.rules.limits import SLOW_SECONDS
from kt_core.rules.model import Rule
from kt_core.rules.pattern_facts import facts
from kt_core.rules.text import show, show_pattern

_SLOW_SEARCH = 0.005


@dataclass(slots=True)
class _Group:
    """The rules whose class fits one kind of module, by what their patterns depend on."""

    always: tuple[int, ...]
    literal: frozenset[int]
    constant: tuple[int, ...]
    by_numbers: dict[tuple[int, ...], tuple[int, ...]]
    by_path: tuple[int, ...]


@dataclass(slots=True)
class _Shape:
    """The same for module paths that differ only in numbers; ``constant`` are rules that match."""

    constant: tuple[int, ...]
    by_numbers: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    by_path: tuple[int, ...]


class MatchIndex:
    """Answers :meth:`matching` for one list of rules; ``per_match`` limits a single search."""

    def __init__(self, rules: Sequence[Rule], per_match: float) -> None:
        self.rules = rules
        self._slow = [0.0] * len(self.rules)
        self._search = [_searcher(rule, per_match) for rule in self.rules]
        self._timed = [rule.name is not None and not facts(rule.name).cheap for rule in self.rules]
        self._literal: dict[str, list[int]] = {}
        self._groups: dict[tuple[str, ...], _Group] = {}
        self._shapes: dict[tuple[int, str], _Shape] = {}
        self._numbered: dict[tuple[int, str, tuple[int, ...], tuple[str, ...]], list[int]] = {}
        self._sums: dict[tuple[int, str, tuple[str, ...]], tuple[int, ...]] = {}
        for rule in self.rules:
            whole = facts(rule.name).whole if rule.name is not None else None
            if whole is not None:
                self._literal.setdefault(whole, []).append(rule.index)

    def matching(self, path: str, class_names: tuple[str, ...]) -> tuple[int, ...]:
        """Return all rules that match a module by themselves, in order."""
        group = self._groups.get(class_names)
        if group is None:
            group = self._groups[class_names] = self._group(class_names)
        form, numbers = _form(path)
        key = (id(group), form)
        shape = self._shapes.get(key)
        if shape is None:
            shape = self._shapes[key] = self._shape(path, group)
        found = shape.constant
        if shape.by_numbers:
            found = self._by_numbers(path, key, shape, numbers)
        extra = [i for i in shape.by_path if self._found(i, path)]
        if path in self._literal:
            extra += [i for i in self._literal[path] if i in group.literal]
        return tuple(sorted((*found, *extra))) if extra else found

    def _by_numbers(
        self, path: str, key: tuple[int, str], shape: _Shape, numbers: Sequence[str]
    ) -> tuple[int, ...]:
        last = shape.by_numbers[-1][0][-1]
        sum_key = (*key, tuple(numbers[: last + 1]))
        known = self._sums.get(sum_key)
        if known is not None:
            return known
        found = list(shape.constant)
        for positions, rules in shape.by_numbers:
            values = tuple(numbers[i] for i in positions if i < len(numbers))
            chosen = self._numbered.get((*key, positions, values))
            if chosen is None:
                chosen = [i for i in rules if self._found(i, path)]
                self._numbered[(*key, positions, values)] = chosen
            found += chosen
        self._sums[sum_key] = tuple(sorted(found))
        return self._sums[sum_key]

    def _group(self, class_names: tuple[str, ...]) -> _Group:
        always: list[int] = []
        literal: list[int] = []
        by_path: list[int] = []
        by_numbers: dict[tuple[int, ...], list[int]] = {}
        for rule in self.rules:
            cls = rule.match_class
            if cls is not None and not classes.matches(cls, class_names):
                continue
            if rule.name is None:
                always.append(rule.index)
                continue
            known = facts(rule.name)
            if known.whole is not None:
                literal.append(rule.index)
            elif known.numbers is None:
                by_path.append(rule.index)
            else:
                by_numbers.setdefault(tuple(sorted(known.numbers)), []).append(rule.index)
        constant = by_numbers.pop((), [])
        return _Group(
            tuple(always),
            frozenset(literal),
            tuple(constant),
            {positions: tuple(rules) for positions, rules in by_numbers.items()},
            tuple(by_path),
        )

    def _shape(self, path: str, group: _Group) -> _Shape:
        """Sort out the rules that can match any path of this form."""
        constant = [i for i in group.constant if self._possible(i, path) and self._found(i, path)]
        by_numbers = {
            positions: tuple(i for i in rules if self._possible(i, path))
            for positions, rules in group.by_numbers.items()
        }
        return _Shape(
            tuple(sorted((*group.always, *constant))),
            tuple(
                sorted(((p, r) for p, r in by_numbers.items() if r), key=lambda entry: entry[0][-1])
            ),
            tuple(i for i in group.by_path if self._possible(i, path)),
        )

    def _possible(self, index: int, path: str) -> bool:
        return all(piece in path for piece in facts(self.rules[index].name or "").pieces)

    def _found(self, index: int, path: str) -> bool:
        search = self._search[index]
        if not self._timed[index]:
            return search(path)
        # This thread's own time: a pattern is not slow because the machine is busy.
        start = time.thread_time()
        try:
            found = search(path)
        except patterns.PatternTimeoutError:
            raise self._too_slow(index, path) from None
        took = time.thread_time() - start
        if took > _SLOW_SEARCH:
            self._slow[index] += took
            if self._slow[index] > SLOW_SECONDS:
                raise self._too_slow(index, path)
        return found

    def _too_slow(self, index: int, path: str) -> RuleError:
        rule = self.rules[index]
        return RuleError(
            Problem(
                "KT170",
                f"the pattern of rule {index + 1} takes too long on {show(path)}",
                rule.place("match.name"),
                (
                    f"pattern: {show_pattern(rule.name or '')}",
                    "repeats inside repeats, such as (.*)+, try every split",
                ),
                "replace (.*)+ by .*, and (a|b)* by [ab]*",
            )
        )


def _searcher(rule: Rule, per_match: float) -> Callable[[str], bool]:
    if rule.name is None:
        return lambda path: True
    bad = patterns.check(rule.name)
    if bad is not None:
        raise RuleError(
            Problem(
                "KT121",
                f"the pattern of rule {rule.index + 1} is not valid: {bad.reason}",
                rule.place("match.name"),
                (f"pattern: {show_pattern(rule.name or '')}",),
            )
        )
    return patterns.searcher(rule.name, seconds=per_match)


def _form(path: str) -> tuple[str, list[str]]:
    """Return the path with every number replaced by 0, and the numbers."""
    parts = path.split(".")
    numbers: list[str] = []
    for i, part in enumerate(parts):
        if part.isdigit() and part.isascii():
            numbers.append(part)
            parts[i] = "0"
    return ".".join(parts), numbers
