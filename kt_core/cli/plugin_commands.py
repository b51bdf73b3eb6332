"""Commands that plugins add to ``kt``, looked up when a word is none of kt's own."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from kt_core.errors import KtError, PluginError

if TYPE_CHECKING:
    from kt_core.registry.records import PluginRecord
    from kt_core.registry.registry import Registry


def run_plugin_command(word: str, argv: list[str], verbosity: int) -> int:
    """Run the command ``word`` of an installed plugin and return its exit code.

    Raises:
        UsageError: KT701 if no plugin has it.
        PluginError: the plugin that has it is refused (its own code), or fails (KT223).
    """
    from kt_core.cli.main import Command, run_module, unknown_command
    from kt_core.registry.registry import default_registry

    registry = default_registry()
    commands = registry.commands()
    if word not in commands:
        raise _refused(registry, word) or unknown_command(word, tuple(commands))
    spec, record = commands[word]

    def load(name: str) -> Any:
        try:
            module = importlib.import_module(name)
        except Exception as error:
            raise _failed(word, record, f"{name} cannot be imported: {_said(error)}") from error
        missing = [part for part in ("add_arguments", "run") if not hasattr(module, part)]
        if missing:
            raise _failed(word, record, f"{name} has no {' and no '.join(missing)}")
        return module

    command = Command(spec.module, spec.summary)
    try:
        return run_module(load, command, argv, prog=f"kt {word}", verbosity=verbosity)
    except (KtError, BrokenPipeError):
        raise
    except Exception as error:
        raise _failed(word, record, _said(error)) from error


def _refused(registry: Registry, word: str) -> PluginError | None:
    """Return why the plugin that would bring ``word`` is refused, if there is one."""
    for record in registry.plugins:
        problem = record.problem() if word in record.claims else None
        if problem is not None:
            return PluginError(problem)
    return None


def _failed(word: str, record: PluginRecord, reason: str) -> PluginError:
    return PluginError(
        PluginError.of(
            "KT223",
            f"kt {word}, a command of {record.label}, failed: {reason}",
            help=f"pip install --upgrade {record.distribution}; KT_DEBUG=1 shows where it failed",
        ).problems
    )


def _said(error: Exception) -> str:
    from kt_core.registry.isolated import describe

    return describe(error)
