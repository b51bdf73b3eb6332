"""Ask whether an operator or kernel can run on a device of this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pluggy

from kt_core.devices.kinds import known_kinds
from kt_core.registry.environment import (
    cuda_presence,
    extension_missing,
    probe_env,
    torch_version,
)
from kt_core.registry.loading import describe, isolated
from kt_core.registry.specs import (
    Accepted,
    KernelSpec,
    OperatorSpec,
    ProbeEnv,
    ProbeResult,
    Rejected,
)

Spec = OperatorSpec | KernelSpec


def probe(
    spec: Spec, device: str, hooks: pluggy.HookRelay, environ: Mapping[str, str]
) -> ProbeResult:
    """Return whether ``spec`` can run on ``device``; ``hooks`` are those of its own plugin only."""
    unfit = device_rejection(spec, device, environ)
    if unfit is not None:
        return unfit
    if not hooks.kt_probe.get_hookimpls():
        return Accepted()
    return checked(lambda env: hooks.kt_probe(spec=spec, env=env), probe_env(device, environ))


def device_rejection(spec: Spec, device: str, environ: Mapping[str, str]) -> Rejected | None:
    """Return why ``device`` is out of the question before the plugin is asked."""
    kind, _, index = device.partition(":")
    if torch_version() is None:  # whatever takes a module's place is a torch module
        return Rejected(("torch is not installed",), 'pip install "kt-core[torch]"')
    if kind not in known_kinds():
        known = ", ".join(known_kinds())
        return Rejected((f'kt has no device "{device}"',), f"use {known}, or cuda:1 and so on")
    if isinstance(spec, KernelSpec) and kind not in spec.devices:
        return Rejected(
            (f'it runs on {" and ".join(spec.devices)}, not on "{device}"',),
            f"name one of {', '.join(spec.devices)} as its device, or another kernel",
        )
    if kind == "cpu":
        return None
    if kind != "cuda":
        missing = extension_missing(kind)
        return Rejected((missing,), "use cpu or cuda as the device") if missing else None
    presence = cuda_presence(environ)
    if presence.count == 0:
        return Rejected((presence.reason,), presence.help or "use cpu as the device")
    if presence.count is not None and index.isdecimal() and int(index) >= presence.count:
        return Rejected(
            (f'there is no "{device}": {presence.count} GPU(s) are visible, counted from cuda:0',),
            f"use a device up to cuda:{presence.count - 1}",
        )
    return None


def checked(hook: Callable[[ProbeEnv], list[object]], env: ProbeEnv) -> ProbeResult:
    """Call a plugin's probe; whatever it does wrong is a rejection that says so."""
    results, error = isolated(lambda: hook(env))
    if error is not None:
        return Rejected((f"its probe failed: {describe(error)}",))
    if not results:  # pluggy drops None, which means yes
        return Accepted()
    result = results[0]
    if isinstance(result, Accepted):
        return Accepted(str(result.detail))
    if isinstance(result, Rejected):
        given: object = result.reasons  # a lone string is a common slip
        reasons = (given,) if isinstance(given, str) else tuple(map(str, result.reasons))
        return Rejected(reasons or ("its probe gives no reason",), str(result.help))
    return Rejected((f"its probe returned {type(result).__name__}, not Accepted or Rejected",))
