"""Hyperparameters: whatever is wrong with a key is one coded error that names it."""

from __future__ import annotations

import numpy as np
import pytest

from kt_core.errors import WeightsError
from kt_core.models.metadata import Metadata


def metadata(**values):
    return Metadata({f"toy.{key}": value for key, value in values.items()}, "toy", "toy.gguf")


@pytest.mark.parametrize("decimal", [1e-6, 1e-5, 0.707, 2.5, 1e6, 32.0, 0.1])
def test_numbers_come_back_as_they_were_written(decimal):
    assert metadata(x=float(np.float32(decimal))).number("x") == decimal


def test_a_double_keeps_its_digits():
    assert metadata(x=0.1 + 0.2).number("x") == 0.1 + 0.2


@pytest.mark.parametrize("value", [True, "7", 7.0, -1, 0, 1 << 40, [7]])
def test_a_count_is_a_sane_whole_number(value):
    with pytest.raises(WeightsError, match=r'KT461 toy.gguf: "toy.x"'):
        metadata(x=value).count("x")


@pytest.mark.parametrize("value", [True, "1", 0.0, -1.0, float("inf"), float("nan")])
def test_a_number_is_positive_and_finite(value):
    with pytest.raises(WeightsError, match="KT461"):
        metadata(x=value).number("x")


def test_a_choice_is_one_of_the_known_numbers():
    known = {1: "softmax", 2: "sigmoid"}
    assert metadata(x=2).choice("x", known, "softmax") == "sigmoid"
    assert metadata().choice("x", known, "softmax") == "softmax"
    with pytest.raises(WeightsError, match=r"KT461.*1 \(softmax\), 2 \(sigmoid\)"):
        metadata(x=3).choice("x", known, "softmax")


def test_an_absent_key_is_named():
    with pytest.raises(WeightsError, match=r'KT460 toy.gguf has no "toy.x"'):
        metadata().count("x")
