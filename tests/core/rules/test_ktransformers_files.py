"""Rule files written for KTransformers: what is taken as it is, and what is said about the rest."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest

from kt_core.rules import check_file, check_text
from kt_core.rules.ktransformers import MODEL_CLASSES

CASES = tomllib.loads((Path(__file__).parent / "data" / "ktransformers.toml").read_text("utf-8"))
FOLDER = os.environ.get("KT_UPSTREAM_RULES")


@pytest.mark.parametrize("case", CASES["case"], ids=[case["id"] for case in CASES["case"]])
def test_peculiarity(case, registry):
    checked = check_text(case["text"], "rules.yaml", registry)
    printed = "\n".join(problem.render() for problem in checked.problems)
    found = [f"{p.code} {p.location.line}:{p.location.column}" for p in checked.problems]
    assert found == case["find"], printed
    for part in case.get("says", ()):
        assert part in printed


def kwargs_of(case_id, registry):
    text = next(case["text"] for case in CASES["case"] if case["id"] == case_id)
    ruleset = check_text(text, "rules.yaml", registry).ruleset
    assert ruleset is not None
    return ruleset.rules[0]


def test_layer_numbers_are_numbers_however_they_are_written(registry):
    rule = kwargs_of("numbers-as-keys-of-a-transfer-map", registry)
    assert rule.kwargs["transfer_map"] == {15: "cuda:1", 30: "cuda:2", 45: "cuda:3"}


def test_options_without_effect_are_not_handed_on(registry):
    assert kwargs_of("dumps-that-are-off", registry).kwargs == {"absorb_for_prefill": False}


def test_one_device_becomes_two(registry):
    rule = kwargs_of("one-device-of-a-model-wrapper", registry)
    assert rule.kwargs == {
        "per_layer_prefill_intput_threshold": 0,
        "generate_device": "xpu",
        "prefill_device": "xpu",
    }
    assert rule.place("replace.kwargs.generate_device").line == 5


def test_a_missing_class_means_default(registry):
    assert kwargs_of("replace-without-a-class", registry).replace_class == "default"


def test_every_model_class_has_its_counterpart():
    """Against transformers itself: the table is of no use once a class is renamed there."""
    pytest.importorskip("transformers")
    import importlib

    for theirs, ours in MODEL_CLASSES.items():
        for name in ours:
            module, _, cls = name.rpartition(".")
            assert hasattr(importlib.import_module(module), cls), theirs


@pytest.mark.skipif(FOLDER is None, reason="KT_UPSTREAM_RULES does not name KTransformers' rules")
def test_its_own_files():
    """Every finding on KTransformers' own 38 files was read against the file; these are the kinds."""
    from kt_core.operators import plugin as core
    from kt_core.registry.registry import Registry

    registry = Registry.of(core, environ={})
    files = sorted(Path(FOLDER or ".").rglob("*.yaml"))
    assert len(files) == 38
    codes = {"KT126": 0, "KT129": 0, "KT139": 0, "KT142": 0, "KT143": 0, "KT144": 0, "KT1": 0}
    for file in files:
        for problem in check_file(file, registry).problems:
            if problem.code in codes:
                codes[problem.code] += 1
            elif problem.code.startswith("KT1"):
                codes["KT1"] += 1
    # SmallThinker's dense block and the two rules for a kernel's class; two kernels called None;
    # the routers of Mixtral, Qwen2-MoE (3), Qwen3-MoE (2) and Qwen3-Next.
    assert codes == {
        "KT126": 2,
        "KT129": 3,
        "KT139": 2,
        "KT142": 1,
        "KT143": 7,
        "KT144": 2,
        "KT1": 0,
    }
