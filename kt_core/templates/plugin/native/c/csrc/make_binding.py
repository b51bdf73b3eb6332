"""Write the C source of the Python binding: make_binding.py kt_plugin_template.h _native.c."""

import sys
from pathlib import Path

import cffi


def main(header: str, output: str) -> None:
    """Generate ``output`` from the part of ``header`` between its two markers."""
    text = Path(header).read_text(encoding="utf-8")
    declarations = text.split("/* binding: begin */")[1].split("/* binding: end */")[0]
    ffi = cffi.FFI()
    ffi.cdef(declarations)
    ffi.set_source("kt_plugin_template._native", '#include "kt_plugin_template.h"')
    ffi.emit_c_code(output)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
