"""Which models are not tried again as a captured graph."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from kt_core.runtime import decode


@pytest.mark.parametrize(
    ("cause", "remembered"), [(None, True), (torch.OutOfMemoryError("full"), False)]
)
def test_a_prompt_that_did_not_fit_says_nothing_of_the_next(monkeypatch, cause, remembered):
    def refuse(model, cache):
        raise decode.Unsuitable("no") from cause

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(decode, "graph_device", refuse)
    model = nn.Linear(1, 1)
    assert isinstance(decode.decoder_for(model, None, 1), decode.StepDecoder)
    assert (model in decode._refused) is remembered
