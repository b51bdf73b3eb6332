"""The plugin is installed and found, and nothing is wrong with it."""

from __future__ import annotations

from kt_core.registry.registry import default_registry


def test_the_plugin_is_ready():
    record = next(r for r in default_registry().plugins if r.name == "kt_plugin_template")
    assert record.state == "ready", record.problem()
    assert not record.notes
