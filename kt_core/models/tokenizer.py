"""A transformers tokenizer from the vocabulary that a GGUF file carries."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from kt_core.errors import WeightsError
from kt_core.models.pretokenizers import SPLITS

logger = logging.getLogger(__name__)

_CONTROL, _USER_DEFINED, _BYTE = 3, 4, 6

# Control tokens that end a turn, where the file names no end-of-turn id of its own.
_TURN_ENDS = frozenset(
    {"<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>"}
)


def tokenizer_from_gguf(metadata: Mapping[str, Any], path: str) -> Any:
    """Build the tokenizer; ``kt_end_token_ids`` on it lists every id that ends an answer.

    Raises:
        WeightsError: KT465 if the file carries none or a kind kt cannot build, KT466 if it is
            inconsistent.
    """
    vocabulary = _Vocabulary(metadata, path)
    if vocabulary.model == "gpt2":
        backend = _byte_level_bpe(vocabulary)
    elif vocabulary.model == "llama":
        backend = _sentencepiece_bpe(vocabulary)
    else:
        raise WeightsError.of(
            "KT465",
            f'{path} has a tokenizer of the kind "{vocabulary.model}", which kt cannot build',
            facts=["known: gpt2 (byte-level BPE), llama (SentencePiece BPE)"],
            help="give the folder with the model's tokenizer files: --model DIR",
        )
    return _wrap(backend, vocabulary)


class _Vocabulary:
    """The ``tokenizer.ggml.*`` keys, checked against each other."""

    def __init__(self, metadata: Mapping[str, Any], path: str) -> None:
        self._metadata = metadata
        self.path = path
        self.model = metadata.get("tokenizer.ggml.model")
        if self.model is None or self.model == "none":
            raise WeightsError.of(
                "KT465",
                f"{path} carries no tokenizer",
                help="give the folder with the model's tokenizer files: --model DIR",
            )
        self.tokens: list[str] = self._list("tokens", str)
        if not self.tokens:
            raise self._wrong("tokenizer.ggml.tokens is empty")
        self.types: list[int] = self._list("token_type", int) or [1] * len(self.tokens)
        if len(self.types) != len(self.tokens):
            raise self._wrong(
                f"tokenizer.ggml.token_type has {len(self.types)} entries, tokens "
                f"{len(self.tokens)}"
            )

    def _list(self, key: str, kind: type | tuple[type, ...]) -> list[Any]:
        value = self._metadata.get(f"tokenizer.ggml.{key}")
        if value is None:
            return []
        if isinstance(value, str) or not isinstance(value, Sequence):
            value = list(value) if hasattr(value, "__iter__") else [value]
        items = list(value)
        if any(not isinstance(item, kind) for item in items):
            raise self._wrong(f"tokenizer.ggml.{key} holds values of the wrong type")
        return items

    @property
    def merges(self) -> list[tuple[str, str]]:
        pairs = [tuple(merge.split(" ")) for merge in self._list("merges", str)]
        if any(len(pair) != 2 for pair in pairs):
            raise self._wrong("tokenizer.ggml.merges holds an entry that is no pair")
        return pairs

    @property
    def scores(self) -> list[float]:
        scores = self._list("scores", (float, int))
        if len(scores) != len(self.tokens):
            raise self._wrong(
                f"tokenizer.ggml.scores has {len(scores)} entries, tokens {len(self.tokens)}"
            )
        return scores

    def flag(self, key: str, default: bool) -> bool:
        value = self._metadata.get(f"tokenizer.ggml.{key}", default)
        return value if isinstance(value, bool) else default

    def token_id(self, key: str) -> int | None:
        value = self._metadata.get(f"tokenizer.ggml.{key}")
        if value is None:
            return None
        if not isinstance(value, int) or not 0 <= value < len(self.tokens):
            raise self._wrong(f"tokenizer.ggml.{key} is {value!r}, outside the vocabulary")
        return value

    @property
    def pre(self) -> str:
        return str(self._metadata.get("tokenizer.ggml.pre", "default"))

    @property
    def chat_template(self) -> str | None:
        value = self._metadata.get("tokenizer.chat_template")
        return value if isinstance(value, str) else None

    def _wrong(self, why: str) -> WeightsError:
        return WeightsError.of(
            "KT466",
            f"{self.path}: {why}",
            help="the file is damaged; get it again, or give a folder: --model DIR",
        )


def _byte_level_bpe(vocabulary: _Vocabulary) -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    if vocabulary.pre not in SPLITS:
        raise WeightsError.of(
            "KT465",
            f'{vocabulary.path} cuts words by the rule "{vocabulary.pre}", which kt does not know',
            facts=[f"known: {', '.join(sorted(SPLITS))}"],
            help="give the folder with the model's tokenizer files: --model DIR",
        )
    ids = {token: index for index, token in enumerate(vocabulary.tokens)}
    backend = Tokenizer(models.BPE(vocab=ids, merges=vocabulary.merges, fuse_unk=False))
    patterns = SPLITS[vocabulary.pre]
    steps: list[Any] = [
        pre_tokenizers.Split(Regex(pattern), behavior="isolated")
        for pattern in patterns
        if pattern is not None
    ]
    prefix = vocabulary.flag("add_space_prefix", False)
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=None in patterns))
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece_bpe(vocabulary: _Vocabulary) -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers

    ids = {token: index for index, token in enumerate(vocabulary.tokens)}
    unknown = vocabulary.token_id("unknown_token_id")
    backend = Tokenizer(
        models.BPE(
            vocab=ids,
            merges=_merges_from_scores(vocabulary, ids),
            unk_token=None if unknown is None else vocabulary.tokens[unknown],
            fuse_unk=True,
            byte_fallback=_BYTE in vocabulary.types,
        )
    )
    prefix = vocabulary.flag("add_space_prefix", True)
    steps: list[Any] = [normalizers.Prepend("▁")] if prefix else []
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    tail: list[Any] = [decoders.Strip(" ", 1, 0)] if prefix else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *tail]
    )
    return backend


def _merges_from_scores(vocabulary: _Vocabulary, ids: Mapping[str, int]) -> list[tuple[str, str]]:
    """SentencePiece joins the pair whose result scores best; BPE needs that order as a list."""
    scored: list[tuple[float, int, int, str, str]] = []
    for token, score in zip(vocabulary.tokens, vocabulary.scores, strict=True):
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ids and right in ids:
                scored.append((-score, ids[left], ids[right], left, right))
    scored.sort()
    return [(left, right) for *_, left, right in scored]


def _wrap(backend: Any, vocabulary: _Vocabulary) -> Any:
    from tokenizers import AddedToken, processors
    from transformers import PreTrainedTokenizerFast

    names = {
        f"{role}_token": vocabulary.tokens[token]
        for role, key in (
            ("bos", "bos_token_id"),
            ("eos", "eos_token_id"),
            ("unk", "unknown_token_id"),
            ("pad", "padding_token_id"),
        )
        if (token := vocabulary.token_id(key)) is not None
    }
    for kind, special in ((_CONTROL, True), (_USER_DEFINED, False)):
        found = [t for t, k in zip(vocabulary.tokens, vocabulary.types, strict=True) if k == kind]
        added = [AddedToken(text, special=special, normalized=False) for text in found]
        (backend.add_special_tokens if special else backend.add_tokens)(added)
    if vocabulary.flag("add_bos_token", vocabulary.model == "llama") and "bos_token" in names:
        bos = names["bos_token"]
        backend.post_processor = processors.TemplateProcessing(
            single=f"{bos}:0 $A:0",
            pair=f"{bos}:0 $A:0 {bos}:1 $B:1",
            special_tokens=[(bos, vocabulary.token_id("bos_token_id"))],
        )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, clean_up_tokenization_spaces=False, **names
    )
    tokenizer.chat_template = vocabulary.chat_template
    tokenizer.kt_end_token_ids = _end_tokens(vocabulary)
    return tokenizer


def _end_tokens(vocabulary: _Vocabulary) -> list[int]:
    named = (vocabulary.token_id(key) for key in ("eos_token_id", "eot_token_id", "eom_token_id"))
    ends = {token for token in named if token is not None}
    for index, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True)):
        if kind == _CONTROL and token in _TURN_ENDS:
            ends.add(index)
    return sorted(ends)


def tokenizer_from_folder(folder: str) -> Any:
    """Load a Hugging Face tokenizer; nothing is fetched and no code from the folder runs.

    Raises:
        WeightsError: KT464 if the folder has none.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise WeightsError.of(
            "KT464",
            f"{folder} has no usable tokenizer",
            facts=[f"cause: {str(error).splitlines()[0] if str(error) else error!r}"],
            help="the folder needs tokenizer.json (or the files it is made of)",
        ) from error
