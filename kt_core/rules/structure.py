"""The shape of a rule file: which keys stand where, and what their values are.

Reports every departure with the key or value at fault, and keeps going with what is sound, so that
one slip does not hide the next.
"""

from __future__ import annotations

from collections.abc import Mapping as MappingType
from dataclasses import dataclass, field
from typing import Any

from kt_core.errors import Location, Severity
from kt_core.rules import scalars
from kt_core.rules.fields import FILE, INTEGER_KEYS, MATCH, REPLACE, RULE, STRAYS, Shape
from kt_core.rules.limits import MAX_KWARGS_NODES, MAX_PATTERN, MAX_RULES
from kt_core.rules.model import DEFAULT
from kt_core.rules.nodes import Mapping, Node, Scalar, Sequence, count, kind_name
from kt_core.rules.problems import Problems
from kt_core.rules.suggest import did_you_mean
from kt_core.rules.text import bare, listed, show


@dataclass
class Draft:
    """A rule as far as it could be read. ``None`` stands for what is wrong or was not given."""

    index: int
    place: Location
    name: str | None = None
    match_class: str | None = None
    replace_class: str | None = DEFAULT
    kwargs: dict[str, Any] | None = field(default_factory=dict)
    recursive: bool = True
    continue_: bool = False
    sound: bool = True
    """Whether ``match`` was read without error, so that it can be compared with other rules'."""
    places: dict[str, Location] = field(default_factory=dict)
    """Dotted key -> where its value stands."""
    keys: dict[str, Location] = field(default_factory=dict)
    """Dotted key -> where the key itself stands."""
    unreadable: set[str] = field(default_factory=set)
    """Kwargs that were given with a value that could not be read; they are not in ``kwargs``."""

    def __str__(self) -> str:
        return f"rule {self.index + 1} (line {self.place.line})"


@dataclass
class Document:
    """A whole file as far as it could be read."""

    rules: list[Draft] = field(default_factory=list)
    version: int = 1
    architectures: tuple[str, ...] = ()
    description: str = ""
    places: dict[str, Location] = field(default_factory=dict)


def read_document(root: Node | None, problems: Problems) -> Document:
    """Read the tree of a rule file."""
    document = Document()
    if root is None:
        return document
    if isinstance(root, Sequence):
        _rules(root, document, problems)
    elif isinstance(root, Mapping):
        _file(root, document, problems)
    elif scalars.read(root).kind is scalars.Kind.EMPTY:
        problems.add("KT114", "the file has no rules", root, help='begin with "- match:"')
    else:
        problems.add(
            "KT114",
            "a rule file is a list of rules, or a mapping with the list under rules:",
            root,
            facts=[f"found: {show(root.text)}"],
            help='begin each rule with "- match:"',
        )
    return document


def _file(root: Mapping, document: Document, problems: Problems) -> None:
    if not root.entries:
        problems.add("KT114", "the file has no rules", root, help='begin with "- match:"')
        return
    if "rules" not in root.entries and {"match", "replace"} & set(root.entries):
        problems.add(
            "KT114",
            "this is one rule, not a list of rules",
            root,
            help='begin it with "- ", and indent the lines below it',
        )
        return
    entries = _closed(root, FILE, problems)
    document.places["description"] = document.places[""] = problems.at(root)
    for key, (_, value) in entries.items():
        document.places[key] = problems.at(value)
    if "version" in entries:
        _version(entries["version"][1], problems)
    if "architectures" in entries:
        document.architectures = _architectures(entries["architectures"][1], problems)
    if "description" in entries:
        document.description = _text(entries["description"][1], "description", problems) or ""
    if "rules" in entries:
        value = entries["rules"][1]
        if isinstance(value, Sequence):
            _rules(value, document, problems)
        else:
            _wrong_kind(value, "rules", "a list", problems, help='begin each rule with "- match:"')


def _version(node: Node, problems: Problems) -> None:
    value = _scalar(node, "version", problems)
    if value is not None and (value.kind is not scalars.Kind.INTEGER or value.value != 1):
        problems.add(
            "KT119",
            f"version must be 1, not {_written(node)}",
            node,
            facts=["1 is the only version of this format"],
            help="version: 1",
        )


def _architectures(node: Node, problems: Problems) -> tuple[str, ...]:
    if not isinstance(node, Sequence):
        example = node.text if isinstance(node, Scalar) and node.text else "LlamaForCausalLM"
        _wrong_kind(
            node, "architectures", "a list", problems, help=f"architectures: [{bare(example)}]"
        )
        return ()
    if not node.items:
        problems.add(
            "KT117",
            "architectures is empty",
            node,
            help="name a model class, or delete the line",
        )
    names: list[str] = []
    for item in node.items:
        name = _text(item, "an architecture", problems)
        if name is None:
            continue
        if not name.isidentifier() or not name.isascii():
            problems.add(
                "KT117",
                f"{show(name)} is not the name of a model class",
                item,
                help='use the word under "architectures" in the model\'s config.json',
            )
        elif name in names:
            problems.add("KT117", f"{show(name)} is listed twice", item, help="delete one")
        else:
            names.append(name)
    return tuple(names)


def _rules(node: Sequence, document: Document, problems: Problems) -> None:
    if not node.items:
        problems.add(
            "KT115",
            "there are no rules, so every module keeps its own operator",
            node,
            severity=Severity.WARNING,
        )
    if len(node.items) > MAX_RULES:
        problems.add(
            "KT103",
            f"there are {len(node.items):,} rules; a file may have {MAX_RULES:,}",
            node.items[MAX_RULES],
            help="join rules that differ only in the layer: ^model\\.layers\\.([0-9]|1[0-9])\\.",
        )
        return
    for index, item in enumerate(node.items):
        document.rules.append(_rule(item, index, problems))


def _rule(node: Node, index: int, problems: Problems) -> Draft:
    draft = Draft(index, problems.at(node))
    draft.places[""] = draft.place
    if not isinstance(node, Mapping):
        _wrong_kind(node, f"rule {index + 1}", "a mapping", problems, help="- match: {name: …}")
        draft.sound, draft.replace_class, draft.kwargs = False, None, None
        return draft
    entries = _closed(node, RULE, problems, f"rule {index + 1}")
    _remember(draft, "", entries, problems)
    draft.sound = False
    if "match" in entries:
        _match(entries["match"][1], draft, problems)
    draft.replace_class, draft.kwargs = None, None
    if "replace" in entries:
        _replace(entries["replace"][1], draft, problems)
    if "recursive" in entries:
        draft.recursive = _boolean(entries["recursive"][1], "recursive", True, problems)
    if "continue" in entries:
        draft.continue_ = _boolean(entries["continue"][1], "continue", False, problems)
    return draft


def _match(node: Node, draft: Draft, problems: Problems) -> None:
    if not isinstance(node, Mapping):
        _wrong_kind(
            node,
            "match",
            "a mapping with name or class",
            problems,
            help="match: {name: '^lm_head$'}",
        )
        return
    failed = problems.failed
    problems.failed = False
    entries = _closed(node, MATCH, problems)
    _remember(draft, "match", entries, problems)
    if "name" in entries:
        draft.name = _text(entries["name"][1], "match.name", problems, empty=True)
    if "class" in entries:
        draft.match_class = _text(entries["class"][1], "match.class", problems)
    if not entries and not problems.failed:
        problems.add(
            "KT120",
            "match has neither name nor class",
            node,
            facts=[f"in {draft}"],
            help="match: {name: '^lm_head$'}",
        )
    if draft.name is not None and len(draft.name) > MAX_PATTERN:
        problems.add(
            "KT121",
            f"the pattern has {len(draft.name):,} characters; {MAX_PATTERN:,} are allowed",
            draft.places["match.name"],
            help="split the rule",
        )
        draft.name = None
    draft.sound = not problems.failed
    problems.failed = problems.failed or failed


def _replace(node: Node, draft: Draft, problems: Problems) -> None:
    if not isinstance(node, Mapping):
        example = node.text if isinstance(node, Scalar) and node.text else DEFAULT
        _wrong_kind(
            node,
            "replace",
            "a mapping with class",
            problems,
            help=f"replace: {{class: {bare(example)}}}",
        )
        return
    entries = _closed(node, REPLACE, problems)
    _remember(draft, "replace", entries, problems)
    if not node.entries:
        problems.add(
            "KT118",
            "replace has no class",
            node,
            facts=[f"in {draft}"],
            help="replace: {class: default}",
        )
        return
    # Without a class only the place is set, as in KTransformers. That a misspelt class is meant is
    # excluded: every other key has been refused.
    draft.replace_class = DEFAULT
    if "class" in entries:
        draft.replace_class = _text(entries["class"][1], "replace.class", problems)
    draft.kwargs = {}
    if "kwargs" in entries:
        draft.kwargs = _kwargs(entries["kwargs"], draft, problems)


def _kwargs(entry: tuple[Scalar, Node], draft: Draft, problems: Problems) -> dict[str, Any] | None:
    _, node = entry
    if not isinstance(node, Mapping):
        _wrong_kind(
            node,
            "kwargs",
            "a mapping",
            problems,
            help="give options below kwargs:, or delete the line",
        )
        return None
    if count(node) > MAX_KWARGS_NODES:
        problems.add(
            "KT103",
            f"kwargs holds more than {MAX_KWARGS_NODES:,} values",
            node,
            help="options are a few words and numbers",
        )
        return None
    reader = _Values(draft, problems)
    value = reader.read(node, "replace.kwargs", "kwargs")
    return value if isinstance(value, dict) else None


class _Values:
    """Turns the nodes below ``kwargs`` into plain data and notes where each piece stands."""

    def __init__(self, draft: Draft, problems: Problems) -> None:
        self.draft = draft
        self.problems = problems
        self.failed = False

    def read(self, node: Node, path: str, name: str) -> Any:
        self.draft.places[path] = self.problems.at(node)
        if isinstance(node, Sequence):
            return [
                self.read(item, f"{path}.{i}", f"{name}[{i}]") for i, item in enumerate(node.items)
            ]
        if isinstance(node, Mapping):
            return self._mapping(node, path, name)
        value = _scalar(node, name, self.problems)
        self.failed = self.failed or value is None
        return value.value if value is not None else None

    def _mapping(self, node: Mapping, path: str, name: str) -> dict[Any, Any]:
        top = path == "replace.kwargs"
        numbered = path.removeprefix("replace.kwargs.") in INTEGER_KEYS
        found: dict[Any, Any] = {}
        for text, (key, value) in node.entries.items():
            self.draft.keys[f"{path}.{text}"] = self.problems.at(key)
            if top:
                self.failed = False
            result = self.read(value, f"{path}.{text}", text if top else f"{name}.{text}")
            if top and self.failed:
                self.draft.unreadable.add(text)
            elif numbered:
                self._layer(key, result, found)
            elif _key_is_text(key, self.problems):
                found[text] = result
        return found

    def _layer(self, key: Scalar, value: Any, found: dict[Any, Any]) -> None:
        if key.text.isascii() and key.text.isdigit() and str(int(key.text[:9])) == key.text:
            found[int(key.text)] = value
            return
        self.problems.add(
            "KT112",
            f"the key {show(key.text)} is not a layer number",
            key,
            help='keys here are 0, 1, 2, …, for example {30: "cuda:1"}',
        )


def _closed(
    node: Mapping, shape: Shape, problems: Problems, label: str = ""
) -> dict[str, tuple[Scalar, Node]]:
    """Return the entries with known keys; report unknown and missing ones.

    A key that is clearly a misspelling of one that is not there is reported and then read as meant.
    """
    found: dict[str, tuple[Scalar, Node]] = {}
    unknown: list[tuple[Scalar, Node]] = []
    for text, entry in node.entries.items():
        if text in shape.keys:
            found[text] = entry
        else:
            unknown.append(entry)
    for key, value in unknown:
        meant = _unknown_key(key, value, shape, found, problems)
        if meant is not None and meant not in found:
            found[meant] = (key, value)
    for name in shape.required:
        if name not in found:
            problems.add(
                "KT118",
                f"{label or shape.what} has no {name}",
                node,
                help=_EXAMPLES[name],
            )
    return found


_EXAMPLES = {
    "match": "match: {name: '^lm_head$'}",
    "replace": "replace: {class: default}",
    "rules": "rules: […]",
}


def _unknown_key(
    key: Scalar,
    value: Node,
    shape: Shape,
    found: MappingType[str, object],
    problems: Problems,
) -> str | None:
    if not _key_is_text(key, problems):
        return None
    stray = STRAYS.get(shape.what, {}).get(key.text)
    if stray is not None:
        problems.add(
            "KT116",
            f"{show(key.text)} is not a key of {shape.what}",
            key,
            facts=[stray.why],
            help=stray.help,
        )
        return None
    meant = did_you_mean(key.text, shape.keys)
    written = ""
    if isinstance(value, Scalar) and value.text and "\n" not in value.text:
        written = " " + (bare(value.text) if value.plain else show(value.text))
    problems.add(
        "KT116",
        f"{show(key.text)} is not a key of {shape.what}",
        key,
        facts=[f"keys: {listed(shape.keys)}"],
        help=f"{meant}:{written}" if meant else f"delete {show(key.text)}",
    )
    return meant if meant not in found else None


def _key_is_text(key: Scalar, problems: Problems) -> bool:
    value = scalars.read(key)
    if value.kind is scalars.Kind.TEXT:
        return True
    problems.add(
        "KT112",
        f"the key {show(key.text)} is {value.why or value.kind.value}, not a word",
        key,
        help=f'"{key.text}": … if it is meant as a word' if key.text else "write the key's name",
    )
    return False


def _remember(
    draft: Draft, prefix: str, entries: MappingType[str, tuple[Scalar, Node]], problems: Problems
) -> None:
    for name, (key, value) in entries.items():
        path = f"{prefix}.{name}" if prefix else name
        draft.places[path] = problems.at(value)
        draft.keys[path] = problems.at(key)


def _scalar(
    node: Node, name: str, problems: Problems, *, text: bool = False
) -> scalars.Value | None:
    """Read a single value; report it and return ``None`` if it is none, or an unclear one."""
    if node.broken:
        return None
    if not isinstance(node, Scalar):
        _wrong_kind(node, name, "a single value", problems)
        return None
    value = scalars.read(node)
    if value.kind is scalars.Kind.UNCLEAR:
        problems.add(
            "KT122",
            f"{name}: {show(node.text)[1:-1]} is {value.why}",
            node,
            help=f'{name.rpartition(".")[2]}: "{node.text}"' if text else value.help or None,
        )
        return None
    return value


def _text(node: Node, name: str, problems: Problems, *, empty: bool = False) -> str | None:
    value = _scalar(node, name, problems, text=True)
    if value is None:
        return None
    if not isinstance(value.value, str):
        text = node.text if isinstance(node, Scalar) else ""
        help_ = f'"{text}" if the word is meant' if text else "give a value, or delete the line"
        problems.add("KT117", f"{name} must be text, but is {_written(node)}", node, help=help_)
        return None
    if not value.value.strip() and not empty:
        problems.add("KT117", f"{name} is empty", node, help="give a value, or delete the line")
        return None
    return value.value


def _boolean(node: Node, name: str, default: bool, problems: Problems) -> bool:
    if isinstance(node, Scalar) and not node.broken:
        word = scalars.word_boolean(node)
        if word is not None:
            problems.add(
                "KT122",
                f"{name}: {node.text} is a truth value only in YAML 1.1; it is read as "
                f"{str(word).lower()}",
                node,
                help=f"{name}: {str(word).lower()}",
                severity=Severity.WARNING,
            )
            return word
        value = scalars.read(node)
        if value.kind is scalars.Kind.BOOLEAN:
            return bool(value.value)
        meant = scalars.read(Scalar(node.text.strip().capitalize(), True, 0, 0))
        hint = default
        if meant.kind is scalars.Kind.BOOLEAN or isinstance(meant.value, bool):
            hint = bool(meant.value)
        elif node.text in {"0", "1"}:
            hint = node.text == "1"
        problems.add(
            "KT117",
            f"{name} must be true or false, but is {_written(node)}",
            node,
            help=f"{name}: {str(hint).lower()}",
        )
        return default
    _wrong_kind(node, name, "true or false", problems, help=f"{name}: {str(default).lower()}")
    return default


def _written(node: Node) -> str:
    """Return what stands there, with its type where the text alone would not tell."""
    if not isinstance(node, Scalar):
        return kind_name(node)
    value = scalars.read(node)
    if value.kind is scalars.Kind.TEXT:
        return f"the text {show(node.text)}"
    if value.kind is scalars.Kind.EMPTY:
        return f"empty ({node.text})" if node.text else "empty"
    return show(node.text)[1:-1]


def _wrong_kind(
    node: Node, name: str, wanted: str, problems: Problems, *, help: str | None = None
) -> None:
    if not node.broken:
        problems.add("KT117", f"{name} must be {wanted}, but is {_written(node)}", node, help=help)
