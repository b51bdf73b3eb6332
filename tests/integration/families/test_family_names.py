"""Names in both directions, on a real file of every family."""

from __future__ import annotations

import pytest

from kt_core.models.family import family_for_gguf
from kt_core.weights import open_weights

from .gguf_of_model import write_gguf
from .tiny_models import CASES

# Made by the converter, of no parameter.
EXTRA = ("rope_freqs.weight",)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_parameter_has_stored_names_and_every_stored_name_its_parameter(case, tmp_path):
    model = case.build()
    write_gguf(model, tmp_path / "tiny.gguf", case.gguf, style=case.style)
    layers = model.config.num_hidden_layers
    parameters = set(model.state_dict())
    with open_weights(tmp_path / "tiny.gguf") as source:
        family = family_for_gguf(source.metadata, source.tensors, source.path)
        for name in parameters:
            assert family.gguf_names(name, layers), name
        back = family.hf_names(parameters, layers)
        for stored in source.tensors:
            if stored in EXTRA or ".nextn." in stored or case.style.experts != "stacked":
                continue
            assert back[stored] in parameters
            assert stored in family.gguf_names(back[stored], layers)
