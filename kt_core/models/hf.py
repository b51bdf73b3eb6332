"""The one module that knows transformers' own ways: configs, meta skeletons, caches, buffers.

Everything else sees plain torch modules. Only public names are used; the supported range of
versions is tested at both ends.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kt_core.errors import PlanError, WeightsError


def config_from_values(model_type: str, architectures: tuple[str, ...], values: Any) -> Any:
    """Build transformers' config for ``model_type`` from keyword arguments."""
    from transformers import AutoConfig

    make_known(model_type)
    config = AutoConfig.for_model(model_type, **values)
    config.architectures = list(architectures)
    return config


def make_known(model_type: str) -> None:
    """Register the classes of a family that transformers lacks."""
    from kt_core.models.families import FAMILIES

    for family in FAMILIES:
        if family.model_type == model_type and family.classes:
            importlib.import_module(family.classes).register()


def config_from_folder(folder: str | Path) -> Any:
    """Read ``config.json`` of a Hugging Face folder. Custom code in it is never run.

    Raises:
        WeightsError: KT464 if it is absent or unusable.
    """
    from transformers import AutoConfig

    path = Path(folder)
    if not (path / "config.json").is_file():
        present = sorted(item.name for item in path.iterdir()) if path.is_dir() else []
        raise WeightsError.of(
            "KT464",
            f"{folder} has no config.json",
            facts=[f"found: {', '.join(present[:8]) or 'nothing'}"],
            help="give the folder that holds config.json and the tokenizer files",
        )
    try:
        values = json.loads((path / "config.json").read_bytes())
        make_known(str(values.get("model_type")))
        known = _same_model(values)
        if known is not None:
            return known
        config = AutoConfig.from_pretrained(
            str(path), trust_remote_code=False, local_files_only=True
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise WeightsError.of(
            "KT464",
            f"{path / 'config.json'} cannot be used",
            facts=[f"cause: {str(error).splitlines()[0] if str(error) else error!r}"],
            help="check the file; models with custom code are not supported",
        ) from error
    return config


def _same_model(values: Any) -> Any:
    """The config of a model that only its name keeps transformers from knowing (Kimi-K2)."""
    from transformers import CONFIG_MAPPING

    from kt_core.models.families import FAMILIES

    name = values.get("model_type")
    for family in FAMILIES:
        if name in family.other_model_types and name not in CONFIG_MAPPING:
            own = {key: value for key, value in values.items() if key != "auto_map"}
            return CONFIG_MAPPING[family.model_type].from_dict(
                {**own, "model_type": family.model_type}
            )
    return None


def skeleton_model(config: Any, dtype: torch.dtype) -> nn.Module:
    """Build the causal-LM model of ``config`` on the meta device: shapes, no memory.

    Raises:
        PlanError: KT302 if transformers cannot build it.
    """
    from transformers import AutoModelForCausalLM

    try:
        with torch.device("meta"), _no_weight_init():
            model: nn.Module = AutoModelForCausalLM.from_config(
                config, dtype=dtype, trust_remote_code=False
            )
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise PlanError.of(
            "KT302",
            f"transformers cannot build a {config.model_type} model from this configuration",
            facts=[f"cause: {str(error).splitlines()[0] if str(error) else error!r}"],
            help="check config.json or the file's metadata: kt inspect FILE",
        ) from error
    _keep_float32(model, config)
    return model.eval()


def reference_model(config: Any) -> nn.Module:
    """A float32 skeleton of ``config`` that computes in transformers' plainest way; on meta.

    Attention and experts are the loops written out in each model's own file. ``config`` is copied.
    """
    model = skeleton_model(copy.deepcopy(config), torch.float32)
    own: Any = model
    own.set_attn_implementation("eager")
    if hasattr(own, "set_experts_implementation"):
        own.set_experts_implementation("eager")
    return model


def _keep_float32(model: nn.Module, config: Any) -> None:
    """Widen what a family wants in float32; releases of transformers differ in what they widen."""
    from kt_core.models.family import family_for_config

    try:
        endings = family_for_config(config).float32
    except PlanError:  # an architecture of the caller's own; the plan will say that it is unknown
        return
    for module in model.modules():
        for owner in (module._parameters, module._buffers):
            for name, tensor in owner.items():
                if tensor is not None and name.endswith(endings):
                    tensor.data = tensor.data.float()


@contextmanager
def _no_weight_init() -> Iterator[None]:
    """Skip random initialisation: on meta it computes nothing and still costs time per module."""
    from transformers.initialization import no_init_weights

    with no_init_weights():
        yield


def rebuild_buffers(module: nn.Module, config: Any, device: torch.device) -> list[str]:
    """Give ``module``'s own buffers real values where they are on meta; return names it could not.

    A model built under the meta device has no values in buffers that no file stores (rotary
    frequencies). They are computed again by building a fresh instance of the same class.
    """
    for name, buffer in module.named_buffers(recurse=False):
        scalar = getattr(module, f"scalar_{name}", None)
        if buffer.is_meta and buffer.dim() == 0 and isinstance(scalar, int | float):
            # A scaled embedding keeps the number beside the buffer it fills with it.
            module._buffers[name] = torch.tensor(scalar, dtype=buffer.dtype, device=device)
    empty = [name for name, buffer in module.named_buffers(recurse=False) if buffer.is_meta]
    if not empty:
        return []
    fresh = _fresh_instance(module, config)
    if fresh is None:
        return empty
    values = dict(fresh.named_buffers(recurse=False))
    for name, value in values.items():
        if name in module._buffers:
            module._buffers[name] = value.to(device)
    for name, value in vars(fresh).items():
        # Plain attributes may alias a buffer (original_inv_freq in some releases).
        if isinstance(value, torch.Tensor):
            setattr(module, name, value.to(device))
    return [name for name in empty if name not in values]


def _fresh_instance(module: nn.Module, config: Any) -> nn.Module | None:
    parameters = inspect.signature(type(module).__init__).parameters
    own = getattr(module, "config", config)
    required = [
        name
        for name, parameter in list(parameters.items())[1:]
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]
    if required != ["config"]:
        return None
    with torch.device("cpu"):
        return type(module)(config=own)


def tied_parameters(model: nn.Module) -> dict[str, str]:
    """Parameters that share another one's weight by the model's configuration: name -> source."""
    if not getattr(model.config, "tie_word_embeddings", False):
        return {}
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()  # type: ignore[operator]
    names = {module: name for name, module in model.named_modules()}
    if head is None or head not in names or embedding not in names:
        return {}
    return {f"{names[head]}.weight": f"{names[embedding]}.weight"}


def dynamic_cache(model: nn.Module) -> Any:
    """A key/value cache that grows with the sequence."""
    from kt_core.models.hf_cache import appending_cache

    return appending_cache(model.config)


@lru_cache(maxsize=16)
def _cache_keyword(forward: Callable[..., Any]) -> str:
    # Renamed in transformers 5.2x; the old word still works there but warns on each call.
    names = inspect.signature(forward).parameters
    return "cache" if "cache" in names else "past_key_values"


def forward_logits(
    model: nn.Module, tokens: torch.Tensor, cache: Any, *, keep: int = 1
) -> torch.Tensor:
    """Run ``tokens`` ``(1, n)`` through the model; return logits ``(1, keep, vocab)`` (0: all).

    Floating ``tokens`` ``(1, n, hidden)`` are embeddings already.
    """
    keyword = _cache_keyword(type(model).forward)
    if tokens.is_floating_point():
        inputs = {"inputs_embeds": tokens}
    else:
        inputs = {"input_ids": tokens.to(embedding_of(model).weight.device)}
    with torch.inference_mode():
        output = model(**inputs, **{keyword: cache}, use_cache=True, logits_to_keep=keep)
    logits: torch.Tensor = output.logits
    return logits


def embedding_of(model: nn.Module) -> Any:
    """The module that turns token ids into hidden states."""
    return model.get_input_embeddings()  # type: ignore[operator]
