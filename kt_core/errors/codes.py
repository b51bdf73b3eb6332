"""What documents an error code; the codes themselves are in the ``codes_*.py`` beside it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Code:
    """One stable code: ``explanation`` says what it means, why it is an error and the way out.

    ``example`` is what it looks like, as printed.
    """

    id: str
    title: str
    explanation: str
    example: str
