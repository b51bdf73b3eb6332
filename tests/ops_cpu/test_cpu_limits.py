"""The measured floors: by themselves, and beside the rows of ``kt bench --layer``."""

from __future__ import annotations

import json

import pytest

from kt_core.cli.main import main

pytest.importorskip("kt_ops_cpu.formats")

from kt_ops_cpu.library import native, set_variant, variant_names
from kt_ops_cpu.limits import measure_limits
from kt_ops_cpu.pool import ensure_pool


@pytest.mark.parametrize("name", variant_names(native()))
def test_limits_are_of_the_pool_and_the_variant(name, restore_variant):
    set_variant(name)
    limits = measure_limits(1 << 24, 2)
    assert limits.variant == name
    assert limits.threads == len(ensure_pool().node_of_thread)
    assert 0.1 < limits.read_gb_per_s < 1e5
    # Plain C has no one instruction to measure.
    assert (limits.int8_gops == 0) == (name == "c")
    assert set(limits.by_name()) == {"read_gb_per_s", "int8_gops"} - (
        {"int8_gops"} if name == "c" else set()
    )


@pytest.mark.parametrize("layer", ["experts", "linear"])
def test_bench_prints_them_beside_its_rows(layer, capsys):
    command = [
        *("bench", "--layer", layer, "--kernel", f"kt_ops_cpu.{layer}", "--experts", "4"),
        *(
            "--hidden",
            "256",
            "--inter",
            "256",
            "--top-k",
            "2",
            "--tokens",
            "1,9",
            "--seconds",
            "0.01",
        ),
    ]
    assert main([*command, "--format", "json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["floors"].keys() == measure_limits(1 << 20, 1).by_name().keys()
    assert all(value > 0 for value in result["floors"].values())
    assert [row["tokens"] for row in result["results"]] == [1, 9]
    assert main(command) == 0
    head, names, *rows = capsys.readouterr().out.splitlines()
    assert "GB/s" in head
    assert names.split() == ["tokens", "ms", "GOP/s", "of", "peak", "GB/s", "of", "read"]
    assert len(rows) == 2
    assert all(row.rstrip().endswith("%") for row in rows)
