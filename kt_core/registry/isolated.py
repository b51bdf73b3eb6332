"""Run a plugin's code so that whatever goes wrong stays with it: exceptions, exits, endless waits."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import TypeVar

T = TypeVar("T")

TIMEOUT_VARIABLE = "KT_PLUGIN_TIMEOUT"
"""Seconds that importing a plugin may take; 0 for no limit."""
DEFAULT_TIMEOUT = 10.0


class PluginTimeoutError(BaseException):
    """A plugin's code took longer than it may. No ``Exception``, so that plugins do not swallow it."""


def isolated(call: Callable[[], T]) -> tuple[T | None, BaseException | None]:
    """Run plugin code. Return its result, or what it raised.

    ``SystemExit`` and the like are caught as well: a plugin must not end the process. What it
    prints goes to stderr, where it cannot spoil ``--format json``.
    """
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return call(), None
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # noqa: BLE001 - any failure of a plugin becomes its record
        return None, error


def describe(error: BaseException) -> str:
    """Return type and message of an exception on one line."""
    text, failure = isolated(lambda: " ".join(str(error).split()))
    name = type(error).__name__
    if failure is not None:
        return name
    return f"{name}: {text}" if text else name


def place(error: BaseException) -> str:
    """Return `` at file:line`` of the innermost frame, or of the text a SyntaxError is about."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" at {error.filename}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        frame
        for frame in frames
        if not frame.filename.startswith("<frozen") and frame.filename != __file__
    ]
    return f" at {own[-1].filename}:{own[-1].lineno}" if own else ""


def timeout_of(environ: Mapping[str, str]) -> float:
    """Return the limit that ``KT_PLUGIN_TIMEOUT`` sets; what is no number counts as unset."""
    try:
        seconds = float(environ.get(TIMEOUT_VARIABLE, DEFAULT_TIMEOUT))
    except ValueError:
        return DEFAULT_TIMEOUT
    return seconds if 0 <= seconds < 1e6 else DEFAULT_TIMEOUT


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise ``PluginTimeoutError`` in the block after ``seconds``.

    Only the main thread of a POSIX process can be interrupted, and only between two instructions of
    Python; where that is not so, or something else uses the timer, there is no limit.
    """
    usable = (
        seconds > 0
        and hasattr(signal, "setitimer")
        and threading.current_thread() is threading.main_thread()
        and signal.getitimer(signal.ITIMER_REAL)[0] == 0
    )
    if not usable:
        yield
        return

    def expired(number: int, frame: FrameType | None) -> None:
        raise PluginTimeoutError(f"not done after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, expired)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
