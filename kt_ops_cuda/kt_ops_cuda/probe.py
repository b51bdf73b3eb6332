"""Whether the kernels can run here, found out without torch and without starting a GPU context.

The driver is asked through NVML, which needs no context and survives a later fork; cuInit does not.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from importlib import metadata

from kt_core.errors import KernelError
from kt_core.registry.specs import Accepted, ProbeResult, Rejected
from kt_ops_cuda import native

MINIMUM_CAPABILITY = 80
_NVML = "libnvidia-ml.so.1"


def build_line() -> str:
    """Return the compiler and the architectures the library was built with."""
    try:
        return f"built with nvcc {native.library().kt_build().decode()}"
    except KernelError as error:
        return error.problems[0].render()


def gpus() -> list[tuple[str, int]]:
    """Return name and compute capability (major * 10 + minor) of each GPU.

    Raises:
        OSError: the driver's library is absent or does not answer.
    """
    nvml = ctypes.CDLL(_NVML)
    if nvml.nvmlInit_v2() != 0:
        raise OSError(f"{_NVML} is there, but no driver answers")
    try:
        count = ctypes.c_uint()
        if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
            raise OSError(f"{_NVML} does not list devices")
        found = []
        for index in range(count.value):
            handle = ctypes.c_void_p()
            name = ctypes.create_string_buffer(96)
            major, minor = ctypes.c_int(), ctypes.c_int()
            if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) != 0:
                continue
            nvml.nvmlDeviceGetName(handle, name, ctypes.c_uint(len(name)))
            if nvml.nvmlDeviceGetCudaComputeCapability(
                handle, ctypes.byref(major), ctypes.byref(minor)
            ):
                continue
            found.append((name.value.decode("utf-8", "replace"), major.value * 10 + minor.value))
        return found
    finally:
        nvml.nvmlShutdown()


def covers(build: str, capability: int) -> bool:
    """Whether code named in ``build`` ("13.0 sm_80 sm_90a compute_120") runs on a device.

    Machine code runs on its own major version from its minor on; "a" code on exactly its own; PTX
    ("compute_N") on anything from N on.
    """
    for word in build.split():
        kind, _, digits = word.partition("_")
        number = int(digits.rstrip("a")) if digits.rstrip("a").isdigit() else None
        if number is None:
            continue
        if kind == "compute" and capability >= number:
            return True
        if kind == "sm" and digits.endswith("a") and capability == number:
            return True
        if (
            kind == "sm"
            and digits.isdigit()
            and capability // 10 == number // 10
            and capability >= number
        ):
            return True
    return False


def examine(environ: Mapping[str, str]) -> ProbeResult:
    """Say whether a usable GPU, the compiled library and a torch with CUDA are here."""
    try:
        build = native.library().kt_build().decode()
    except KernelError as error:
        problem = error.problems[0]
        return Rejected((problem.message, *problem.facts), problem.help or "")
    reasons = []
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1"):
        reasons.append(f"CUDA_VISIBLE_DEVICES={visible!r} hides every GPU")
    try:
        found = gpus()
    except OSError:
        return Rejected(
            (*reasons, f"no NVIDIA driver: {_NVML} cannot be loaded or does not answer"),
            "install the NVIDIA driver, or place these modules on device: cpu",
        )
    if not found:
        reasons.append("the NVIDIA driver shows no GPU")
    usable = [item for item in found if item[1] >= MINIMUM_CAPABILITY and covers(build, item[1])]
    if found and not usable:
        names = ", ".join(f"{name} ({cap // 10}.{cap % 10})" for name, cap in found)
        reasons.append(f"no code for {names}; the library was built for {build}")
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        reasons.append("torch is not installed")
    else:
        if version.endswith("+cpu"):
            reasons.append(f"torch {version} is built without CUDA")
    if reasons:
        return Rejected(tuple(reasons), "kt doctor shows what was found")
    name, capability = usable[0]
    return Accepted(f"{name}, compute capability {capability // 10}.{capability % 10}")
