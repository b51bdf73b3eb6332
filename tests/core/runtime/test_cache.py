"""The appending cache holds what transformers' own does, at every length."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache, LlamaConfig

from kt_core.models.hf_cache import AppendingLayer, appending_cache


@pytest.fixture
def caches():
    config = LlamaConfig(num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
    return appending_cache(config), DynamicCache(config=config)


def feed(caches, lengths):
    for length in lengths:
        for layer in range(2):
            keys, values = torch.randn(2, 1, 2, length, 8)
            results = [cache.update(keys, values, layer) for cache in caches]
            for ours, theirs in zip(*results, strict=True):
                assert torch.equal(ours, theirs)


def test_equal_to_the_concatenating_cache_over_growth(caches):
    feed(caches, [1, 3, 250, 1, 1, 1, 300, 1, 700, 1])
    assert caches[0].get_seq_length() == caches[1].get_seq_length() == 1259


def test_one_token_is_appended_without_a_copy(caches):
    ours, _ = caches
    assert all(isinstance(layer, AppendingLayer) for layer in ours.layers)
    feed(caches, [10])
    before = ours.layers[0].keys.data_ptr()
    feed(caches, [1])
    assert ours.layers[0].keys.data_ptr() == before


def test_cropping_and_resetting(caches):
    feed(caches, [20])
    for cache in caches:
        cache.crop(-5)
    feed(caches, [2])
    assert caches[0].get_seq_length() == 17
    for cache in caches:
        cache.reset()
    feed(caches, [4])


@pytest.mark.parametrize(
    "exchange",
    [
        lambda cache: cache.batch_repeat_interleave(2),
        lambda cache: cache.reorder_cache(torch.tensor([0])),
        lambda cache: [setattr(layer, "keys", layer.keys * 2) for layer in cache.layers],
        lambda cache: cache.crop(-20),
    ],
    ids=["repeated", "reordered", "replaced", "cropped to nothing"],
)
def test_keys_exchanged_from_outside_are_the_ones_continued(caches, exchange):
    feed(caches, [20])
    for cache in caches:
        exchange(cache)
    batch = caches[0].layers[0].keys.shape[0]
    keys, values = torch.randn(2, batch, 2, 1, 8)
    ours, theirs = (cache.update(keys, values, 0) for cache in caches)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
