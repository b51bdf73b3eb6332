"""From token ids to text as it is streamed: whole characters only, stop strings held back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# A character has at most four bytes; after that many tokens it is not going to become one.
_LONGEST_CHARACTER = 4


class TextStream:
    """Turns tokens into text pieces. ``stopped`` is set once a stop string has appeared."""

    def __init__(self, tokenizer: Any, stop: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._stop = [text for text in stop if text]
        self._tokens: list[int] = []
        self._sent = 0
        self._waiting = 0
        self._held = ""
        self.stopped = False

    def push(self, token: int) -> str:
        """Add a token; return the text that can be shown now."""
        if self._tokenizer is None or self.stopped:
            return ""
        self._tokens.append(token)
        text = self._decode()
        # An unfinished UTF-8 sequence decodes to the replacement character; wait for the rest.
        if text.endswith("�") and self._waiting < _LONGEST_CHARACTER:
            self._waiting += 1
            return ""
        self._waiting = 0
        piece = text[self._sent :]
        if text and (text[-1].isspace() or len(self._tokens) >= 64):
            # Restart at a boundary, so that decoding stays linear in the length of the answer.
            self._tokens = self._tokens[-4:]
            self._sent = len(self._decode())
        else:
            self._sent = len(text)
        return self._release(piece)

    def finish(self) -> str:
        """Return what was still held back."""
        if self._tokenizer is None or self.stopped:
            return ""
        rest, self._held = self._held + self._decode()[self._sent :], ""
        return rest

    def _decode(self) -> str:
        text: str = self._tokenizer.decode(
            self._tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    def _release(self, piece: str) -> str:
        text = self._held + piece
        for stop in self._stop:
            at = text.find(stop)
            if at >= 0:
                self.stopped, self._held = True, ""
                return text[:at]
        keep = max((_overlap(text, stop) for stop in self._stop), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that begins ``stop``."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
