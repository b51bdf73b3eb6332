"""``kt_core.load``: from a path to a model that answers."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kt_core.errors import UsageError
from kt_core.models.chat import chat_prompt
from kt_core.models.family import family_for_gguf
from kt_core.models.hf import config_from_folder, config_from_values, skeleton_model
from kt_core.models.metadata import Metadata
from kt_core.models.tokenizer import tokenizer_from_folder, tokenizer_from_gguf
from kt_core.plan import Plan
from kt_core.plan.build import DEFAULT_CONTEXT, make_plan
from kt_core.plan.devices import default_device, kind_of
from kt_core.registry.registry import Registry, default_registry
from kt_core.rules import RuleSet, load_rules, select_rules
from kt_core.rules.override import with_experts_kernel
from kt_core.runtime.apply import apply_plan
from kt_core.runtime.generate import Generation, Step, prefill_and_generate, stream
from kt_core.runtime.sampling import Sampling
from kt_core.weights import WeightSource, open_weights

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


@dataclass
class LoadedModel:
    """A model with its tokenizer and the plan it was loaded by."""

    model: nn.Module
    tokenizer: Any
    plan: Plan

    def prompt(self, text: str | Sequence[Mapping[str, str]]) -> torch.Tensor:
        """Token ids ``(1, n)`` of a user's message, or of a list of chat messages."""
        if isinstance(text, str):
            text = [{"role": "user", "content": text}]
        return chat_prompt(self.tokenizer, text)

    def generate(
        self,
        prompt: str | Sequence[Mapping[str, str]] | torch.Tensor,
        max_new_tokens: int = 512,
        *,
        on_token: Callable[[Step], Any] | None = None,
        **options: Any,
    ) -> Generation:
        """Answer ``prompt``; options are those of :func:`prefill_and_generate`."""
        ids = prompt if isinstance(prompt, torch.Tensor) else self.prompt(prompt)
        return prefill_and_generate(
            self.model, self.tokenizer, ids, max_new_tokens, on_token=on_token, **options
        )

    def stream(
        self,
        prompt: str | Sequence[Mapping[str, str]] | torch.Tensor,
        max_new_tokens: int = 512,
        *,
        sampling: Sampling | None = None,
        **options: Any,
    ) -> Iterator[Step]:
        """Answer token by token; options are those of :func:`kt_core.runtime.generate.stream`."""
        ids = prompt if isinstance(prompt, torch.Tensor) else self.prompt(prompt)
        return stream(
            self.model,
            self.tokenizer,
            ids,
            max_new_tokens=max_new_tokens,
            sampling=sampling,
            **options,
        )


@dataclass
class Prepared:
    """Everything that stands before the weights are read."""

    model: nn.Module
    plan: Plan
    rules: RuleSet
    source: WeightSource | None
    registry: Registry
    folder: str | None

    def tokenizer(self) -> Any:
        """The folder's tokenizer, else the file's; ``None`` where a file carries none."""
        if self.folder is not None and _has_tokenizer(self.folder):
            return tokenizer_from_folder(self.folder)
        if self.source is None or self.source.format != "gguf":
            return tokenizer_from_folder(self.folder or "")
        if self.source.metadata.get("tokenizer.ggml.model") in (None, "none"):
            return None
        return tokenizer_from_gguf(self.source.metadata, self.source.path)


def prepare(
    path: str | os.PathLike[str] | None,
    *,
    rules: str | os.PathLike[str] | RuleSet | None = "auto",
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    model: str | os.PathLike[str] | None = None,
    method: str | None = None,
    registry: Registry | None = None,
    context: int = DEFAULT_CONTEXT,
    assume_devices: Sequence[str] = (),
) -> Prepared:
    """Open the file, build the skeleton, choose the rules and make the plan. Reads no weights.

    The plan may hold errors; :func:`load` raises them. The caller closes ``source``.
    """
    if path is None and model is None:
        raise UsageError.of("KT725", "neither weights nor a model folder were given")
    registry = registry or default_registry()
    source = open_weights(path) if path is not None else None
    try:
        folder = _model_folder(path, model, source)
        config = _config(source, folder, registry)
        device = default_device() if device == "auto" else device
        skeleton = skeleton_model(config, _dtype(dtype, device))
        chosen = _rules(rules, config, device, registry)
        if method is not None:
            chosen = with_experts_kernel(chosen, method, registry)
        plan = make_plan(
            skeleton,
            chosen,
            source=source,
            registry=registry,
            default_device=device,
            context=context,
            assume_devices=assume_devices,
        )
    except BaseException:
        if source is not None:
            source.close()
        raise
    return Prepared(skeleton, plan, chosen, source, registry, folder)


def load(
    path: str | os.PathLike[str],
    *,
    rules: str | os.PathLike[str] | RuleSet | None = "auto",
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    model: str | os.PathLike[str] | None = None,
    method: str | None = None,
    registry: Registry | None = None,
) -> LoadedModel:
    """Load a model and everything it needs.

    ``path`` is a GGUF file, any shard of a split set, or a folder (GGUF or safetensors). ``rules``
    is a rule file, the name of a shipped variant (``"cpu"``), ``"auto"`` (the one that fits
    architecture and device) or ``None`` (no rules: every module stays as it is). ``method`` names an
    experts kernel to use in place of the file's (``"MOE_INT8"``). ``device`` is where unmatched
    modules go, ``"auto"`` the first GPU, else the CPU. ``dtype`` is the activations' (``"auto"``:
    float32 on a CPU, bfloat16 elsewhere). ``model`` is a Hugging Face folder whose config and
    tokenizer are used instead of the GGUF's.

    Raises:
        KtError: one of its subclasses, with every problem found; nothing stays half-loaded.
    """
    prepared = prepare(
        path,
        rules=rules,
        device=device,
        dtype=dtype,
        model=model,
        method=method,
        registry=registry,
    )
    source = prepared.source
    if source is None:
        raise UsageError.of("KT725", "no weights were given")
    with source:  # type: ignore[attr-defined]
        tokenizer = prepared.tokenizer()
        apply_plan(prepared.model, prepared.plan, source, prepared.registry)
    return LoadedModel(prepared.model, tokenizer, prepared.plan)


def _config(source: WeightSource | None, folder: str | None, registry: Registry) -> Any:
    if folder is not None:
        return config_from_folder(folder)
    if source is None or source.format != "gguf":
        raise UsageError.of(
            "KT725",
            "safetensors carry no configuration",
            help="give the folder that holds config.json, or --model DIR",
        )
    family = family_for_gguf(source.metadata, source.tensors, source.path, registry)
    metadata = Metadata(source.metadata, family.gguf, source.path)
    values = family.config(metadata, source.tensors)
    return config_from_values(family.model_type, family.architectures[:1], values)


def _model_folder(
    path: str | os.PathLike[str] | None,
    model: str | os.PathLike[str] | None,
    source: WeightSource | None,
) -> str | None:
    """The folder to take the config from: the one given, else beside safetensors."""
    if model is not None:
        return os.fspath(model)
    if source is None or source.format == "gguf" or path is None:
        return None
    here = Path(path)
    return str(here if here.is_dir() else here.parent)


def _has_tokenizer(folder: str) -> bool:
    names = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")
    return any((Path(folder) / name).is_file() for name in names)


def _rules(
    rules: str | os.PathLike[str] | RuleSet | None, config: Any, device: str, registry: Registry
) -> RuleSet:
    if isinstance(rules, RuleSet):
        return rules
    if rules is None or rules == "none":
        return RuleSet("<no rules>", ())
    if rules == "auto":
        return select_rules(config.architectures, device=device, registry=registry)
    name = os.fspath(rules)
    if re.fullmatch(r"[\w-]+", name) and not os.path.isfile(name):
        return select_rules(config.architectures, variant=name, registry=registry)
    return load_rules(rules, registry)


def _dtype(dtype: str | torch.dtype, device: str) -> torch.dtype:
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype == "auto":
        # On a CPU float32 costs decoding nothing: packed kernels round activations themselves, and
        # torch is quicker without the conversions that bfloat16 needs there.
        return torch.float32 if kind_of(device) == "cpu" else torch.bfloat16
    if dtype not in DTYPES:
        raise UsageError.of(
            "KT726", f'"{dtype}" is no dtype', help=f"use {', '.join(DTYPES)} or auto"
        )
    return DTYPES[dtype]
