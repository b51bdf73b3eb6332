"""Caps that keep the cost of a rule file bounded by its size. A real file stays far below each."""

from __future__ import annotations

MAX_BYTES = 1 << 20
"""Size of a rule file. The largest one known to us has 25 KiB."""

MAX_DEPTH = 32
"""Nesting of lists and mappings. A rule needs five levels."""

MAX_RULES = 2_000
"""Rules in one file; matching so many against 100,000 modules takes a few seconds."""

MAX_PATTERN = 1_000
"""Characters of ``match.name``."""

MAX_KWARGS_NODES = 1_000
"""Values inside one ``replace.kwargs``."""

MAX_PROBLEMS = 200
"""Findings reported for one file; what lies beyond is only counted."""

MATCH_SECONDS = 0.1
"""Processor time one search of a pattern in one module path may take."""

SLOW_SECONDS = 0.5
"""Processor time that searches much slower than normal may take together."""

TOTAL_SECONDS = 30.0
"""Wall time of matching a whole rule file against a whole model."""
