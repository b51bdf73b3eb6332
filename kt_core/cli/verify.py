"""Hold a model, loaded by its rules, against plain modules on dequantised weights.

This is the answer to "the output is garbage": it says which module computes something else than it
should, in which phase, and by how much. The reference reads the file in its own way and goes layer
by layer, so it takes one layer more memory than the model.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from kt_core.cli.counts import at_least
from kt_core.cli.model_options import add_model_options, model_arguments

if TYPE_CHECKING:
    import torch

    from kt_core.runtime.load import Prepared

PROMPT = (
    "The river rose in the night. In the morning the bridge was gone, and the people of the village "
    "stood on the bank and looked at the water. Nobody said a word for a long time. Then an old man "
    "laughed and went to fetch his boat."
)
MANY_EXPERTS = 256 << 20
"""Of layers whose experts take more bytes than that only a sample is called one by one."""

SAMPLE = 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    add_model_options(parser)
    parser.add_argument("-p", "--prompt", default=PROMPT, metavar="TEXT", help="what is run")
    parser.add_argument(
        "--tokens",
        type=at_least(2),
        default=28,
        metavar="N",
        help="tokens of the prompt, at most (default: 28)",
    )
    parser.add_argument(
        "--decode",
        type=at_least(1),
        default=4,
        metavar="N",
        help="tokens after them that are run one by one (default: 4)",
    )
    parser.add_argument(
        "--reference",
        metavar="DIR",
        help="folder with the original safetensors: also compare the file with them",
    )
    parser.add_argument(
        "--experts",
        type=at_least(0),
        metavar="N",
        help=f"experts of a layer that are also called by themselves (default: all, or {SAMPLE} "
        "where they are large)",
    )
    parser.add_argument("--modules", action="store_true", help="also list what is as it should be")
    parser.add_argument("--drift", action="store_true", help="list the hidden states of all layers")
    parser.add_argument("--strict", action="store_true", help="fail on suspect modules too")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.epilog = (
        "Verdicts: ok, within what its kernel promises; suspect, up to four times that; broken, "
        "beyond. Exit: 0 nothing is broken, 1 something is, 2 wrong usage, 3 an operator is missing."
    )


def run(args: argparse.Namespace) -> int:
    """Verify, report, and return the exit code."""
    from kt_core.cli import exit_codes
    from kt_core.cli.output import write, write_json
    from kt_core.runtime.apply import apply_plan
    from kt_core.runtime.load import prepare
    from kt_core.verify import report as reports
    from kt_core.verify.compare import BROKEN, SUSPECT
    from kt_core.verify.run import verify

    if args.gguf is None:
        from kt_core.errors import UsageError

        raise UsageError.of("KT725", "no weights were given", help="kt verify --gguf FILE")
    prepared = prepare(args.gguf, **model_arguments(args))
    source: Any = prepared.source
    with source:
        tokens, notes = _tokens(prepared, args)
        apply_plan(prepared.model, prepared.plan, source, prepared.registry)
        checkpoint = _checkpoint(args.reference)
        try:
            report = verify(
                prepared.model,
                prepared.plan,
                source,
                prepared.registry,
                tokens,
                decode=args.decode,
                experts=_experts(prepared, args.experts),
                checkpoint=checkpoint,
                progress=_show_progress,
            )
        finally:
            _show_progress("")
            if checkpoint is not None:
                checkpoint.close()
    report.notes.extend(notes)
    if args.reference is not None:
        from kt_core.verify.configuration import compare_configuration

        report.findings.extend(compare_configuration(prepared.model.config, args.reference))
    if args.format == "json":
        write_json(report.to_json())
    else:
        write("\n".join(reports.lines(report, everything=args.modules)))
        if args.drift:
            write("\n" + "\n".join(reports.drift_lines(report)))
    bad = (BROKEN, SUSPECT) if args.strict else (BROKEN,)
    return exit_codes.INPUT if report.verdict in bad else exit_codes.OK


def _tokens(prepared: Prepared, args: argparse.Namespace) -> tuple[torch.Tensor, list[str]]:
    """Token ids ``(1, n)`` of the prompt; of a file without a tokenizer any ids."""
    import torch

    wanted = args.tokens + args.decode
    tokenizer = prepared.tokenizer()
    if tokenizer is None:
        generator = torch.Generator().manual_seed(0)
        config: Any = prepared.model.config
        ids = torch.randint(0, config.vocab_size, (1, wanted), generator=generator)
        return ids, ["the file has no tokenizer, so the prompt is random tokens"]
    ids = torch.tensor([tokenizer(args.prompt)["input_ids"][:wanted]], dtype=torch.long)
    if ids.shape[1] < args.decode + 2:
        from kt_core.errors import UsageError

        raise UsageError.of(
            "KT737",
            f"the prompt has {ids.shape[1]} tokens; {args.decode + 2} are needed",
            help="give a longer one with --prompt, or decode less: --decode 1",
        )
    return ids, []


def _checkpoint(folder: str | None) -> Any:
    if folder is None:
        return None
    from kt_core.weights import open_weights

    return open_weights(folder)


def _experts(prepared: Prepared, wanted: int | None) -> int | None:
    if wanted is not None:
        return wanted
    largest = max((m.stored for m in prepared.plan.modules if m.experts is not None), default=0)
    return None if largest <= MANY_EXPERTS else SAMPLE


def _show_progress(text: str) -> None:
    """One line on a terminal, written over each time."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
