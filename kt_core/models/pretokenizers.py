"""How text is cut into words before byte-pair merging, by the name in ``tokenizer.ggml.pre``.

A wrong pattern gives token ids that look fine and are not, so an unknown name is an error. The
patterns are those of the models' own Hugging Face tokenizers.
"""

from __future__ import annotations

# GPT-2's words; tokenizers knows this one as ByteLevel(use_regex=True).
GPT2 = None

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"
    r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

SPLITS: dict[str, tuple[str | None, ...]] = {
    "default": (GPT2,),
    "gpt-2": (GPT2,),
    "smollm": (r"\p{N}", GPT2),
    "starcoder": (r"\p{N}", GPT2),
    "refact": (r"\p{N}", GPT2),
    "codeshell": (r"\p{N}", GPT2),
    "command-r": (r"\p{N}", GPT2),
    "llama-bpe": (_LLAMA3,),
    "llama3": (_LLAMA3,),
    "llama-v3": (_LLAMA3,),
    "dbrx": (_LLAMA3,),
    "smaug-bpe": (_LLAMA3,),
    "chatglm-bpe": (_LLAMA3,),
    "glm4": (_LLAMA3,),
    "qwen2": (_QWEN2,),
    "deepseek-r1-qwen": (_QWEN2,),
    "stablelm2": (_QWEN2,),
    "megrez": (_QWEN2,),
    "gpt-4o": (_O200K,),
    "llama4": (_O200K,),
    "deepseek-v3": (r"\p{N}{1,3}", r"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", _DEEPSEEK3),
}
"""Each pattern isolates its matches in what the previous ones left."""
