"""Run in a child process with limits: open every file named on stdin, report one JSON line each.

Only a child can show a crash, a hang or memory taken: the parent reads what it managed to report.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

ADDRESS_SPACE = 1 << 30
CPU_SECONDS = 60


def memory(key: str) -> int:
    """A value of /proc/self/status in bytes: VmRSS now, VmHWM since the last reset."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(key)


def reset_peak() -> None:
    """Make VmHWM start again from VmRSS."""
    Path("/proc/self/clear_refs").write_text("5")


def main() -> None:
    import numpy as np  # noqa: F401 - its threads and tables are not the file's cost

    from kt_core.errors import WeightsError
    from kt_core.weights import open_weights

    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    for line in sys.stdin:
        path, *flags = json.loads(line)
        reset_peak()
        before = memory("VmRSS")
        start = time.process_time()
        code = ""
        try:
            with open_weights(path, mmap="pread" not in flags) as source:
                for key in source.metadata:
                    try:
                        source.metadata[key]
                    except WeightsError as error:
                        code = error.code
                for name in source.tensors:
                    source.tensor(name).data.sum()
        except WeightsError as error:
            code = error.code
        except BaseException as error:  # noqa: BLE001 - what it is, is the finding
            code = f"{type(error).__name__}: {error}"
        seconds = time.process_time() - start
        grown = memory("VmHWM") - before
        report = {"path": path, "code": code, "seconds": seconds, "grown": grown}
        sys.stdout.write(json.dumps(report) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
