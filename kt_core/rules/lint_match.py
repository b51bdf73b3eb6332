"""What is wrong with ``match``: patterns that are invalid or surely not meant, and classes."""

from __future__ import annotations

from kt_core.errors import Severity
from kt_core.rules import classes, patterns
from kt_core.rules.draft import Draft
from kt_core.rules.ktransformers import MODEL_CLASSES, MODELS_PREFIX, NO_MODEL
from kt_core.rules.model import DEFAULT
from kt_core.rules.pattern_facts import only_digits
from kt_core.rules.pattern_tree import (
    INFINITE,
    Branch,
    Chars,
    Edge,
    Group,
    Item,
    Literal,
    Repeat,
    parse,
)
from kt_core.rules.problems import Problems
from kt_core.rules.suggest import did_you_mean
from kt_core.rules.text import bare, show, show_pattern, yaml_string

_KNOWN_SHORT = {
    "Linear": "torch.nn.Linear",
    "Embedding": "torch.nn.Embedding",
    "Module": "torch.nn.Module",
    "ModuleList": "torch.nn.ModuleList",
}
# No Python attribute, and so no module path, holds any of these.
_NEVER = frozenset(" \t\n\r\\/'\"<>=;:,(){}")


def lint_match(draft: Draft, problems: Problems) -> None:
    """Check the ``match`` of one rule."""
    if draft.name is not None:
        _pattern(draft, draft.name, problems)
    if draft.match_class is not None:
        _class(draft, draft.match_class, problems)


# --- name -----------------------------------------------------------------------------------------


def _pattern(draft: Draft, pattern: str, problems: Problems) -> None:
    place = draft.places["match.name"]
    bad = patterns.check(pattern)
    if bad is not None:
        draft.sound = False
        facts = [
            f"pattern: {pattern if pattern.isprintable() and len(pattern) < 100 else show(pattern)}"
        ]
        if bad.position is not None and len(facts[0]) < 110 and pattern.isprintable():
            facts.append(" " * (len("pattern: ") + bad.position) + "^")
        where = "" if bad.position is None else f" at character {bad.position + 1}"
        problems.add(
            "KT121",
            f"the pattern is not valid{where}: {bad.reason}",
            place,
            facts=facts,
            help=_repair(pattern),
        )
        return
    branches = parse(pattern)
    if branches is None:
        return
    if _never(branches):
        problems.add(
            "KT124",
            f"the pattern {show_pattern(pattern)} can never match: {_never(branches)}",
            place,
            help=_unescaped(pattern),
            severity=Severity.WARNING,
        )
        return
    _root(draft, pattern, problems)
    for branch in branches:
        end = _number_end(branch)
        if end is not None:
            _number_trap(draft, pattern, branch, end, problems)
            break


def _repair(pattern: str) -> str | None:
    if pattern.count("(") == pattern.count(")") + 1:
        return f"name: {yaml_string(pattern + ')')}"
    if pattern.startswith("*"):
        return f"name: {yaml_string('.' + pattern)}"
    return "the syntax is that of Python's re module"


def _unescaped(pattern: str) -> str | None:
    if "\\\\" in pattern:
        return f"name: {yaml_string(pattern.replace(chr(92) * 2, chr(92)))}"
    if pattern != pattern.strip():
        return f"name: {yaml_string(pattern.strip())}"
    if "/" in pattern:
        return f"name: {yaml_string(pattern.replace('/', chr(92) + '.'))}"
    return None


def _never(branches: tuple[Branch, ...]) -> str | None:
    """Return why no module path can match, if that is certain."""
    reasons = [_branch_never(branch) for branch in branches]
    return reasons[0] if all(reasons) else None


def _branch_never(branch: Branch) -> str | None:
    consumed = False
    ended = False
    for item in branch:
        if isinstance(item, Literal) and item.char in _NEVER:
            what = {"\\": "a backslash", " ": "a space"}.get(item.char, show(item.char))
            return f"it asks for {what}, which no module path contains"
        if item == Edge("^") and consumed:
            return "it asks for text before the beginning (^)"
        if item == Edge("$"):
            ended = True
        elif _takes_text(item):
            consumed = True
            if ended:
                return "it asks for text after the end ($)"
    return None


def _takes_text(item: Item) -> bool:
    if isinstance(item, Repeat):
        return item.least > 0 and _takes_text(item.item)
    if isinstance(item, Group):
        return all(any(_takes_text(i) for i in branch) for branch in item.branches)
    return isinstance(item, Literal | Chars)


def _root(draft: Draft, pattern: str, problems: Problems) -> None:
    """The model itself has the path ""."""
    place = draft.places["match.name"]
    if pattern == "^$":
        problems.add(
            "KT128",
            "the pattern matches only the model itself, which is never replaced",
            place,
            help="name: '^model$' for the decoder",
            severity=Severity.WARNING,
        )
    elif not draft.recursive and draft.match_class is None and patterns.searcher(pattern)(""):
        problems.add(
            "KT128",
            f"the pattern {show_pattern(pattern)} matches the model itself, and recursive: false "
            "then keeps every rule of this file away",
            place,
            help="delete recursive: false, or anchor the pattern: name: '^model\\.'",
        )


def _number_end(branch: Branch) -> int | None:
    """Return where a number ends that may go on, as in ``layers.1``, which finds ``layers.10``."""
    for i, item in enumerate(branch):
        if not only_digits(item) or _endless(item):
            continue
        if i and not (branch[i - 1] == Literal(".") or only_digits(branch[i - 1])):
            continue
        after = branch[i + 1] if i + 1 < len(branch) else None
        if after is None or (isinstance(after, Repeat) and _takes_any(after)):
            start = i
            while start and only_digits(branch[start - 1]):
                start -= 1
            if start and branch[start - 1] == Literal(".") and start > 1:
                return i + 1
    return None


def _endless(item: Item) -> bool:
    match item:
        case Repeat(inner, _, most):
            return most >= INFINITE or _endless(inner)
        case Group(branches):
            return any(_endless(i) for branch in branches for i in branch)
    return False


def _takes_any(item: Repeat) -> bool:
    return (
        isinstance(item.item, Chars) and item.item.any and item.least == 0 and item.most >= INFINITE
    )


def _number_trap(draft: Draft, pattern: str, branch: Branch, end: int, problems: Problems) -> None:
    begin = end
    while begin and only_digits(branch[begin - 1]):
        begin -= 1
    more = _goes_on(branch[begin:end])
    if more is None:
        return
    before = branch[1:begin] if branch[0] == Edge("^") else branch[:begin]
    path = "".join(item.char for item in before if isinstance(item, Literal))
    if not all(isinstance(item, Literal) for item in before):
        path = "… ."
    problems.add(
        "KT125",
        f"the pattern {show_pattern(pattern)} ends in a number that may go on",
        draft.places["match.name"],
        facts=[f"it also finds {path}{more}"],
        help=_with_dot(pattern, end == len(branch)),
        severity=Severity.WARNING,
    )


_MOST_NUMBERS = 2_000


def _goes_on(items: Branch) -> str | None:
    """Return the smallest number that is not meant but begins like one that is."""
    meant = _numbers(items)
    if meant is None:
        return None
    for number in range(1, 10_000):
        text = str(number)
        if text not in meant and any(text[:length] in meant for length in range(1, len(text))):
            return text
    return None


def _numbers(items: Branch) -> set[str] | None:
    """Return all texts the items match, or ``None`` if there are very many."""
    found = {""}
    for item in items:
        texts = _texts(item)
        if texts is None or len(found) * len(texts) > _MOST_NUMBERS:
            return None
        found = {begin + end for begin in found for end in texts}
    return found


def _texts(item: Item) -> set[str] | None:
    match item:
        case Literal(char):
            return {char}
        case Chars(ascii=chars):
            return set(chars)
        case Group(branches):
            parts = [_numbers(branch) for branch in branches]
            return None if None in parts else {text for part in parts for text in part or ()}
        case Repeat(inner, least, most) if most <= 4:
            several = [_numbers((inner,) * times) for times in range(least, most + 1)]
            return None if None in several else {text for part in several for text in part or ()}
    return None


def _with_dot(pattern: str, at_end: bool) -> str:
    if at_end:
        return f"name: {yaml_string(pattern + chr(92) + '.')}"
    head, star, tail = pattern.rpartition(".*")
    if star and not tail.strip("$)"):
        return f"name: {yaml_string(head + chr(92) + '.' + star + tail)}"
    return "put \\. after the number"


# --- class ----------------------------------------------------------------------------------------


def _class(draft: Draft, name: str, problems: Problems) -> None:
    place = draft.places["match.class"]
    if not classes.is_class_path(name):
        draft.sound = False
        short = _KNOWN_SHORT.get(name) or did_you_mean(name, _KNOWN_SHORT)
        help_ = (
            f"class: {_KNOWN_SHORT.get(short or '', short)}" if short else "class: torch.nn.Linear"
        )
        problems.add(
            "KT123",
            f"match.class {show(name)} is not the dotted name of a class",
            place,
            help=help_ if name != DEFAULT else "class: default belongs below replace:",
        )
        return
    if name.startswith("ktransformers.") and name not in MODEL_CLASSES:
        _foreign_class(name, draft, problems)


def _foreign_class(name: str, draft: Draft, problems: Problems) -> None:
    place = draft.places["match.class"]
    if not name.startswith(MODELS_PREFIX):
        near = did_you_mean(name, MODEL_CLASSES) if name.count(".") == 3 else None
        problems.add(
            "KT129",
            f"no model contains {show(name)}, so this rule never matches",
            place,
            facts=["operators only come into a model through replace"],
            help=f"class: {near}"
            if near
            else "delete this rule, or match what the model is made of",
            severity=Severity.WARNING,
        )
        return
    module = name.removeprefix(MODELS_PREFIX).partition(".")[0]
    near = did_you_mean(name, MODEL_CLASSES)
    reason = NO_MODEL.get(module)
    problems.add(
        "KT129",
        f"{show(name)} stands for no class of transformers, so this rule never matches",
        place,
        facts=[reason] if reason else [],
        help=f"class: {bare(near)}" if near and not reason else "name the class of transformers",
        severity=Severity.WARNING,
    )
