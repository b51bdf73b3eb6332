"""Configuration and tokenizer from a GGUF alone are those of the model's Hugging Face folder."""

from __future__ import annotations

import json

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from kt_core.models.pretokenizers import SPLITS
from kt_core.runtime.load import prepare

from .gguf_of_model import write_gguf
from .tiny_models import CASES

TEXTS = [
    "The capital of France is Paris. The people of France speak French, don't they?",
    "  def f(x):\n\treturn x ** 2  # 12345 times\n\n",
    "na\u00efve caf\u00e9 \u2014 \u201cquotes\u201d \U0001f600",
    "\u4e2d\u6587\u6d4b\u8bd5 \u3053\u3093\u306b\u3061\u306f 3.14159",
    "<|im_start|>user\nHello<|im_end|>",
    "",
    " ",
]
SPECIAL = ["<|bos|>", "<|im_end|>", "<|im_start|>", "<|pad|>", "<|endoftext|>"]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ROOM = 384

# What the converter writes for the published models; None: SentencePiece.
PRE = {
    "llama": "llama-bpe",
    "mistral": "tekken",
    "mixtral": None,
    "qwen2": "qwen2",
    "qwen3": "qwen2",
    "qwen2_moe": "qwen2",
    "qwen3_moe": "qwen2",
    "qwen3_next": "qwen2",
    "deepseek_v2": "deepseek-llm",
    "deepseek_v3": "deepseek-v3",
    "glm4_moe": "glm4",
    "gpt_oss": "gpt-4o",
    "gemma3_text": None,
    "minimax_m2": "minimax-m2",
    "smallthinker": "qwen2",
}
ONCE = {case.model_type: case for case in CASES}
NOT_COMPARED = {"_name_or_path", "architectures", "dtype", "model_type", "sliding_window"}


def byte_level(pre):
    """A byte-level BPE trained on the texts, cut by the rule ``pre``."""
    backend = Tokenizer(models.BPE())
    cuts = [
        pre_tokenizers.Split(Regex(pattern), behavior="isolated")
        for pattern in SPLITS[pre]
        if pattern
    ]
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=None in SPLITS[pre])]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=ROOM,
        special_tokens=SPECIAL,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    backend.train_from_iterator(TEXTS * 3, trainer)
    return backend


def sentencepiece(prefix):
    """Pieces in the order they were learnt, single bytes for whatever has none; as converted by HF."""
    learnt = Tokenizer(models.BPE())
    learnt.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
    learnt.train_from_iterator(
        TEXTS[:2] * 3, trainers.BpeTrainer(vocab_size=80, show_progress=False)
    )
    pieces = sorted(learnt.get_vocab(), key=learnt.get_vocab().get)
    tokens = ["<unk>", *SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    ids = {token: index for index, token in enumerate(tokens)}
    merges = [
        (token[:cut], token[cut:])
        for token in pieces
        for cut in sorted(range(1, len(token)), key=lambda cut, t=token: ids.get(t[:cut], 0))
        if token[:cut] in ids and token[cut:] in ids
    ]
    backend = Tokenizer(
        models.BPE(vocab=ids, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    steps = [normalizers.Prepend("\u2581")] if prefix else []
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "\u2581")])
    tail = [decoders.Strip(" ", 1, 0)] if prefix else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), *tail]
    )
    backend.add_special_tokens(SPECIAL)
    return backend


def metadata(tokenizer, pre, prefix):
    """The keys that the converter writes for ``tokenizer``."""
    ids = tokenizer.get_vocab()
    tokens = sorted(ids, key=ids.get)
    types = [3 if token in SPECIAL else 1 for token in tokens]
    keys = {
        "tokenizer.ggml.model": "gpt2" if pre else "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.bos_token_id": ids["<|bos|>"],
        "tokenizer.ggml.eos_token_id": ids["<|im_end|>"],
        "tokenizer.ggml.padding_token_id": ids["<|pad|>"],
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": TEMPLATE,
    }
    if pre:
        merges = tokenizer.backend_tokenizer.model.__getstate__().decode()
        keys |= {"tokenizer.ggml.pre": pre, "tokenizer.ggml.merges": _merges(merges)}
    else:
        types = [
            2 if token == "<unk>" else 6 if token.startswith("<0x") else kind
            for token, kind in zip(tokens, types, strict=True)
        ]
        keys |= {
            "tokenizer.ggml.scores": [float(-index) for index in range(len(tokens))],
            "tokenizer.ggml.unknown_token_id": 0,
            "tokenizer.ggml.add_space_prefix": prefix,
        }
    return keys | {"tokenizer.ggml.token_type": types}


def _merges(state):
    pairs = json.loads(state)["merges"]
    return [pair if isinstance(pair, str) else " ".join(pair) for pair in pairs]


@pytest.mark.parametrize("model_type", PRE)
def test_a_file_alone_says_what_the_folder_says(model_type, tmp_path):
    case, pre = ONCE[model_type], PRE[model_type]
    prefix = model_type == "mixtral"
    backend = byte_level(pre) if pre else sentencepiece(prefix)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        clean_up_tokenization_spaces=False,
        bos_token="<|bos|>",
        eos_token="<|im_end|>",
        pad_token="<|pad|>",
    )
    tokenizer.chat_template = TEMPLATE
    model = case.build()
    for name in ("bos", "eos", "pad"):
        setattr(model.config, f"{name}_token_id", getattr(tokenizer, f"{name}_token_id"))
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(tmp_path / "folder")
    tokenizer.save_pretrained(tmp_path / "folder")
    file = tmp_path / "model.gguf"
    general = metadata(tokenizer, pre, prefix)
    write_gguf(model, file, case.gguf, "F32", case.style, general=general)

    alone = prepare(file, rules=None, device="cpu")
    beside = prepare(file, rules=None, device="cpu", model=tmp_path / "folder")
    try:
        found, expected = alone.tokenizer(), beside.tokenizer()
    finally:
        alone.source.close()
        beside.source.close()
    assert found.get_vocab() == expected.get_vocab()
    assert found.chat_template == expected.chat_template
    for role in ("bos", "eos", "pad"):
        assert getattr(found, f"{role}_token_id") == getattr(expected, f"{role}_token_id")
    for text in TEXTS:
        ids = expected(text).input_ids
        assert found(text).input_ids == ids, text
        assert found.decode(ids) == expected.decode(ids)
    messages = [{"role": "user", "content": TEXTS[0]}]
    chats = [
        t.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        for t in (found, expected)
    ]
    assert chats[0] == chats[1]
    configs = [prepared.model.config.to_dict() for prepared in (alone, beside)]
    shared = (configs[0].keys() & configs[1].keys()) - NOT_COMPARED
    assert len(shared) > 20
    assert {k: configs[0][k] for k in shared} == {k: configs[1][k] for k in shared}


def test_every_family_is_among_them():
    assert set(PRE) == set(ONCE)
