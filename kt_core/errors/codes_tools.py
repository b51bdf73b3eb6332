"""KT360, KT737: kt verify. KT738, KT739: kt rules."""

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
    Code(
        "KT738",
        "There is no such rule file",
        "kt rules list names the files that came with kt and its plugins. A file is called by its "
        "folder and variant, such as qwen3_moe/hybrid.",
        'KT738 there is no rule file "qwen3_moe/hybird"\n  help: did you mean qwen3_moe/hybrid?',
    ),
    Code(
        "KT739",
        "A rule file cannot be written there",
        "kt rules writes new files only, so that no work of yours is lost.",
        "KT739 rules.yaml is there already\n  help: name another file, or delete that one",
    ),
)
