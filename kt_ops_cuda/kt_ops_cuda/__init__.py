"""GPU kernels for kt: linears and routed experts on 4- to 8-bit weights, at the memory's speed.

Importing the package loads neither torch nor the compiled library.
"""

__version__ = "0.1.0"
