"""Write the C source of the cffi binding: make_binding.py kt_ops_cpu.h _native.c.

The declarations are the part of the header between its two markers, so that the header is the only
place where they are written down.
"""

import sys
from pathlib import Path

import cffi


def main(header: str, output: str) -> None:
    """Generate ``output`` from ``header``."""
    text = Path(header).read_text(encoding="utf-8")
    declarations = text.split("/* binding: begin */")[1].split("/* binding: end */")[0]
    ffi = cffi.FFI()
    ffi.cdef(declarations)
    ffi.set_source("kt_ops_cpu._native", '#include "kt_ops_cpu.h"')
    ffi.emit_c_code(output)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
