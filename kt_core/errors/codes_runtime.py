"""KT71x to KT73x: arguments of loading, generation and benchmarks."""

from __future__ import annotations

from kt_core.errors.codes import Code

CODES = (
    Code(
        "KT710",
        "This is no device",
        "Devices are cpu, cuda, cuda:N, xpu and npu.",
        'KT710 "gpu" is no device\n  help: use cpu, cuda, cuda:1, xpu or npu',
    ),
    Code(
        "KT720",
        "The model already holds weights",
        "optimize_and_load_gguf fills a model that was built on the meta device, so that nothing "
        "is allocated twice.",
        "KT720 the model already holds weights (model.embed_tokens.weight, …)\n"
        '  help: build it on meta: with torch.device("meta"): model = …from_config(config)',
    ),
    Code(
        "KT721",
        "A sampling option is out of range",
        "temperature is 0 (greedy) to 100, top_k at least 1, top_p above 0 and at most 1, min_p 0 "
        "to 1, repetition_penalty above 0; seed fits 64 bits.",
        "KT721 top_p must lie between 1e-09 and 1, got 2.0",
    ),
    Code(
        "KT722",
        "The prompt cannot be run",
        "A prompt is one sequence of at least one token id of the model's vocabulary, and no "
        "longer than the model's context.",
        "KT722 token id 259 is outside the vocabulary of 259\n"
        "  help: use the model's own tokenizer",
    ),
    Code(
        "KT723",
        "A count is impossible",
        "Numbers of tokens, chunks and runs start at 1 (new tokens at 0) and fit the context.",
        "KT723 max_new_tokens=-1 and chunk_size=16384 must be positive",
    ),
    Code(
        "KT724",
        "An argument of prefill_and_generate is not supported",
        "The signature is KTransformers'. Draft models, FlashInfer MLA planning and the modes "
        "other than normal are not there; they are refused instead of ignored.",
        "KT724 mode='long_context' is not supported\n  help: leave mode out",
    ),
    Code(
        "KT725",
        "No model, or not enough of one, was given",
        "A command needs weights (--gguf FILE), and safetensors need the folder with their "
        "config.json.",
        "KT725 no model was given\n  help: kt chat --gguf FILE -p TEXT",
    ),
    Code(
        "KT726",
        "This is no dtype",
        "Activations are bfloat16, float16 or float32.",
        'KT726 "int8" is no dtype\n  help: use bfloat16, float16, float32 or auto',
    ),
    Code(
        "KT727",
        "The file carries no tokenizer",
        "There is nothing to turn text into token ids with. Give the folder with the tokenizer's "
        "files; kt bench works without one.",
        "KT727 x.gguf carries no tokenizer, so there is nothing to talk with\n"
        "  help: give the folder with the tokenizer files: --model DIR",
    ),
    Code(
        "KT728",
        "The kernel to measure cannot be used",
        "It is not registered, or cannot run on this machine; the reasons follow.",
        "KT728 no kernel was named\n  help: list them: kt plugins",
    ),
    Code(
        "KT729",
        "An option of kt bench is wrong",
        "Threads lie in 1 to 1024, sizes of a layer in 1 to 2^20, no more experts are chosen than "
        "there are; lists are numbers separated by commas.",
        "KT729 -t 0: threads must lie in 1 to 1024",
    ),
    Code(
        "KT730",
        "No picture can be drawn",
        "--plot draws the rows of --layer and needs matplotlib.",
        'KT730 --plot needs matplotlib\n  help: pip install "kt-core[plot]"',
    ),
)
