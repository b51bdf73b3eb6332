"""How long a command takes to start: kt-validate on 60 rules against importing what it is built on.

Prints one line per pair: medians in milliseconds and their ratio, measured in turn.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUNS = 15
RULE = """- match: {{name: '^model\\.layers\\.{n}\\.', class: torch.nn.Linear}}
  replace: {{class: kt_core.Linear, kwargs: {{generate_device: cpu, generate_op: kt_core.torch_linear}}}}
"""
IMPORTS = "import pluggy, yaml, jsonschema"


def seconds(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - started


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        rules = Path(folder) / "rules.yaml"
        rules.write_text("".join(RULE.format(n=n) for n in range(60)))
        validate = [str(Path(sys.executable).parent / "kt-validate"), str(rules)]
        floor = [sys.executable, "-c", IMPORTS]
        pairs = [(seconds(validate), seconds(floor)) for _ in range(RUNS + 1)][1:]
    ours, theirs = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(a / b for a, b in pairs)
    print(
        f"kt-validate, 60 rules: {ours * 1e3:.0f} ms; {IMPORTS}: {theirs * 1e3:.0f} ms; "
        f"ratio {ratio:.2f}"
    )


if __name__ == "__main__":
    main()
