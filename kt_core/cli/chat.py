"""``kt chat``: ask a model once, or talk to it."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from kt_core.cli.model_options import add_model_options, model_arguments
from kt_core.cli.output import write

if TYPE_CHECKING:
    from kt_core.runtime.load import LoadedModel


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    add_model_options(parser)
    parser.add_argument("-p", "--prompt", metavar="TEXT", help="ask this and exit")
    parser.add_argument("--system", metavar="TEXT", help="system message")
    parser.add_argument(
        "--raw", action="store_true", help="no chat template: continue the text as it is"
    )
    parser.add_argument("--max-new-tokens", type=int, default=512, metavar="N")
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0: greedy")
    parser.add_argument("--top-k", type=int, metavar="K")
    parser.add_argument("--top-p", type=float, metavar="P")
    parser.add_argument("--min-p", type=float, metavar="P")
    parser.add_argument("--seed", type=int, metavar="N")
    parser.add_argument("--stop", action="append", default=[], metavar="TEXT")
    parser.add_argument(
        "--chunk-size", type=int, default=16384, metavar="N", help="prompt tokens per step"
    )
    parser.add_argument("--show-plan", action="store_true", help="print the plan first")
    parser.add_argument("--no-stats", action="store_true", help="do not print the speed")
    parser.epilog = (
        "Without -p, a terminal gets a conversation (/clear forgets it, /exit or Ctrl-D ends it); "
        "piped input is one prompt."
    )


def run(args: argparse.Namespace) -> int:
    """Load the model and answer."""
    from kt_core.errors import UsageError
    from kt_core.runtime.load import load
    from kt_core.runtime.sampling import Sampling

    if args.gguf is None and args.model is None:
        raise UsageError.of("KT725", "no model was given", help="kt chat --gguf FILE -p TEXT")
    sampling = Sampling(
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        min_p=args.min_p,
        seed=args.seed,
    )
    loaded = load(args.gguf or args.model, **model_arguments(args))
    if loaded.tokenizer is None:
        raise UsageError.of(
            "KT727",
            f"{args.gguf} carries no tokenizer, so there is nothing to talk with",
            help="give the folder with the tokenizer files: --model DIR",
        )
    if args.show_plan:
        from kt_core.plan.render import summary

        write(summary(loaded.plan), sys.stderr)
    if args.prompt is not None:
        return _Chat(loaded, args, sampling).once(args.prompt)
    if not sys.stdin.isatty():
        return _Chat(loaded, args, sampling).once(sys.stdin.read())
    return _Chat(loaded, args, sampling).talk()


class _Chat:
    def __init__(self, loaded: LoadedModel, args: argparse.Namespace, sampling: Any) -> None:
        self._loaded = loaded
        self._args = args
        self._sampling = sampling
        self._messages: list[dict[str, str]] = []
        self._reset()

    def _reset(self) -> None:
        self._messages = []
        if self._args.system:
            self._messages.append({"role": "system", "content": self._args.system})

    def once(self, text: str) -> int:
        """Answer one prompt."""
        self._answer(text)
        return 0

    def talk(self) -> int:
        """Read prompts until the end of input."""
        session = _prompt_session()
        while True:
            try:
                text = session()
            except EOFError:
                return 0
            except KeyboardInterrupt:
                continue
            if text.strip() in ("/exit", "/quit"):
                return 0
            if text.strip() == "/clear":
                self._reset()
            elif text.strip():
                self._answer(text)

    def _answer(self, text: str) -> None:
        from kt_core.runtime.generate import Generation

        self._messages.append({"role": "user", "content": text})
        result = Generation()
        steps = self._loaded.stream(
            self._prompt(text),
            self._args.max_new_tokens,
            sampling=self._sampling,
            stop=self._args.stop,
            chunk_size=self._args.chunk_size,
            result=result,
        )
        try:
            for step in steps:
                print(step.text, end="", flush=True)
        except KeyboardInterrupt:
            if not sys.stdin.isatty() or self._args.prompt is not None:
                raise
            print(" [stopped]", end="")
        print()
        self._messages.append({"role": "assistant", "content": result.text})
        if not self._args.no_stats:
            timings = result.timings
            write(
                f"[prefill {timings.prefill_tokens} tokens, "
                f"{timings.prefill_tokens_per_s:.1f}/s; decode {timings.decode_tokens} tokens, "
                f"{timings.decode_tokens_per_s:.1f}/s]",
                sys.stderr,
            )

    def _prompt(self, text: str) -> Any:
        if self._args.raw:
            return self._loaded.tokenizer(text, return_tensors="pt").input_ids
        return self._loaded.prompt(self._messages)


def _prompt_session() -> Any:
    """A line editor with history, in which a paste of several lines is one prompt."""
    from prompt_toolkit import PromptSession

    session: PromptSession[str] = PromptSession()
    return lambda: session.prompt("> ")
