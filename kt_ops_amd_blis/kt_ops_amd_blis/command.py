"""Check AMD BLIS LPGEMM on this machine against integer arithmetic, and time it."""

from __future__ import annotations

import argparse

from kt_ops_amd_blis.selftest import add_arguments, report_on

__all__ = ["add_arguments", "run"]


def run(args: argparse.Namespace) -> int:
    """Run ``kt blis-selftest``."""
    return report_on(args)
