"""The native library: loading it, choosing its variant, turning its status codes into errors."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import cache
from types import ModuleType

from kt_core.errors import KernelError

ABI_VERSION = 3
"""What ``kt_cpu_abi_version()`` must return: structs and signatures as this package knows them."""

ISA_VARIABLE = "KT_CPU_ISA"
"""Environment variable that names the variant to use: ``c``, ``avx2``, ``avx512`` or ``amx``."""

_REINSTALL = "pip install --force-reinstall kt-ops-cpu"

# kt_cpu_status to code and way out. What the Python side has checked already means a fault of ours.
_CODES = {
    3: ("KT502", None),
    4: ("KT503", None),
    6: ("KT506", f"unset {ISA_VARIABLE}"),
    7: ("KT509", "set KT_CPU_THREADS lower, or raise the limit on processes (ulimit -u)"),
    8: ("KT510", None),
}
_MEMORY_HELP = "send fewer tokens at once, or free memory"


@cache
def native() -> ModuleType:
    """Return the cffi module (``ffi``, ``lib``), checked and with its variant chosen.

    Raises:
        KernelError: KT500 if it is missing, damaged or of another version; KT506 for a bad
            ``KT_CPU_ISA``.
    """
    try:
        from kt_ops_cpu import _native
    except ImportError as error:
        raise KernelError.of(
            "KT500",
            "the native library of kt-ops-cpu cannot be loaded",
            facts=[f"{type(error).__name__}: {error}"],
            help=_REINSTALL,
        ) from error
    version = _native.lib.kt_cpu_abi_version()
    if version != ABI_VERSION:
        raise KernelError.of(
            "KT500",
            "the native library of kt-ops-cpu belongs to another version of it",
            facts=[f"its interface is {version}, this package needs {ABI_VERSION}"],
            help=_REINSTALL,
        )
    _choose_variant(_native, os.environ)
    return _native


def variant_names(module: ModuleType) -> list[str]:
    """Return the variants that this build holds and this CPU can run, slowest first."""
    lib = module.lib
    count = lib.kt_cpu_isa_best() + 1
    return [_name(module, isa) for isa in range(count) if lib.kt_cpu_isa_built(isa)]


def variant() -> str:
    """Return the variant in use: ``c``, ``avx2``, ``avx512`` or ``amx``."""
    module = native()
    return _name(module, module.lib.kt_cpu_isa_current())


def set_variant(name: str) -> None:
    """Use a variant from now on, in the whole process.

    Raises:
        KernelError: KT506 if there is no such variant or this CPU cannot run it.
    """
    _choose_variant(native(), {ISA_VARIABLE: name})


def _choose_variant(module: ModuleType, environ: Mapping[str, str]) -> None:
    name = environ.get(ISA_VARIABLE)
    if name is None:
        return
    every = [_name(module, isa) for isa in range(module.lib.KT_CPU_ISA_COUNT)]
    usable = variant_names(module)
    facts = [f"usable here: {', '.join(usable)}"]
    if name not in every:
        raise KernelError.of(
            "KT506",
            f'{ISA_VARIABLE}={name}: there is no variant "{name}"',
            facts=facts,
            help=f"{ISA_VARIABLE}={usable[-1]}, or unset it",
        )
    if module.lib.kt_cpu_isa_set(every.index(name)) != module.lib.KT_CPU_OK:
        raise KernelError.of(
            "KT506",
            f"{ISA_VARIABLE}={name}: this CPU or operating system cannot run it",
            facts=facts,
            help=f"{ISA_VARIABLE}={usable[-1]}, or unset it",
        )


def _name(module: ModuleType, isa: int) -> str:
    text: str = module.ffi.string(module.lib.kt_cpu_isa_name(isa)).decode()
    return text


def check(status: int, what: str, facts: Iterable[str] = ()) -> None:
    """Raise the error that a native status stands for; ``what`` names the module or function."""
    if status == 0:
        return
    module = native()
    text = module.ffi.string(module.lib.kt_cpu_status_text(status)).decode()
    code, help_line = _CODES.get(status, ("KT512", None))
    if status == module.lib.KT_CPU_MEMORY:
        code, help_line = "KT508", _MEMORY_HELP
    raise KernelError.of(code, f"{what}: {text}", facts=facts, help=help_line)
