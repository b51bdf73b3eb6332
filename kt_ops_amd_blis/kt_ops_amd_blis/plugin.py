"""Registration of kt-ops-amd-blis. Data only; probing imports nothing heavy and loads no library here."""

from __future__ import annotations

from collections.abc import Iterable

from kt_core.registry.hookspecs import hookimpl
from kt_core.registry.specs import (
    EXPERTS,
    LINEAR,
    Accepted,
    CommandSpec,
    KernelSpec,
    OperatorSpec,
    ProbeEnv,
    ProbeResult,
    Rejected,
)

KT_PLUGIN_API = 1

_GROUP_SIZE = {
    "enum": [0, 32, 64, 128, 256],
    "default": 0,
    "description": "Inputs that share one weight scale; 0 is one scale per output channel.",
}

KERNELS = (
    KernelSpec(
        name="kt_ops_amd_blis.moe_int8",
        target="kt_ops_amd_blis.experts:MoeInt8",
        kind=EXPERTS,
        devices=("cpu",),
        weight_formats=("*",),
        summary="Experts in int8 by AMD BLIS LPGEMM; for prefill on CPUs with AVX512-VNNI.",
        aliases=("MOE_INT8", "KExpertsAMDInt8"),
        options_schema={
            "type": "object",
            "properties": {
                "group_size": _GROUP_SIZE,
                "cache_dir": {
                    "type": "string",
                    "minLength": 1,
                    "description": "Folder in which reordered weights are kept between runs.",
                },
            },
            "additionalProperties": False,
        },
    ),
    KernelSpec(
        name="kt_ops_amd_blis.linear_int8",
        target="kt_ops_amd_blis.linear:LinearInt8",
        kind=LINEAR,
        devices=("cpu",),
        weight_formats=("*",),
        summary="A linear layer in int8 by AMD BLIS LPGEMM, on CPUs with AVX512-VNNI.",
        options_schema={
            "type": "object",
            "properties": {"group_size": _GROUP_SIZE},
            "additionalProperties": False,
        },
    ),
)

_ON = {"on", "1", "true", "yes"}


def leftover_setting(env: ProbeEnv) -> str:
    """Return what to tell someone who set KTransformers' build switch, empty for everybody else."""
    value = env.environ.get("CPUINFER_ENABLE_BLIS", "")
    if value.lower() not in _ON:
        return ""
    return (
        f"KT549 CPUINFER_ENABLE_BLIS={value} has no effect: nothing is compiled in, BLIS is found at "
        "run time (KT_BLIS_LIBRARY, KT_BLIS_ROOT, or the aoclda package), and a rule file asks for it "
        "with the kernel MOE_INT8"
    )


@hookimpl
def kt_register_kernels() -> Iterable[KernelSpec]:
    """Return this distribution's kernels."""
    return KERNELS


@hookimpl
def kt_register_commands() -> Iterable[CommandSpec]:
    """Return ``kt blis-selftest``."""
    return (CommandSpec("blis-selftest", "kt_ops_amd_blis.command", "check BLIS on this machine"),)


@hookimpl
def kt_probe(spec: OperatorSpec | KernelSpec, env: ProbeEnv) -> ProbeResult | None:
    """Say whether a BLIS with LPGEMM is here and this CPU can run it; each reason carries its code."""
    from kt_ops_amd_blis.verdicts import search

    finding = search(env.environ, env.cpu_flags)
    if finding.chosen is not None and finding.chosen.facts is not None:
        return Accepted(f"{finding.chosen.facts.version}, {finding.chosen.path}")
    first, *others = finding.reasons
    leftover = leftover_setting(env)
    reasons = (f"{finding.code} {first}", *others, *((leftover,) if leftover else ()))
    return Rejected(reasons, finding.help)


@hookimpl
def kt_report(env: ProbeEnv) -> Iterable[str]:
    """Return the verdict on every library that was looked at, and what the CPU has."""
    from kt_ops_amd_blis.examine import REQUIRED
    from kt_ops_amd_blis.verdicts import REQUIRED_FLAGS, missing_flags, search

    finding = search(env.environ, env.cpu_flags)
    absent = missing_flags(env.cpu_flags)
    lines = [
        f"instruction set: lacks {', '.join(absent)}"
        if absent
        else f"instruction set: {', '.join(REQUIRED_FLAGS)}"
    ]
    lines += [verdict.line() for verdict in finding.verdicts]
    if finding.chosen is not None and finding.chosen.facts is not None:
        lines.append(f"symbols: {', '.join(REQUIRED)}")
        one = "in one product" if finding.chosen.facts.groups else "by a product for each group"
        lines.append(f"group scales: {one}")
        lines.append(f"its own threads: {finding.chosen.facts.threading}; run with 1 per kt thread")
    else:
        lines += [f"{finding.code} {reason}" for reason in finding.reasons[:1]]
        lines.append(f"help: {finding.help}")
    leftover = leftover_setting(env)
    return [*lines, leftover] if leftover else lines
