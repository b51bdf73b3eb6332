"""The one way in: a path of any kind becomes a proven source of tensors, or one coded error."""

from __future__ import annotations

import logging
import os
import stat

from kt_core.errors import WeightsError
from kt_core.weights.discover import find_model, note_ignored
from kt_core.weights.files import WeightFile, refuse_special, stat_path
from kt_core.weights.filesource import FileSource
from kt_core.weights.gguf_source import open_gguf
from kt_core.weights.gptq import read_quantised
from kt_core.weights.safetensors_source import INDEX_SUFFIX, open_safetensors
from kt_core.weights.sniff import FORMATS, looks_like, refuse_foreign
from kt_core.weights.text import error

logger = logging.getLogger(__name__)


def open_weights(
    path: str | os.PathLike[str],
    *,
    mmap: bool = True,
    strict: bool = False,
    format: str | None = None,
) -> FileSource:
    """Open a model's weights: headers are read and proven, tensors are not touched.

    Args:
        path: A GGUF or safetensors file, any part of a split set, a safetensors index, or a folder
            that holds exactly one model (GGUF wins over safetensors; what is ignored is noted).
        mmap: Map the files and hand out views. With ``False`` each tensor is read when asked for,
            which survives a file that another process cuts short.
        strict: Turn warnings (bytes after the last tensor) into errors.
        format: ``"gguf"`` or ``"safetensors"`` to choose, ``None`` to find out.

    Returns:
        The source, a context manager. Its ``problems`` hold warnings and notes; they are also
        logged.

    Raises:
        WeightsError: For everything that is wrong with the path or the files; nothing stays open.
    """
    name = os.fsdecode(path)
    if format not in (None, *FORMATS):
        raise error("KT441", name, f"format={format!r} is none of {', '.join(FORMATS)}")
    status = stat_path(name)
    found = None
    if stat.S_ISDIR(status.st_mode):
        found = find_model(name, format)
        file, kind = found.path, found.format
    else:
        refuse_special(name, status)
        file = name
        kind = format or _format_of(name)
    if kind == "gguf":
        source = open_gguf(file, mmap=mmap, strict=strict)
    else:
        source = read_quantised(open_safetensors(file, mmap=mmap))
    if found is not None:
        source.found_in(name, note_ignored(name, found, source.files))
    for problem in source.problems:
        if strict and problem.severity == "warning":
            source.close()
            raise WeightsError(problem)
        logger.log(
            logging.INFO if problem.severity == "note" else logging.WARNING, "%s", problem.render()
        )
    return source


def _format_of(path: str) -> str:
    if path.endswith(INDEX_SUFFIX):
        return "safetensors"
    file = WeightFile(path)
    try:
        found = looks_like(file)
        if found is None:
            refuse_foreign(file, None)
    finally:
        file.close()
    return found or "gguf"
