"""Operators and kernels: what plugins register and how they are found."""
