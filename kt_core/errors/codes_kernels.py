"""KT50x: a kernel of the core was given something it cannot compute on."""

from __future__ import annotations

from kt_core.errors.codes import Code

CODES = (
    Code(
        "KT501",
        "An operator was given no weights",
        "The plan bound no tensor to a parameter that the operator needs. This is a mistake in the "
        "plan or in a plugin, not in the file.",
        "KT501 model.layers.0.mlp.up_proj was given no weights",
    ),
    Code(
        "KT502",
        "A weight has the wrong shape",
        "A kernel was built for one shape and loaded with another.",
        "KT502 lm_head needs a weight of [259, 64], got [64, 259]",
    ),
    Code(
        "KT503",
        "An expert does not exist",
        "A router chose an id outside the layer's experts. -1 adds nothing; every other id must be "
        "an expert's. Usually the router's logits were not finite.",
        "KT503 model.layers.0.mlp.experts was asked for expert 128\n"
        "  it has 128 experts, counted from 0",
    ),
    Code(
        "KT504",
        "The logits are not finite",
        "The model produced NaN or infinity, so no token can be chosen. Half precision may "
        "overflow in some layers; try --dtype float32, or keep the layers with class: default.",
        "KT504 the model's logits are not finite\n  49152 of 49152 are NaN\n"
        "  help: try --dtype float32",
    ),
)
