"""The errors of this distribution, each built in one place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kt_core.errors import KernelError, KtError

if TYPE_CHECKING:
    import torch


def bad_input(name: str, what: str, *facts: str) -> KtError:
    """KT552: activations a kernel cannot take."""
    return KernelError.of("KT552", f"{name} cannot compute on {what}", facts=facts)


def bad_weight(name: str, reasons: Sequence[str], help: str | None = None) -> KtError:
    """KT553: a stored weight or an option that cannot be served."""
    return KernelError.of(
        "KT553", f"{name} cannot serve its weights", facts=tuple(reasons), help=help
    )


def out_of_memory(name: str, needed: int, device: torch.device) -> KtError:
    """KT554: packing did not fit."""
    return KernelError.of(
        "KT554",
        f"{name} does not fit on {device} while it is packed",
        facts=(f"packing needs up to {needed / 2**20:.0f} MiB beside what is resident",),
        help="place fewer modules on the GPU, or on another one",
    )


def launch_failed(name: str, code: int, why: str) -> KtError:
    """KT551 where the library holds no code for the device, else KT555."""
    if code == -5:
        return KernelError.of(
            "KT551",
            f"{name} has no code for this GPU",
            facts=(why,),
            help="kt doctor lists what the library was built for",
        )
    return KernelError.of("KT555", f"{name} was refused by the GPU", facts=(why, f"code {code}"))


def not_loaded(name: str) -> KtError:
    """KT556: called before its weights were given."""
    return KernelError.of("KT556", f"{name} was called before its weights were loaded")


def bad_expert(name: str, experts: int) -> KtError:
    """KT557: a router's choice outside the layer."""
    return KernelError.of(
        "KT557",
        f"{name} was asked for an expert it does not have",
        facts=(f"it has {experts} experts, counted from 0; -1 adds nothing",),
        help="check the router: its logits are often not finite when this happens",
    )


def bad_checkpoint(what: str, *facts: str) -> KtError:
    """KT558: a GPTQ or AWQ tensor that contradicts the others."""
    return KernelError.of("KT558", what, facts=facts)
