"""Print the path and release of nvcc for the build, or one sentence that says how to get it.

Looked for, in order: the argument, KT_NVCC, CUDA_HOME and CUDA_PATH, PATH, /usr/local/cuda, and NVIDIA's
compiler wheels in this Python's site-packages or in a virtual environment that runs the build.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator


def candidates(given: str) -> Iterator[str]:
    """Yield paths that may be nvcc, best first."""
    for path in (given, os.environ.get("KT_NVCC")):
        if path:
            yield path
            return  # what was asked for, or nothing
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            yield os.path.join(os.environ[variable], "bin", "nvcc")
    found = shutil.which("nvcc")
    if found:
        yield found
    yield "/usr/local/cuda/bin/nvcc"
    folders = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *sys.path}
    for folder in sorted(filter(None, folders)):
        yield from sorted(glob.glob(os.path.join(folder, "nvidia", "*", "bin", "nvcc")))


def release(path: str) -> str | None:
    """Return "13.0" of an nvcc that runs, else None."""
    try:
        text = subprocess.run(
            [path, "--version"], capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    match = re.search(r"release (\d+\.\d+)", text)
    return match.group(1) if match else None


def main(given: str) -> int:
    """Print two lines, or explain on standard error."""
    tried = []
    for path in candidates(given):
        if not os.path.isfile(path) or not os.access(path, os.X_OK):
            tried.append(path)
            continue
        version = release(path)
        if version is None:
            tried.append(f"{path} (does not run)")
        elif int(version.split(".")[0]) < 13:
            tried.append(f"{path} (release {version}; 13.0 is the least)")
        else:
            sys.stdout.write(f"{path}\n{version}\n")
            return 0
    sys.stderr.write(
        "kt-ops-cuda needs nvcc 13.0 or newer to build and found none (looked at: "
        f"{', '.join(tried) or 'nothing'}). Install a CUDA toolkit, or NVIDIA's compiler wheels with "
        'pip install "nvidia-cuda-nvcc==13.*" "nvidia-cuda-crt==13.*" "nvidia-nvvm==13.*" '
        '"nvidia-cuda-runtime==13.*" "nvidia-cuda-cccl==13.*", then build again with '
        "--no-build-isolation, or name it: KT_NVCC=/path/to/nvcc.\n"
    )
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else ""))
