"""What kt-plugin-template registers: rule files, and nothing that is computed."""

from __future__ import annotations

from collections.abc import Iterable

from kt_core import hookimpl

KT_PLUGIN_API = 1


@hookimpl
def kt_register_rules() -> Iterable[str]:
    """Return the rule files; ``kt chat --rules kt_plugin_template`` finds this one by its name."""
    return ["kt_plugin_template:rules/kt_plugin_template.yaml"]
