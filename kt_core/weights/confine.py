"""Companion files: the other parts of a set, looked up by plain names in one folder only."""

from __future__ import annotations

import os

from kt_core.weights.text import error, printable


def companion(folder: str, name: str, *, named_by: str, opened: str | None = None) -> str:
    """Return the path of ``name`` in ``folder``; refuse whatever leads outside it.

    ``named_by`` is the file that names it, ``opened`` the path the user gave. A symbolic link is
    followed if it stays in the folder, if it points into the folder that ``opened`` itself points
    into (the user chose that file), or if both are those of the Hugging Face cache, whose
    ``snapshots/<revision>/`` hold links into ``blobs/``. Raises ``WeightsError`` KT424.
    """
    if not is_plain_name(name):
        raise error(
            "KT424",
            named_by,
            f'names the part "{printable(name)}", which is not a plain file name',
            help="parts of a set lie beside each other in one folder",
        )
    path = os.path.join(folder, name)
    if not os.path.islink(path):
        return path
    target = os.path.realpath(path)
    allowed = [os.path.realpath(folder)]
    if opened is not None:
        allowed.append(os.path.dirname(os.path.realpath(opened)))
    snapshots, _ = os.path.split(allowed[0])
    if os.path.basename(snapshots) == "snapshots":
        allowed.append(os.path.join(os.path.dirname(snapshots), "blobs"))
    if os.path.dirname(target) not in allowed:
        raise error(
            "KT424",
            named_by,
            f'the part "{printable(name)}" is a link that leads outside the folder',
            facts=(f"it leads to: {printable(target)}",),
            help="put the file itself beside the other parts",
        )
    return path


def is_plain_name(name: str) -> bool:
    """Whether ``name`` is one component of a path and can be printed."""
    return (
        name.isprintable()
        and name not in ("", ".", "..")
        and not any(c in name for c in ("/", "\\", ":"))
    )
