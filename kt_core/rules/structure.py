"""The shape of a rule file: which keys stand where, and what their values are.

Reports every departure with the key or value at fault, and keeps going with what is sound, so that
one slip does not hide the next.
"""

from __future__ import annotations

from collections.abc import Mapping as MappingType
from typing import Any

from kt_core.errors import Severity
from kt_core.rules import scalars
from kt_core.rules.draft import Document, Draft
from kt_core.rules.fields import FILE, MATCH, REPLACE, RULE, STRAYS, Shape
from kt_core.rules.limits import MAX_KWARGS_NODES, MAX_PATTERN, MAX_RULES
from kt_core.rules.model import DEFAULT
from kt_core.rules.nodes import Mapping, Node, Scalar, Sequence, count
from kt_core.rules.problems import Problems
from kt_core.rules.suggest import did_you_mean
from kt_core.rules.text import bare, listed, show
from kt_core.rules.values import (
    KwargsReader,
    boolean_of,
    key_is_text,
    scalar_of,
    text_of,
    written,
    wrong_kind,
)


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
        document.description = text_of(entries["description"][1], "description", problems) or ""
    if "rules" in entries:
        value = entries["rules"][1]
        if isinstance(value, Sequence):
            _rules(value, document, problems)
        else:
            wrong_kind(value, "rules", "a list", problems, help='begin each rule with "- match:"')


def _version(node: Node, problems: Problems) -> None:
    value = scalar_of(node, "version", problems)
    if value is not None and (value.kind is not scalars.Kind.INTEGER or value.value != 1):
        problems.add(
            "KT119",
            f"version must be 1, not {written(node)}",
            node,
            facts=["1 is the only version of this format"],
            help="version: 1",
        )


def _architectures(node: Node, problems: Problems) -> tuple[str, ...]:
    if not isinstance(node, Sequence):
        example = node.text if isinstance(node, Scalar) and node.text else "LlamaForCausalLM"
        wrong_kind(
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
        name = text_of(item, "an architecture", problems)
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
        wrong_kind(node, f"rule {index + 1}", "a mapping", problems, help="- match: {name: …}")
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
        draft.recursive = boolean_of(entries["recursive"][1], "recursive", True, problems)
    if "continue" in entries:
        draft.continue_ = boolean_of(entries["continue"][1], "continue", False, problems)
    return draft


def _match(node: Node, draft: Draft, problems: Problems) -> None:
    if not isinstance(node, Mapping):
        wrong_kind(
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
        draft.name = text_of(entries["name"][1], "match.name", problems, empty=True)
    if "class" in entries:
        draft.match_class = text_of(entries["class"][1], "match.class", problems)
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
        wrong_kind(
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
        draft.replace_class = text_of(entries["class"][1], "replace.class", problems)
    draft.kwargs = {}
    if "kwargs" in entries:
        draft.kwargs = _kwargs(entries["kwargs"], draft, problems)


def _kwargs(entry: tuple[Scalar, Node], draft: Draft, problems: Problems) -> dict[str, Any] | None:
    _, node = entry
    if not isinstance(node, Mapping):
        wrong_kind(
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
    reader = KwargsReader(draft, problems)
    value = reader.read(node, "replace.kwargs", "kwargs")
    return value if isinstance(value, dict) else None


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
    if not key_is_text(key, problems):
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
    meant = None if problems.full else did_you_mean(key.text, shape.keys)
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


def _remember(
    draft: Draft, prefix: str, entries: MappingType[str, tuple[Scalar, Node]], problems: Problems
) -> None:
    for name, (key, value) in entries.items():
        path = f"{prefix}.{name}" if prefix else name
        draft.places[path] = problems.at(value)
        draft.keys[path] = problems.at(key)
