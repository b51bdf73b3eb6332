"""The page of the 61-layer DeepSeek-V3 in headless Chromium: quick, searchable, usable by keyboard."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from kt_core.plan.build import make_plan
from kt_core.plan_page import plan_page
from kt_core.rules import load_rules

SECONDS = 2.0
"""A page that takes longer to open is too large."""

FOCUS = "document.activeElement.parentElement.dataset.p"


@pytest.fixture(scope="module")
def file(tmp_path_factory, repository, all_distributions) -> Path:
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


@pytest.fixture
def page(browser, file):
    """The page, opened anew."""
    browser.open("about:blank")
    browser.open(file.as_uri())
    return browser


def shown(browser):
    """Paths of the rows that can be seen, with the numbers they stand for."""
    rows = browser.run(
        "[...document.querySelectorAll('details.n')]"
        ".filter((n) => n.firstElementChild.checkVisibility())"
        ".map((n) => [n.dataset.p, n.dataset.n])"
    )
    return dict(rows)


def search(browser, text):
    browser.run(f"location.hash = '#find={text}'")
    browser.run("window.dispatchEvent(new HashChangeEvent('hashchange'))")
    return shown(browser)


def test_it_opens_quickly_and_asks_for_nothing_else(browser, file, tmp_path):
    browser.open("about:blank")
    seconds = browser.open(file.as_uri())
    assert browser.requests == [file.as_uri()]
    drawn = browser.run("performance.getEntriesByType('navigation')[0].duration") / 1000
    assert max(seconds, drawn) < SECONDS, f"{seconds:.2f} s, {drawn:.2f} s"
    assert len(browser.picture()) > 20_000


def test_the_heaviest_modules_are_open_at_first(page):
    rows = shown(page)
    assert rows[""] == ""
    assert rows["model.layers.30"] == "30-44"
    assert "model.layers.45.mlp.experts" in rows
    assert "model.layers.3.mlp" not in rows


def test_the_search_finds_a_member_of_a_folded_list(page):
    rows = search(page, "layers.37.mlp.experts")
    assert list(rows) == [
        "",
        "model",
        "model.layers",
        "model.layers.30",
        "model.layers.30.mlp",
        "model.layers.30.mlp.experts",
    ]
    assert page.run("document.getElementById('found').textContent") == "1 found"


def test_the_search_finds_classes_and_nothing_leaves_nothing(page):
    rows = search(page, "topkrouter")
    assert {"model.layers.3.mlp.gate", "model.layers.45.mlp.gate"} <= set(rows)
    assert "lm_head" not in rows
    assert search(page, "no-such-thing") == {}
    assert page.run("document.getElementById('found').textContent") == "0 found"


def test_typing_searches_and_escape_ends_it(page):
    before = shown(page)
    page.press("/")
    assert page.run("document.activeElement.id") == "find"
    page.press(*"lm_head")
    page.run("document.getElementById('find').dispatchEvent(new Event('input'))")
    page.send(
        "Runtime.evaluate", expression="new Promise(r => setTimeout(r, 200))", awaitPromise=True
    )
    assert set(shown(page)) == {"", "lm_head"}
    page.press("Escape")
    assert shown(page) == before


def test_devices_and_kernels_filter(page):
    click = "document.querySelector('button[data-f={}]').click()"
    page.run(click.format("D2"))  # cuda:1
    rows = set(shown(page))
    assert "model.layers.15" in rows
    assert not rows & {"model.layers.3", "model.layers.45", "lm_head"}
    page.run(click.format("K1"))  # kt_ops_cpu.experts: no module has both
    assert shown(page) == {}
    page.run(click.format("D2"))
    assert "model.layers.30.mlp.experts" in shown(page)


def test_the_keyboard_walks_the_tree(page):
    page.run("document.querySelector('details.n > summary').focus()")
    page.press("ArrowDown")
    assert page.run(FOCUS) == "model"
    page.press("ArrowDown")
    assert page.run(FOCUS) == "model.embed_tokens"
    assert "model.layers.0.mlp" not in shown(page)
    page.run("document.querySelector('details[data-p=\"model.layers.0\"] > summary').focus()")
    page.press("ArrowRight")
    assert "model.layers.0.mlp" in shown(page)
    page.press("ArrowRight")
    assert page.run(FOCUS).startswith("model.layers.0.")
    page.press("ArrowLeft", "ArrowLeft")
    assert page.run(FOCUS) == "model.layers.0"
    assert "model.layers.0.mlp" not in shown(page)


def test_it_is_dark_where_the_system_is(page):
    ground = "getComputedStyle(document.body).backgroundColor"
    page.media(prefers_color_scheme="light")
    light = page.run(ground)
    page.media(prefers_color_scheme="dark")
    assert page.run(ground) != light
    page.media()


def test_only_its_own_script_runs_and_the_page_is_whole_without(browser, file, tmp_path):
    browser.open(file.as_uri())
    before = shown(browser)
    assert browser.run("document.querySelector('.tools').hidden") is False
    other = tmp_path / "other.html"
    other.write_text(file.read_text().replace('"use strict";', '"use strict"; /* changed */'))
    browser.open(other.as_uri())
    assert browser.run("document.querySelector('.tools').hidden") is True
    assert shown(browser) == before
