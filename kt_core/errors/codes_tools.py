"""KT360, KT737: kt verify."""

from __future__ import annotations

from kt_core.errors.codes import Code

CODES = (
    Code(
        "KT360",
        "A parameter cannot be verified",
        "kt verify reads the weight file a second time, in a way of its own, to hold every module "
        "against. It does not know how this parameter is stored, and the model's adapter does not "
        "give it by itself either, so the module that needs it cannot be built.",
        "KT360 there is nothing to hold model.layers.0.mixer.A against\n"
        "  neither kt's second reading of the file nor the adapter finds its values\n"
        "  help: the table of names is in kt_core/verify/truth.py; report the architecture",
    ),
    Code(
        "KT737",
        "The prompt of kt verify is too short",
        "At least two tokens make a prompt, and further ones are run one by one, so that both "
        "phases are seen.",
        "KT737 the prompt has 3 tokens; 6 are needed\n"
        "  help: give a longer one with --prompt, or decode less: --decode 1",
    ),
)
