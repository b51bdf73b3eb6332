"""``kt verify``: a loaded plan held against plain modules on dequantised weights."""
