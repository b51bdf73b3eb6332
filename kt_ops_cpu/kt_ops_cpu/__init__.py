"""CPU kernels for kt: linears and MoE experts computed on GGUF blocks as they lie in the file.

The kernels register through :mod:`kt_ops_cpu.plugin`; rule files name them ``kt_ops_cpu.linear``
and ``kt_ops_cpu.experts``. Importing this package loads nothing else.
"""

from __future__ import annotations

__version__ = "0.1.0"
