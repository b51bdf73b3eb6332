"""Values of a rule file: text, numbers, truth values, and the options below kwargs.

A value that is not what its key takes is reported here, with its place and its kind.
"""

from __future__ import annotations

from typing import Any

from kt_core.errors import Severity
from kt_core.rules import scalars
from kt_core.rules.draft import Draft
from kt_core.rules.fields import INTEGER_KEYS
from kt_core.rules.nodes import Mapping, Node, Scalar, Sequence, kind_name
from kt_core.rules.problems import Problems
from kt_core.rules.text import show


def scalar_of(
    node: Node, name: str, problems: Problems, *, text: bool = False
) -> scalars.Value | None:
    """Read a single value; report it and return ``None`` if it is none, or an unclear one."""
    if node.broken:
        return None
    if not isinstance(node, Scalar):
        wrong_kind(node, name, "a single value", problems)
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


def text_of(node: Node, name: str, problems: Problems, *, empty: bool = False) -> str | None:
    """Return the text of ``node``, or report it as ``name``; ``empty`` allows ``""``."""
    value = scalar_of(node, name, problems, text=True)
    if value is None:
        return None
    if not isinstance(value.value, str):
        text = node.text if isinstance(node, Scalar) else ""
        help_ = f'"{text}" if the word is meant' if text else "give a value, or delete the line"
        problems.add("KT117", f"{name} must be text, but is {written(node)}", node, help=help_)
        return None
    if not value.value.strip() and not empty:
        problems.add("KT117", f"{name} is empty", node, help="give a value, or delete the line")
        return None
    return value.value


def boolean_of(node: Node, name: str, default: bool, problems: Problems) -> bool:
    """Return whether ``node`` says true; if it says neither, report it and return ``default``."""
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
            f"{name} must be true or false, but is {written(node)}",
            node,
            help=f"{name}: {str(hint).lower()}",
        )
        return default
    wrong_kind(node, name, "true or false", problems, help=f"{name}: {str(default).lower()}")
    return default


def written(node: Node) -> str:
    """Return what stands there, with its type where the text alone would not tell."""
    if not isinstance(node, Scalar):
        return kind_name(node)
    value = scalars.read(node)
    if value.kind is scalars.Kind.TEXT:
        return f"the text {show(node.text)}"
    if value.kind is scalars.Kind.EMPTY:
        return f"empty ({node.text})" if node.text else "empty"
    return show(node.text)[1:-1]


def wrong_kind(
    node: Node, name: str, wanted: str, problems: Problems, *, help: str | None = None
) -> None:
    """Report that ``name`` is not ``wanted``, unless more has been said about it already."""
    if not node.broken:
        problems.add("KT117", f"{name} must be {wanted}, but is {written(node)}", node, help=help)


def key_is_text(key: Scalar, problems: Problems) -> bool:
    """Report a key that YAML does not read as text."""
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


class KwargsReader:
    """Turns the nodes below ``kwargs`` into plain data and notes where each piece stands."""

    def __init__(self, draft: Draft, problems: Problems) -> None:
        self.draft = draft
        self.problems = problems
        self.failed = False

    def read(self, node: Node, path: str, name: str) -> Any:
        """Return the value below ``node``, which stands at ``path`` and is called ``name``."""
        self.draft.places[path] = self.problems.at(node)
        if isinstance(node, Sequence):
            return [
                self.read(item, f"{path}.{i}", f"{name}[{i}]") for i, item in enumerate(node.items)
            ]
        if isinstance(node, Mapping):
            return self._mapping(node, path, name)
        value = scalar_of(node, name, self.problems)
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
            elif key_is_text(key, self.problems):
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
