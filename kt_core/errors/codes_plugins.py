"""KT2xx: plugins and the installation."""

from __future__ import annotations

from kt_core.errors.codes import Code

CODES = (
    Code(
        "KT210",
        "A distribution of kt is needed and not installed",
        "A rule names an operator or kernel that one of kt's own operator distributions brings,"
        " and that distribution is not installed in this environment. kt never falls back to "
        "another kernel on its own, since the result would be slower or different without a "
        "word. Install the distribution with the line shown, or name an operator that is "
        "registered (kt plugins lists them). KTransformers' names are known here too: "
        "KLinearMarlin, for example, is in kt-ops-cuda.",
        'rules/deepseek_v3/amd.yaml:13:12: KT210 "kt_ops_amd_blis.moe_int8" needs the '
        "distribution kt-ops-amd-blis, which is not installed\n"
        "  installed: kt-core 0.1.0, kt-ops-cpu 0.1.0\n"
        "  help: pip install kt-ops-amd-blis",
    ),
    Code(
        "KT211",
        "A plugin is broken",
        "A plugin is installed, but its registration module cannot be imported, one of its "
        "hooks fails or is no hook at all (misspelt, or with arguments that the hook does not "
        "have), or what it registers breaks a rule: names must start with the plugin's own "
        "package, targets are written package.module:Class, schemas must be well-formed and "
        "safe. Such a plugin registers nothing, and every other plugin works as before. Update "
        "or reinstall the distribution named, or remove it.",
        'KT211 plugin "toy" (kt-toy 1.0) is broken: importing kt_toy.plugin failed: '
        "ModuleNotFoundError: No module named 'toylib'\n"
        "  raised at /venv/lib/python3.11/site-packages/kt_toy/plugin.py:3\n"
        "  help: pip install --force-reinstall kt-toy, or remove it",
    ),
    Code(
        "KT212",
        "A plugin speaks another plugin API",
        "A plugin states in KT_PLUGIN_API which version of kt's plugin interface it was written"
        " for, and this kt-core speaks another one; or it states none. Loading it anyway could "
        "call hooks with the wrong meaning. Bring the two together: update whichever is older.",
        'KT212 plugin "toy" (kt-toy 3.0) is incompatible: kt-toy 3.0 speaks plugin API 2; '
        "kt-core 0.1.0 speaks plugin API 1\n"
        "  help: pip install --upgrade kt-core, or a release of kt-toy for plugin API 1",
    ),
    Code(
        "KT213",
        "Two distributions claim the same name",
        "Two distributions register the same operator, kernel, alias or plugin name, one "
        "distribution is installed in two versions, or a plugin claims a name that belongs to "
        "kt's own distributions. Which of them a rule gets must not depend on the order in "
        "which they are found, so neither is used; the core and kt's own distributions keep "
        "what is theirs. Uninstall one of the two, or leave one out with KT_PLUGINS.",
        'KT213 plugin "fast" (kt-fast 1.0) is duplicate: the kernel name "FastLinear" is '
        "registered by kt-fast 1.0 and by kt-quick 0.3\n"
        "  help: pip uninstall kt-fast, or leave one of the two out with KT_PLUGINS",
    ),
    Code(
        "KT214",
        "An operator or kernel cannot run here",
        "The operator or kernel is installed, but its probe says that it cannot run on this "
        "machine or on the device named: an instruction set, a library or a GPU is missing. "
        "Each reason is shown on a line of its own. Do what the help line says, or name another"
        " kernel or device; kt doctor shows the probes of all kernels.",
        "rules/deepseek_v3/amd.yaml:13:12: KT214 kt-ops-amd-blis 0.1.0 cannot run here: "
        '"kt_ops_amd_blis.moe_int8" on cpu\n'
        "  rejected: /opt/blis/lib/libblis.so.4 has no aocl_gemm_s8s8s32os32\n"
        "  help: point KT_BLIS_LIBRARY at a BLIS built with the aocl_gemm add-on",
    ),
    Code(
        "KT215",
        "A name is not registered",
        "A rule names an operator or kernel that no installed plugin registers as such. Names "
        "are looked up in the registry only: kt never imports a class because a rule file "
        "mentions it. Check the spelling against the list shown; a kernel goes into generate_op"
        " or prefill_op, an operator into class. If a plugin should bring the name, see kt "
        "plugins.",
        'my.yaml:4:12: KT215 "KLinearTroch" is not a registered kernel for linear\n'
        "  registered: kt_core.torch_linear\n"
        '  help: did you mean "KLinearTorch"?',
    ),
    Code(
        "KT216",
        "The class behind an operator or kernel cannot be loaded",
        "A plugin registers a name whose target turns out not to exist, not to be importable, "
        "not to be a class, or to lack methods that operators and kernels must have. The "
        "plugin's files are damaged or its registration is wrong. Reinstall the distribution; "
        "if that does not help, report it to its authors.",
        'KT216 "kt_toy.linear" of kt-toy 1.0 cannot be loaded from kt_toy.ops:Linear: '
        'kt_toy.ops has no "Linear"\n'
        "  help: pip install --upgrade --force-reinstall kt-toy",
    ),
    Code(
        "KT217",
        "A plugin is left out by KT_PLUGINS",
        "The environment variable KT_PLUGINS lists the plugins that may load, and a rule names "
        "something of a plugin that is not on the list. Add the plugin to the variable or unset"
        " it. An empty KT_PLUGINS leaves out every plugin but the core's.",
        'my.yaml:4:12: KT217 "kt_toy.linear" is brought by the plugin "toy" (kt-toy 1.0), which'
        " is disabled: KT_PLUGINS leaves it out\n"
        "  help: add toy to KT_PLUGINS, or unset it",
    ),
    Code(
        "KT218",
        "KT_PLUGINS names a plugin that is not installed",
        "Every entry of KT_PLUGINS must be the name of an installed plugin or of its "
        "distribution. A misspelt entry would quietly switch the plugin off, so it is an error."
        " Correct the variable; kt plugins without it lists the names.",
        'KT218 KT_PLUGINS names what is not installed: "toyy"\n'
        "  installed: kt-core, kt-toy, toy\n"
        "  help: KT_PLUGINS=toy",
    ),
    Code(
        "KT219",
        "A name of KTransformers that kt does not provide",
        "The rule file was written for KTransformers and names one of its classes or kernels "
        "for which kt has no counterpart, such as those for Ascend NPUs, Intel GPUs or FP8 "
        "weights. The message says what it was for, the help line what to use instead. A plugin"
        " may bring such a kernel.",
        'npu.yaml:9:20: KT219 "KLinearTorchW8A8A2" is a name of KTransformers that kt does not '
        "provide: KTransformers runs it on Ascend NPUs with W8A8 weights; kt has no NPU kernels\n"
        "  help: use a rule file for cpu or cuda",
    ),
    Code(
        "KT220",
        "The torch extra is not installed",
        "kt-core by itself is light: it validates rule files, inspects weight files and lists "
        "plugins. Planning, loading and running a model need torch and transformers, which come"
        " with the extra named torch; every operator distribution of kt brings it along.",
        'KT220 kt chat needs torch, which is not installed\n  help: pip install "kt-core[torch]"',
    ),
    Code(
        "KT221",
        "An installed package is outside the supported range",
        "A package that kt works with is installed in a version that this kt-core was not made "
        "for and is not tested with. Install a version within the range shown.",
        "KT221 transformers 4.57.1 is installed; kt-core 0.1.0 needs transformers >=5.17,<6\n"
        '  help: pip install "transformers>=5.17,<6"',
    ),
)
