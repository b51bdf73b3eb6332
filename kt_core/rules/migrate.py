"""A rule file of KTransformers in kt's own words: every change is made in its text, and listed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kt_core.errors import Problem, RuleError, Severity
from kt_core.registry.known import canonical_name
from kt_core.registry.specs import EXPERTS, LINEAR
from kt_core.rules.classes import meant_by
from kt_core.rules.edit import Editor
from kt_core.rules.fields import KERNEL_KWARGS, PLACEMENT_KWARGS
from kt_core.rules.ktransformers import MODEL_CLASSES, OLD_PATHS, RENAMED
from kt_core.rules.load import check_text
from kt_core.rules.model import DEFAULT
from kt_core.rules.nodes import Mapping, Node, Scalar, Sequence
from kt_core.rules.problems import Problems
from kt_core.rules.source import read_tree

if TYPE_CHECKING:
    from kt_core.registry.registry import Registry

# Options that KTransformers' oldest documents have, and what took their place.
_OLD_KEYS = {
    "generate_linear_type": "generate_op",
    "prefill_linear_type": "prefill_op",
    "generate_mlp_type": "generate_op",
    "prefill_mlp_type": "prefill_op",
}
_NO_KERNEL = ("none", "null", "~", "")


@dataclass(frozen=True)
class Change:
    """One change: where in the old file, what was and what is there, and why."""

    line: int
    before: str
    after: str
    why: str

    def __str__(self) -> str:
        arrow = f" -> {self.after}" if self.after else ": left out"
        return f"line {self.line}: {self.before}{arrow} ({self.why})"


@dataclass
class Migrated:
    """The new text, what was changed, and what is still wrong with it."""

    text: str
    changes: list[Change] = field(default_factory=list)
    left: tuple[Problem, ...] = ()


def migrate(text: str, path: str, registry: Registry) -> Migrated:
    """Return the modern form of a rule file's ``text``; ``path`` is what messages call it.

    A file that is modern already comes back as it is.

    Raises:
        RuleError: for text that is no YAML or no list of rules (KT1xx).
    """
    text = text.removeprefix("\ufeff")
    problems = Problems(path)
    root = read_tree(text, problems)
    rules = _rules_of(root)
    if root is None or rules is None or problems.failed:
        errors = [
            p for p in check_text(text, path, registry).problems if p.severity is Severity.ERROR
        ]
        raise RuleError(errors)
    work = _Migration(text, registry, check_text(text, path, registry).problems)
    work.architectures = _meant_for(rules)
    for item in rules.items:
        work.rule(item)
    if isinstance(root, Sequence):
        work.header(rules)
    new = work.editor.apply()
    changes = sorted(work.changes, key=lambda change: change.line)
    return Migrated(new, changes, check_text(new, path, registry).problems)


def _rules_of(root: Node | None) -> Sequence | None:
    if isinstance(root, Mapping) and "rules" in root.entries:
        root = root.entries["rules"][1]
    return root if isinstance(root, Sequence) and root.items else None


class _Migration:
    def __init__(self, text: str, registry: Registry, problems: tuple[Problem, ...]) -> None:
        self.editor = Editor(text)
        self.registry = registry
        self.changes: list[Change] = []
        self.architectures: tuple[str, ...] = ()
        self._said: dict[tuple[int, int], list[Problem]] = {}
        for problem in problems:
            where = problem.location
            if where is not None and where.line:
                self._said.setdefault((where.line, where.column), []).append(problem)

    def rule(self, item: Node) -> None:
        """Bring one rule up to date."""
        if not isinstance(item, Mapping):
            return
        match, replace = (_mapping(item, key) for key in ("match", "replace"))
        dead = self._dead(item, match)
        if dead is not None:
            self.editor.comment_out(item, f"dead: {dead}")
            line = item.line
            self.changes.append(Change(line, "the rule", "a comment", dead))
            return
        if match is not None:
            self._match(match)
        if replace is not None:
            self._replace(replace)

    def header(self, rules: Sequence) -> None:
        """Turn the bare list into a file that says for which models it is."""
        lines = ["version: 1"]
        if self.architectures:
            lines.append(f"architectures: [{', '.join(self.architectures)}]")
        lines.append("rules:")
        self.editor.insert_above(rules.items[0], "\n".join(lines) + "\n")
        what = "a bare list of rules"
        why = "a file names its version, and the models it is for"
        self.changes.append(Change(rules.line, what, ", ".join(lines[:-1]), why))

    def _dead(self, item: Mapping, match: Mapping | None) -> str | None:
        """Why no module can ever take this rule, where the file alone shows it."""
        places: list[Node] = [item]
        if match is not None:
            places += [match, *(value for _, value in match.entries.values())]
        for place in places:
            for problem in self._said.get((place.line, place.column), ()):
                if problem.code in ("KT126", "KT129"):
                    return problem.message
        value = _scalar(match, "class") if match is not None else None
        theirs = _architectures_of(meant_by(value.text)[0]) if value is not None else ()
        if theirs and theirs != self.architectures:
            others = ", ".join(self.architectures)
            return f"the class is one of {', '.join(theirs)}, the file is for {others}"
        return None

    def _match(self, match: Mapping) -> None:
        name = _scalar(match, "name")
        for old, new in OLD_PATHS.values():
            if name is None or not self._is_old(name):
                continue
            self.editor.rewrite(name, name.text.replace(old, new))
            self.changes.append(Change(name.line, old, new, "what transformers calls it"))
        value = _scalar(match, "class")
        if value is None or value.text not in MODEL_CLASSES:
            return
        meant = meant_by(value.text)[0]
        self.editor.rewrite(value, meant)
        self.changes.append(
            Change(value.line, value.text, meant, "KTransformers' copy of transformers' class")
        )

    def _is_old(self, name: Scalar) -> bool:
        said = self._said.get((name.line, name.column), ())
        return any(problem.code == "KT144" for problem in said)

    def _replace(self, replace: Mapping) -> None:
        kind = None
        value = _scalar(replace, "class")
        if value is not None and value.text != DEFAULT:
            found = self.registry.operator(value.text)
            kind = None if found is None else found.spec.kernel_kind
            if found is not None and found.spec.name != value.text:
                self._renamed(value, found.spec.name, "the operator's own name")
        if "device" in replace.entries:
            key, _ = replace.entries["device"]
            self.editor.remove_entry(replace, "device")
            self._gone(key, "KTransformers never read it here")
        kwargs = _mapping(replace, "kwargs")
        if kwargs is not None:
            self._kwargs(replace, kwargs, kind)

    def _kwargs(self, replace: Mapping, kwargs: Mapping, kind: str | None) -> None:
        removed: list[str] = []
        for name, (key, value) in kwargs.entries.items():
            if name in _OLD_KEYS or name == "device":
                if self._old_key(name, key, value, kwargs, kind):
                    removed.append(name)
                continue
            why = self._useless(name, key, value, kwargs)
            if why is not None:
                removed.append(name)
                self._gone(key, why)
                if name in KERNEL_KWARGS:
                    self._follow(KERNEL_KWARGS[name], kwargs)
            elif name in KERNEL_KWARGS and isinstance(value, Scalar):
                self._kernel(value, kind)
        if removed and len(removed) == len(kwargs.entries):
            self.editor.remove_entry(replace, "kwargs")
        elif removed:
            self.editor.remove(kwargs, removed)

    def _useless(self, name: str, key: Scalar, value: Node, kwargs: Mapping) -> str | None:
        """Why a kwarg can be left out."""
        for problem in self._said.get((key.line, key.column), ()):
            if problem.code == "KT142":
                return "; ".join(problem.facts) or problem.message
        if name == "backend" and isinstance(value, Scalar) and value.text.startswith("AMX"):
            return "kt_ops_cpu.experts uses AMX by itself where the CPU has it"
        other = next(kernel for kernel in KERNEL_KWARGS if kernel != name)
        empty = isinstance(value, Scalar) and value.text.casefold() in _NO_KERNEL
        if name in KERNEL_KWARGS and empty and other in kwargs.entries:
            return f"it names no kernel; {other} runs in both phases"
        return None

    def _follow(self, device: str, kwargs: Mapping) -> None:
        """A phase without a kernel of its own runs where the other one's kernel can."""
        other = next(name for name in KERNEL_KWARGS.values() if name != device)
        mine, theirs = _scalar(kwargs, device), _scalar(kwargs, other)
        if mine is not None and theirs is not None and mine.text != theirs.text:
            self.editor.rewrite(mine, theirs.text)
            why = f"the kernel that runs there is that of {other}"
            self.changes.append(Change(mine.line, f"{device}: {mine.text}", theirs.text, why))

    def _old_key(
        self, name: str, key: Scalar, value: Node, kwargs: Mapping, kind: str | None
    ) -> bool:
        """Rename an old key, or say that it is to be left out."""
        wanted = (_OLD_KEYS[name],) if name != "device" else PLACEMENT_KWARGS[:2]
        absent = tuple(new for new in wanted if new not in kwargs.entries)
        if not absent:
            self._gone(key, f"{' and '.join(wanted)} already says it")
            return True
        if isinstance(value, Scalar) and name != "device":
            self._kernel(value, kind)
        self.editor.rename(key, absent, value)
        why = "each phase has its own device" if name == "device" else "the name it has since"
        self.changes.append(Change(key.line, name, " and ".join(absent), why))
        return False

    def _kernel(self, value: Scalar, kind: str | None) -> None:
        text = RENAMED.get(value.text, value.text)
        found = self.registry.kernel(text, kind if kind in (LINEAR, EXPERTS) else None)
        name = found.spec.name if found is not None else canonical_name(text)
        if name is not None and name != value.text:
            self._renamed(value, name, "the kernel's own name")

    def _renamed(self, value: Scalar, name: str, why: str) -> None:
        self.editor.rewrite(value, name)
        self.changes.append(Change(value.line, value.text, name, why))

    def _gone(self, key: Scalar, why: str) -> None:
        self.changes.append(Change(key.line, key.text, "", why))


def _mapping(node: Mapping, key: str) -> Mapping | None:
    value = node.entries[key][1] if key in node.entries else None
    return value if isinstance(value, Mapping) else None


def _scalar(node: Mapping, key: str) -> Scalar | None:
    value = node.entries[key][1] if key in node.entries else None
    return value if isinstance(value, Scalar) else None


def _meant_for(rules: Sequence) -> tuple[str, ...]:
    """The architectures that most of the classes in ``match.class`` belong to."""
    counts: Counter[tuple[str, ...]] = Counter()
    for item in rules.items:
        match = _mapping(item, "match") if isinstance(item, Mapping) else None
        value = _scalar(match, "class") if match is not None else None
        found = _architectures_of(meant_by(value.text)[0]) if value is not None else ()
        if found:
            counts[found] += 1
    return counts.most_common(1)[0][0] if counts else ()


def _architectures_of(class_path: str) -> tuple[str, ...]:
    """The architectures of the family that a class of transformers belongs to."""
    from kt_core.models.described import FAMILIES

    prefix = "transformers.models."
    folder = class_path.removeprefix(prefix).partition(".")[0]
    families = (f for f in FAMILIES if class_path.startswith(prefix) and f.folder == folder)
    return next((family.architectures for family in families), ())
