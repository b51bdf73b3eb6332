"""What the documentation site is built with besides MkDocs: the pages that are generated.

Their text comes from the installed kt, so that a page cannot say something else than the program.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from kt_core.registry.registry import Registry

ROOT = Path(__file__).resolve().parent


def all_distributions() -> Registry:
    """A registry of every distribution in this checkout, whether or not it is built here.

    Plugins register data only, so their modules can be read without the compiled parts.
    """
    modules = [importlib.import_module("kt_core.operators.plugin")]
    for folder in sorted(ROOT.glob("kt_ops_*/kt_ops_*/plugin.py")):
        package = folder.parent.name
        try:
            modules.append(importlib.import_module(f"{package}.plugin"))
        except ModuleNotFoundError:
            sys.modules.pop(package, None)
            sys.path.append(str(folder.parent.parent))
            modules.append(importlib.import_module(f"{package}.plugin"))
    return Registry.of(*modules, environ={})
