"""KT46x and KT47x: what a weight file says about its model, tokenizer and chat template."""

from __future__ import annotations

from kt_core.errors.codes import Code

CODES = (
    Code(
        "KT460",
        "The metadata lacks a key",
        "A GGUF file describes its model in key/value metadata. A key that the architecture cannot "
        "do without is absent, so no configuration can be made. Convert the model again with a "
        "current converter, or give a folder with its config.json.",
        'KT460 tiny.gguf has no "llama.block_count" in its metadata\n'
        "  architecture: llama\n"
        "  help: convert the model again with a current converter, or give a folder with its "
        "config.json: --model DIR",
    ),
    Code(
        "KT461",
        "A key of the metadata has an impossible value",
        "The value has the wrong type, lies outside what any model has, or contradicts another key "
        "or the tensors in the file. Nothing is built from it. The file is damaged, or was written "
        "by a faulty converter.",
        'KT461 tiny.gguf: "llama.attention.head_count_kv" must divide the 4 query heads, found 3\n'
        "  help: the file is damaged or was written by a faulty converter; get it again",
    ),
    Code(
        "KT462",
        "Tensors cannot be brought into shape",
        "Some families store parameters in another order or split differently from transformers. "
        "The stored tensors do not have the shapes that the rearrangement needs.",
        "KT462 blk.0.attn_q.weight cannot be brought into shape (unpermute_rope)\n"
        "  help: the file does not fit its own metadata; get it again",
    ),
    Code(
        "KT463",
        "The architecture is not known",
        "general.architecture names a family for which kt has no adapter. CONTRIBUTING.md says "
        "which files an adapter touches.",
        'KT463 x.gguf holds a model of the architecture "wavenet", which kt does not know\n'
        "  known: llama, qwen3moe",
    ),
    Code(
        "KT464",
        "A model folder is incomplete",
        "The folder given as --model, or the one that safetensors lie in, lacks config.json or "
        "tokenizer files, or holds some that transformers cannot use. Custom code in a model "
        "folder is never run.",
        "KT464 ./model has no config.json\n"
        "  found: README.md\n"
        "  help: give the folder that holds config.json and the tokenizer files",
    ),
    Code(
        "KT465",
        "No tokenizer can be made from the file",
        "The GGUF carries no vocabulary, one of a kind that kt cannot build, or names a rule for "
        "cutting words that kt does not know. A guess would give token ids that look fine and are "
        "wrong, so there is none. Give the folder with the model's own tokenizer files.",
        'KT465 x.gguf has a tokenizer of the kind "rwkv", which kt cannot build\n'
        "  known: gpt2 (byte-level BPE), llama (SentencePiece BPE)\n"
        "  help: give the folder with the model's tokenizer files: --model DIR",
    ),
    Code(
        "KT466",
        "The vocabulary contradicts itself",
        "Lists of the vocabulary have different lengths or types, or a special token's id lies "
        "outside it. The file is damaged.",
        "KT466 x.gguf: tokenizer.ggml.token_type has 2 entries, tokens 259\n"
        "  help: the file is damaged; get it again, or give a folder: --model DIR",
    ),
    Code(
        "KT467",
        "transformers has no class for the architecture",
        "kt builds every model from transformers' own classes, and transformers does not have this "
        "one yet. The file itself may be fine.",
        'KT467 transformers has no class for the architecture "arctic" of x.gguf\n'
        "  help: ask for the model in transformers; kt builds every model from its classes",
    ),
    Code(
        "KT468",
        "The checkpoint is quantised in a way kt reads from GGUF only",
        "Its values mean nothing without their scales, and kt does not know this safetensors "
        "format. Reading them as they are would give garbage, so loading stops.",
        "KT468 ./model is quantised (FP8, MXFP4, compressed); kt reads that from GGUF only\n"
        "  help: use a GGUF file of the model, or a checkpoint in bfloat16",
    ),
    Code(
        "KT470",
        "The chat template cannot be used",
        "The template is a small program inside the file. It has an error, or tried to reach "
        "outside the sandbox it runs in. Use the model with plain text instead.",
        "KT470 the model's chat template cannot be used\n"
        "  cause: SecurityError: access to attribute '__class__' is unsafe\n"
        "  help: give plain text instead: kt chat --raw",
    ),
)
