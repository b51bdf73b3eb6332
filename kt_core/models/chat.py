"""Messages to prompt ids through the model's own chat template, in a sandbox."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from kt_core.errors import WeightsError

logger = logging.getLogger(__name__)


def chat_prompt(tokenizer: Any, messages: Sequence[Mapping[str, str]]) -> torch.Tensor:
    """Return prompt ids ``(1, n)`` int64 for ``messages`` (dicts with ``role`` and ``content``).

    A model without a template gets the contents joined by newlines. Text of the template itself may
    hold special tokens; text of the messages is whatever the tokenizer makes of it.

    Raises:
        WeightsError: KT470 if the template is broken or tries to leave its sandbox.
    """
    if not getattr(tokenizer, "chat_template", None):
        logger.info("the model has no chat template; the messages are used as plain text")
        text = "\n".join(message["content"] for message in messages)
        ids = tokenizer(text).input_ids
    else:
        from jinja2 import TemplateError

        try:
            text = tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=True
            )
        except (TemplateError, TypeError, ValueError, KeyError, OverflowError) as error:
            raise WeightsError.of(
                "KT470",
                "the model's chat template cannot be used",
                facts=[f"cause: {type(error).__name__}: {error}"],
                help="give plain text instead: kt chat --raw",
            ) from error
        ids = tokenizer(text, add_special_tokens=False).input_ids
    return torch.tensor([ids], dtype=torch.int64)
