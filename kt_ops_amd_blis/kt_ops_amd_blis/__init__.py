"""kt-ops-amd-blis: int8 experts and linears through AMD BLIS LPGEMM."""

__version__ = "0.1.0"
