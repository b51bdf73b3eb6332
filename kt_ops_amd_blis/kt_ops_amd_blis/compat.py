"""``KTMoEWrapper``: the Python interface of kt-kernel's experts, on kt's kernels.

For code that was written against it. The method names which kernel computes; nothing is chosen by what
happens to be compiled in, and a method that cannot run says why. The computing is done by the kernel
classes that rule files name as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import MappingProxyType
from typing import Any

import torch

from kt_core.errors import KernelError, PluginError
from kt_core.operators.kernel import (
    Activation,
    ExpertsKernel,
    ExpertsShape,
    ExpertsWeights,
    KernelContext,
)
from kt_core.registry.registry import default_registry
from kt_core.registry.specs import EXPERTS, Rejected
from kt_core.weights import PackedTensor, QuantType, WeightSource, open_weights

METHODS: Mapping[str, str] = MappingProxyType(
    {
        "MOE_INT8": "kt_ops_amd_blis.moe_int8",
        "LLAMAFILE": "kt_ops_cpu.experts",
        "BF16": "kt_core.torch_experts",
    }
)
"""Which kernel a method stands for."""

# Stored types by torch dtype; what has no entry is converted to float32 first.
_TYPES = {
    torch.float32: QuantType.F32,
    torch.float16: QuantType.F16,
    torch.bfloat16: QuantType.BF16,
}

# What checkpoints call (gate, up, down) of expert e, after the layer's own prefix.
_PER_EXPERT = (
    "experts.{e}.{part}_proj.weight",
    "experts.{e}.{letter}.weight",
)
_LETTERS = MappingProxyType({"gate": "w1", "up": "w3", "down": "w2"})  # Mixtral's


class KTMoEWrapper:
    """The routed experts of one layer on the CPU.

    Args follow kt-kernel: ``gpu_experts_mask`` ``(num_experts,)`` marks experts that the caller
    computes elsewhere (they add nothing here), ``weight_path`` is a GGUF file or a folder of
    safetensors. ``cpuinfer_threads``, ``threadpool_count`` and ``chunked_prefill_size`` are accepted
    and have no effect: threads follow ``KT_CPU_THREADS``, scratch follows the tokens of a call.

    Raises:
        KernelError: KT537 for MOE_INT4, KT547 for a method that is not served.
        PluginError: KT210 or KT211 if the method's distribution is missing or broken, KT214 if it
            cannot run here.
    """

    def __init__(
        self,
        layer_idx: int,
        num_experts: int,
        num_experts_per_tok: int,
        hidden_size: int,
        moe_intermediate_size: int,
        gpu_experts_mask: torch.Tensor | None = None,
        cpuinfer_threads: int | None = None,
        threadpool_count: int | None = None,
        weight_path: str | None = None,
        chunked_prefill_size: int | None = None,
        *,
        method: str = "MOE_INT8",
        dtype: torch.dtype = torch.bfloat16,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.layer_idx = layer_idx
        self.method = method
        self.weight_path = weight_path
        self._shape = ExpertsShape(
            num_experts, hidden_size, moe_intermediate_size, num_experts_per_tok
        )
        self._mask = _mask(gpu_experts_mask, num_experts)
        context = KernelContext(
            f"layers.{layer_idx}.experts", dtype, torch.device("cpu"), dict(options or {})
        )
        self._kernel: ExpertsKernel = _kernel_class(method)(self._shape, Activation(), context)
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=context.name)
        self._pending: Future[torch.Tensor] | None = None

    def load_weights(self, physical_to_logical_map: Sequence[int] | torch.Tensor) -> None:
        """Load this layer from ``weight_path``; physical expert ``p`` gets the file's ``map[p]``.

        Raises:
            KernelError: KT540 without a path, or if the file holds no experts for the layer.
            WeightsError: KT4xx for a file that cannot be read.
        """
        if self.weight_path is None:
            raise _unusable(self, "no weight_path was given", "use load_weights_from_tensors")
        with open_weights(self.weight_path) as source:
            gate, up, down = _layer(source, self.layer_idx, self._shape.num_experts)
            self._load(gate, up, down, physical_to_logical_map)

    def load_weights_from_tensors(
        self,
        gate_proj: torch.Tensor,
        up_proj: torch.Tensor,
        down_proj: torch.Tensor,
        physical_to_logical_map: Sequence[int] | torch.Tensor,
    ) -> None:
        """Load ``(experts, inter, hidden)`` twice and ``(experts, hidden, inter)``, ready to compute."""
        gate, up, down = _unstack(gate_proj), _unstack(up_proj), _unstack(down_proj)
        self._load(gate, up, down, physical_to_logical_map)

    def submit_forward(
        self,
        hidden_states: torch.Tensor,
        topk_ids: torch.Tensor,
        topk_weights: torch.Tensor,
        cuda_stream: object = None,
    ) -> None:
        """Begin a forward pass and return; :meth:`sync_forward` gives its result.

        Tensors on a GPU are copied to the CPU here, behind the work already on their stream.

        Raises:
            KernelError: KT540 if a pass is already under way.
        """
        if self._pending is not None:
            raise _unusable(self, "a forward pass is under way", "call sync_forward first")
        home = hidden_states.device
        x, ids, weights = (t.cpu() for t in (hidden_states, topk_ids, topk_weights))
        if self._mask is not None:
            ids = ids.to(torch.int64)
            here = (ids >= 0) & (ids < self._shape.num_experts)
            elsewhere = here & self._mask[ids.clamp(0, self._shape.num_experts - 1)]
            ids = ids.masked_fill(elsewhere, -1)
        self._pending = self._executor.submit(
            lambda: self._kernel.forward(x, ids, weights).to(home)
        )

    def sync_forward(
        self, hidden_states: torch.Tensor | None = None, cuda_stream: object = None
    ) -> torch.Tensor:
        """Wait for the pass that was submitted and return ``(tokens, hidden)``.

        Raises:
            KernelError: KT540 if none was submitted, or what the pass itself raised.
        """
        pending, self._pending = self._pending, None
        if pending is None:
            raise _unusable(self, "no forward pass was submitted", "call submit_forward first")
        return pending.result()

    def forward(
        self,
        hidden_states: torch.Tensor,
        topk_ids: torch.Tensor,
        topk_weights: torch.Tensor,
        cuda_stream: object = None,
    ) -> torch.Tensor:
        """Submit a pass and wait for it."""
        self.submit_forward(hidden_states, topk_ids, topk_weights, cuda_stream)
        return self.sync_forward(hidden_states, cuda_stream)

    def _load(
        self,
        gate: Sequence[PackedTensor],
        up: Sequence[PackedTensor],
        down: Sequence[PackedTensor],
        order: Sequence[int] | torch.Tensor,
    ) -> None:
        chosen = [int(e) for e in (order.tolist() if isinstance(order, torch.Tensor) else order)]
        count = self._shape.num_experts
        if len(chosen) != count or not all(0 <= e < len(gate) for e in chosen):
            raise _unusable(
                self,
                f"the map has {len(chosen)} entries for {count} experts, of {len(gate)} stored",
                f"give {count} numbers from 0 to {len(gate) - 1}",
            )
        gate, up, down = ([stack[e] for e in chosen] for stack in (gate, up, down))
        self._kernel.load(ExpertsWeights(gate, up, down))


def _kernel_class(method: str) -> type[ExpertsKernel]:
    if method == "MOE_INT4":
        raise KernelError.of(
            "KT537",
            "MOE_INT4: the AMD BLIS backend computes in int8 only",
            facts=["KTransformers has int4 experts of this kind on Arm only"],
            help='use method="MOE_INT8", or "LLAMAFILE" for weights that are 4-bit in a GGUF file',
        )
    if method not in METHODS:
        raise KernelError.of(
            "KT547",
            f'KTMoEWrapper has no method "{method}" here',
            facts=[f"methods: {', '.join(METHODS)}"],
            help='use method="MOE_INT8"',
        )
    registry, name = default_registry(), METHODS[method]
    found = registry.kernel(name, EXPERTS)
    if found is None:
        raise PluginError(registry.unknown(name, "kernel", kind=EXPERTS))
    result = registry.probe(found.spec, "cpu")
    if isinstance(result, Rejected):
        raise PluginError.of(
            "KT214",
            f'"{name}" cannot run here',
            facts=[f"rejected: {reason}" for reason in result.reasons],
            help=result.help or None,
        )
    target: type[ExpertsKernel] = registry.load_target(found.spec)
    return target


def _mask(mask: torch.Tensor | None, experts: int) -> torch.Tensor | None:
    if mask is None:
        return None
    if tuple(mask.shape) != (experts,):
        raise KernelError.of(
            "KT540", f"gpu_experts_mask has shape {list(mask.shape)}, not [{experts}]"
        )
    return mask.detach().cpu().to(torch.bool)


def _unstack(tensor: torch.Tensor) -> list[PackedTensor]:
    """Return one view per expert of a ``(experts, out, in)`` tensor."""
    values = tensor.detach().cpu()
    if values.dtype not in _TYPES:
        values = values.to(torch.float32)
    values = values.contiguous()
    data = values.view(torch.uint8).numpy()
    packed = PackedTensor("weights", tuple(values.shape), _TYPES[values.dtype], data)
    return packed.unstack()


def _layer(
    source: WeightSource, layer: int, experts: int
) -> tuple[list[PackedTensor], list[PackedTensor], list[PackedTensor]]:
    """Find the experts of a layer by the names that GGUF and Hugging Face checkpoints use."""
    parts = ("gate", "up", "down")
    stacked = [f"blk.{layer}.ffn_{part}_exps.weight" for part in parts]
    if all(name in source.tensors for name in stacked):
        gate, up, down = (source.tensor(name).unstack() for name in stacked)
        return gate, up, down
    for pattern in _PER_EXPERT:
        prefix = _prefix(source.tensors, layer, pattern.format(e=0, part="gate", letter="w1"))
        if prefix is not None:
            gate, up, down = (
                [
                    source.tensor(prefix + pattern.format(e=e, part=part, letter=_LETTERS[part]))
                    for e in range(experts)
                ]
                for part in parts
            )
            return gate, up, down
    raise KernelError.of(
        "KT540",
        f"{source.path} holds no experts of layer {layer}",
        facts=[f"looked for: {stacked[0]}, model.layers.{layer}.mlp.experts.0.gate_proj.weight"],
    )


def _prefix(names: Iterable[str], layer: int, suffix: str) -> str | None:
    for name in names:
        if name.endswith("." + suffix) and f".layers.{layer}." in f".{name}":
            return name[: -len(suffix)]
    return None


def _unusable(wrapper: KTMoEWrapper, why: str, help_line: str) -> KernelError:
    return KernelError(
        KernelError.of(
            "KT540", f"layer {wrapper.layer_idx} of KTMoEWrapper: {why}", help=help_line
        ).problems
    )
