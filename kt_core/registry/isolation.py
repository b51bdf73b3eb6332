"""Ask plugins' probes in a process of their own, which may crash or hang without harm.

A probe is a plugin's code and may run native code: an illegal instruction, a crash or an endless loop in it
must neither end nor stop the command that asks.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import IO, Any, Literal

from kt_core.registry.isolated import TIMEOUT_VARIABLE, timeout_of
from kt_core.registry.specs import Accepted, ProbeResult, Rejected

Item = tuple[Literal["operator", "kernel", "report"], str, str]
"""Sort, name and device of what is to be probed; of a report, the plugin's name alone."""

TARGET_SECONDS = 120.0
"""What importing a class may take at least: torch alone takes seconds."""
START_SECONDS = 60.0
"""What starting a process and loading the plugins in it may take at least, on a busy machine."""

_SIGNALS = {
    "SIGILL": "an illegal instruction",
    "SIGSEGV": "a memory fault",
    "SIGBUS": "a memory fault",
    "SIGABRT": "an abort",
    "SIGFPE": "an arithmetic fault",
}


def ask(
    plugins: Sequence[str],
    items: Sequence[Item],
    environ: Mapping[str, str],
    *,
    targets: bool = False,
) -> list[ProbeResult]:
    """Return the answer for each of ``items``, in order, of the ``plugins`` that registered them.

    With ``targets`` the classes are imported instead of the probes called. A process that dies or takes
    longer than ``KT_PLUGIN_TIMEOUT`` for one item costs that item; the others are asked anew.
    """
    limit = timeout_of(environ) or None
    if targets and limit is not None:
        limit = max(limit, TARGET_SECONDS)
    what = "importing its class" if targets else "its probe"
    if items and items[0][0] == "report":
        what = "its report"
    answers: dict[int, ProbeResult] = {}
    while len(answers) < len(items):
        left = [number for number in range(len(items)) if number not in answers]
        request = {"plugins": list(plugins), "items": [items[n] for n in left], "targets": targets}
        child = _Child(request, environ, limit)
        child.run()
        for position, answer in child.answers.items():
            answers[left[position]] = answer
        if child.current is not None:
            answers[left[child.current]] = _crash(what, child, limit)
        elif len(child.answers) < len(left):
            reason = f"{what} could not be asked: {child.end()}"
            answers.update({n: Rejected((reason,)) for n in left if n not in answers})
    return [answers[number] for number in range(len(items))]


class _Child:
    """One process: its answers by position, and the item it was at when it ended."""

    def __init__(
        self, request: Mapping[str, Any], environ: Mapping[str, str], limit: float | None
    ) -> None:
        self.request = request
        self.environ = environ
        self.limit = limit
        self.answers: dict[int, ProbeResult] = {}
        self.current: int | None = None
        self.timed_out = False
        self.code = 0

    def run(self) -> None:
        module = "kt_core.registry.probe_child"
        command = [sys.executable, "-P", "-m", module, json.dumps(self.request)]
        # The parent's sys.path may have been changed; the child must find the same plugins.
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            text=True,
            env={**self.environ, "PYTHONPATH": path},
        )
        assert process.stdout is not None  # noqa: S101 - it was asked for
        lines: queue.Queue[str | None] = queue.Queue()
        reader = threading.Thread(target=_read, args=(process.stdout, lines), daemon=True)
        reader.start()
        wait = None if self.limit is None else max(self.limit, START_SECONDS)
        try:
            while (line := lines.get(timeout=wait)) is not None:
                wait = self.limit
                self._note(json.loads(line))
        except queue.Empty:
            self.timed_out = True
        finally:
            if self.timed_out:
                process.kill()
            self.code = process.wait()
            reader.join()
            process.stdout.close()

    def _note(self, line: Mapping[str, Any]) -> None:
        if "ready" in line:
            return
        if "begin" in line:
            self.current = line["begin"]
            return
        self.current = None
        reasons = line.get("reasons")
        self.answers[line["done"]] = (
            Rejected(tuple(reasons), line["help"]) if reasons else Accepted(line.get("detail", ""))
        )

    def end(self) -> str:
        """How the process ended, in words."""
        if self.timed_out:
            return f"no answer within {self.limit:g} s"
        if self.code < 0:
            name = signal.Signals(-self.code).name
            return f"{name}, {_SIGNALS[name]}" if name in _SIGNALS else name
        return f"the process ended with {self.code}"


def _crash(what: str, child: _Child, limit: float | None) -> Rejected:
    if child.timed_out:
        way_out = f"report it to its authors; {TIMEOUT_VARIABLE}=60 gives it more time"
        return Rejected((f"{what} gave no answer within {limit:g} s",), way_out)
    return Rejected(
        (f"{what} killed the process: {child.end()}",),
        "it is not made for this machine: update it, or report it to its authors",
    )


def _read(stream: IO[str], lines: queue.Queue[str | None]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)
