"""``make bench``: every benchmark that needs nothing but this checkout.

Peers are measured where the environment names them: LLAMA_BENCH (llama.cpp's llama-bench).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def main() -> None:
    model = os.environ.get("KT_TEST_MODEL")
    jobs = [["startup.py"]]
    if model:
        jobs.append(["weights/open_header.py", model])
        job = ["model.py", model, "--rules", "cpu", "torch"]
        if os.environ.get("LLAMA_BENCH"):
            job += ["--llama-bench", os.environ["LLAMA_BENCH"]]
        jobs.append(job)
    for script, *arguments in jobs:
        print(f"== {script}", flush=True)
        subprocess.run([sys.executable, str(HERE / script), *arguments], check=True)


if __name__ == "__main__":
    main()
