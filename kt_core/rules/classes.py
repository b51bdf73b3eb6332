"""Class names: compared as text, never imported.

``torch.nn.Linear`` is defined in ``torch.nn.modules.linear``. Packages re-export their classes to
parent packages, so a name matches a class when the class names are equal and the package named is
the defining module or one of its parents.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from kt_core.rules.ktransformers import MODEL_CLASSES

_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+\Z", re.ASCII)


def is_class_path(text: str) -> bool:
    """Whether ``text`` is a dotted name with at least one package."""
    return _PATH.match(text) is not None


def meant_by(name: str) -> tuple[str, ...]:
    """Return the classes that ``name`` stands for: itself, or what KTransformers copied it from."""
    return MODEL_CLASSES.get(name, (name,))


@lru_cache(maxsize=65536)
def names_class(name: str, qualified: str) -> bool:
    """Whether ``name``, as in ``match.class``, names the class defined as ``qualified``."""
    module, _, cls = name.rpartition(".")
    defined_in, _, defined = qualified.rpartition(".")
    return cls == defined and (defined_in == module or defined_in.startswith(module + "."))


def matches(match_class: str, class_names: Iterable[str]) -> bool:
    """Whether ``match_class`` names any class of a module's hierarchy, given as qualified names."""
    wanted = meant_by(match_class)
    return any(names_class(name, qualified) for qualified in class_names for name in wanted)
