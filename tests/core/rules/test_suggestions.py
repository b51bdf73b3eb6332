"""Did you mean: near words are found, far ones are not."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kt_core.rules.suggest import did_you_mean, distance, nearest

KEYS = ["match", "replace", "recursive", "continue", "class", "kwargs", "name"]


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("recusive", "recursive"),
        ("Replace", "replace"),
        ("clas", "class"),
        ("klass", "class"),
        ("kwarg", "kwargs"),
        ("nmae", "name"),
        ("contineu", "continue"),
        ("mtach", "match"),
        ("zebra", None),
        ("", None),
        ("m", None),
        ("x" * 1000, None),
    ],
)
def test_keys(word, meant):
    assert did_you_mean(word, KEYS) == meant


def test_dotted_names_are_found_by_their_last_part():
    names = [
        "kt_core.Linear",
        "kt_core.Experts",
        "ktransformers.operators.linear.KTransformersLinear",
    ]
    assert did_you_mean("kt_core.Liner", names) == "kt_core.Linear"
    assert did_you_mean("kt_cor.Linear", names) == "kt_core.Linear"
    assert did_you_mean("somewhere.else.KTransformerLinear", names) == names[2]
    assert did_you_mean("os.system", names) is None


def test_the_nearest_come_first():
    assert nearest("layer", ["lawyer", "player", "layers", "sky"], 2) == ["lawyer", "player"]
    assert nearest("x" * 500, ["x"], 3) == []


@given(st.text("abc", max_size=7), st.text("abc", max_size=7))
def test_the_distance_is_one(a, b):
    far = 20
    assert distance(a, a, far) == 0
    assert distance(a, b, far) == distance(b, a, far)
    assert abs(len(a) - len(b)) <= distance(a, b, far) <= max(len(a), len(b))
    assert (distance(a, b, far) == 0) is (a == b)
    assert distance(a + "c", b + "c", far) <= distance(a, b, far)


def test_a_swap_counts_once():
    assert distance("nmae", "name", 3) == 1


def test_many_long_candidates_take_little():
    candidates = [f"ktransformers.operators.experts.KDeepseekV{i}MoE" for i in range(3000)]
    start = time.process_time()
    assert did_you_mean("ktransformers.operators.experts.KDeepseekV2999Moe", candidates)
    assert time.process_time() - start < 5
