"""Module operators of the core, the kernel contract and the plain torch kernels."""
