"""The page of the 61-layer DeepSeek-V3 in headless Chromium: quick, and its search finds things."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

from kt_core.plan.build import make_plan
from kt_core.plan_page import plan_page
from kt_core.rules import load_rules

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
SECONDS = 2.0
"""A page that takes longer to open is too large. Starting the browser itself is not counted."""

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")


def chromium(profile, address, *options):
    """Open ``address`` and return the document as it then stands, and the seconds it took."""
    begin = time.monotonic()
    done = subprocess.run(
        [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            f"--user-data-dir={profile}", "--dump-dom", *options, address,
        ],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout, time.monotonic() - begin


@pytest.fixture(scope="module")
def page(tmp_path_factory, repository, all_distributions) -> Path:
    import torch

    from kt_core.models.hf import config_from_values, skeleton_model

    # transformers' default configuration of DeepSeek-V3 is that of the published model.
    config = config_from_values("deepseek_v3", ("DeepseekV3ForCausalLM",), {})
    assert (config.num_hidden_layers, config.n_routed_experts) == (61, 256)
    plan = make_plan(
        skeleton_model(config, torch.bfloat16),
        load_rules(repository / "rules/deepseek_v3/multi-gpu-4.yaml", all_distributions),
        registry=all_distributions,
        default_device="cuda:0",
        assume_devices=[f"cuda:{number}" for number in range(4)],
    )
    assert not plan.errors
    assert len(plan.modules) > 1000
    file = tmp_path_factory.mktemp("page") / "plan.html"
    file.write_text(plan_page(plan), encoding="utf-8")
    assert file.stat().st_size < 200_000
    return file


def shown(document):
    """Paths of the rows that a filter left, with the numbers they stand for."""
    rows = re.findall(r'<details class="n( off)?" data-p="([^"]*)" data-n="([^"]*)"', document)
    return {path: numbers for off, path, numbers in rows if not off}


def test_it_opens_quickly(page, tmp_path):
    blank = min(chromium(tmp_path / f"b{n}", "about:blank")[1] for n in range(2))
    whole = min(chromium(tmp_path / f"p{n}", page.as_uri())[1] for n in range(2))
    assert whole - blank < SECONDS, f"{whole:.2f} s in all"


def test_the_search_finds_a_member_of_a_folded_list(page, tmp_path):
    document, _ = chromium(tmp_path / "profile", f"{page.as_uri()}#find=layers.37.mlp.experts")
    rows = shown(document)
    assert rows["model.layers.30"] == "30-44"
    assert "model.layers.30.mlp.experts" in rows
    assert "model.layers.3" not in rows
    assert "lm_head" not in rows
    assert "1 found" in document


def test_the_search_finds_classes(page, tmp_path):
    document, _ = chromium(tmp_path / "profile", f"{page.as_uri()}#find=topkrouter")
    assert set(shown(document)) >= {"model.layers.3.mlp.gate", "model.layers.45.mlp.gate"}
    assert "4 found" in document


def test_only_the_pages_own_script_runs_and_the_page_is_whole_without_it(page, tmp_path):
    with_script, _ = chromium(tmp_path / "a", page.as_uri())
    assert '<div class="tools">' in with_script
    other = tmp_path / "other.html"
    other.write_text(page.read_text().replace('"use strict";', '"use strict"; /* changed */'))
    without, _ = chromium(tmp_path / "b", other.as_uri())
    assert '<div class="tools" hidden="">' in without
    assert shown(without) == shown(with_script)
