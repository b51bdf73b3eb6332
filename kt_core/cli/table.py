"""The commands of ``kt`` itself. Data only: a command's module is imported when it is called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Command:
    """Where a command lives. Its module has ``add_arguments(parser)`` and ``run(args) -> int``."""

    module: str
    summary: str


COMMANDS: Mapping[str, Command] = MappingProxyType(
    {
        "validate": Command("kt_core.cli.validate", "check rule files, all problems at once"),
        "schema": Command("kt_core.cli.schema", "print the JSON schema of rule files, for editors"),
        "docs": Command("kt_core.cli.docs", "show the documentation, offline"),
        "explain": Command("kt_core.cli.explain", "say more about an error code"),
        "plugins": Command("kt_core.cli.plugins", "list plugins and what they register"),
        "doctor": Command("kt_core.cli.doctor", "show what this machine and installation offer"),
        "plan": Command("kt_core.cli.plan", "show what would run where, without reading weights"),
        "inspect": Command("kt_core.cli.inspect", "show the metadata and tensors of a weight file"),
        "chat": Command("kt_core.cli.chat", "talk to a model"),
        "rules": Command("kt_core.cli.rules", "list, show, begin or modernise rule files"),
        "verify": Command("kt_core.cli.verify", "find the module that computes something wrong"),
        "bench": Command("kt_core.cli.bench", "measure how fast a model runs here"),
        "quantize": Command("kt_core.cli.quantize", "prepare experts for a kernel, once"),
        "new-plugin": Command("kt_core.cli.new_plugin", "write a plugin to start from"),
    }
)
