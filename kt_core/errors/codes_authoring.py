"""KT74x and KT59x: what authors of plugins meet."""

from __future__ import annotations

from kt_core.errors.codes import Code

CODES = (
    Code(
        "KT222",
        "A file of kt itself is missing",
        "A data file that belongs to kt-core is not where it was installed. The installation is "
        "damaged; install it again.",
        "KT222 the template of kt new-plugin lacks common/pyproject.toml\n"
        "  help: pip install --force-reinstall kt-core",
    ),
    Code(
        "KT223",
        "A command of a plugin failed",
        "Plugins may add commands to kt. This one could not be imported, or failed in a way that its "
        "authors did not foresee. It is a fault in the plugin named, not in kt; update the plugin, and "
        "report it to its authors with what KT_DEBUG=1 shows.",
        "KT223 kt tune, a command of kt-toy 1.0, failed: ZeroDivisionError: division by zero\n"
        "  help: pip install --upgrade kt-toy; KT_DEBUG=1 shows where it failed",
    ),
    Code(
        "KT590",
        "An operator or kernel returned something of the wrong shape",
        "What a plugin puts into the model must return what the module in its place returned: the "
        "same shape and dtype. The first calls of each phase are checked; this one was wrong. It is "
        "a mistake in the plugin named, which its authors find with kt_core.testing. Until it is "
        "corrected name another operator or kernel for the module.",
        "KT590 kt_toy.linear of kt-toy 1.0 returned [5, 64] for model.layers.0.mlp.up_proj, not "
        "[5, 96]\n"
        "  help: pip install --upgrade kt-toy, or name another kernel for this module",
    ),
    Code(
        "KT591",
        "The native library of a plugin cannot be loaded",
        "A plugin's compiled part is missing, damaged, or belongs to another version of its Python "
        "part. Install the plugin again.",
        "KT591 the native library of kt-toy cannot be loaded\n"
        "  ImportError: cannot import name '_native' from 'kt_toy'\n"
        "  help: pip install --force-reinstall kt-toy",
    ),
    Code(
        "KT592",
        "A plugin's kernel does not compute this",
        "The kernel was given something that it does not support: an activation, biases, a dtype. "
        "kt never falls back to another kernel on its own; name one that computes it.",
        "KT592 model.layers.0.mlp.experts: kt-toy computes SiLU without biases\n"
        "  this layer has the activation swiglu_oai\n"
        "  help: name another kernel for this model, such as kt_core.torch_experts",
    ),
    Code(
        "KT740",
        "A plugin cannot have this name",
        "The name is a distribution's: letters, digits, dots, underscores and hyphens, and what "
        "Python imports follows from it. Names of kt's own distributions, of the standard library "
        "and of packages that kt works with are taken.",
        'KT740 a plugin cannot be called "kt-core-extra": the names of kt-core belong to kt itself\n'
        "  help: begin with a letter and use letters, digits and hyphens, such as kt-toy",
    ),
    Code(
        "KT741",
        "There is no such template",
        "kt new-plugin knows some kinds of plugins in some languages; the message lists them. What "
        "is missing can be written by hand from the nearest one.",
        "KT741 there is no template for --kind rules --native c\n"
        "  --kind linear: none, c, cuda, triton\n"
        "  help: --kind rules --native none",
    ),
    Code(
        "KT742",
        "The folder is not free",
        "kt new-plugin writes into a new or empty folder and overwrites nothing.",
        "KT742 kt-toy exists already; kt new-plugin overwrites nothing\n"
        "  help: choose another folder: --output DIR",
    ),
)
