"""``kt blis-selftest``: does this BLIS compute int8 products correctly here, and how fast.

The same as the program ``kt-blis-selftest``.

Exit 0: everything equals the reference. 1: something does not. 3: it cannot run, with the reason.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from kt_core.errors import KernelError

if TYPE_CHECKING:
    import numpy.typing as npt

ROWS = (1, 2, 3, 4, 8, 16, 32, 64, 128, 256, 512)
DEPTH, COLUMNS = 7168, 2048
_SETTLE = 0.05
"""Seconds until the threads of numpy's own products, which computed the reference, are asleep."""
_LAYER_BOUND = 1e-4
"""Largest relative difference of the layer from exact arithmetic with the same roundings: float32 sums
and an exponential good to 2e-7 stay far below; a wrong tile, scale or expert does not."""


@dataclass(frozen=True)
class Check:
    """One line of the report. ``milliseconds`` is 0 where nothing was timed."""

    name: str
    passed: bool
    milliseconds: float = 0.0
    gops: float = 0.0


def main(arguments: list[str] | None = None) -> int:
    """Run the checks and print the report."""
    parser = argparse.ArgumentParser(
        prog="kt-blis-selftest",
        description="Check AMD BLIS LPGEMM on this machine against integer arithmetic.",
    )
    add_arguments(parser)
    return report_on(parser.parse_args(arguments))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the check."""
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.add_argument(
        "--seconds", type=float, default=0.1, help="how long to time each size (default: 0.1)"
    )


def report_on(args: argparse.Namespace) -> int:
    """Run the checks, print the report and return the exit code."""
    try:
        report = run(args.seconds)
    except KernelError as error:
        sys.stderr.write(f"{error}\n")
        return 3
    checks: list[Check] = report["checks"]
    if args.format == "json":
        sys.stdout.write(json.dumps({**report, "checks": [asdict(c) for c in checks]}) + "\n")
    else:
        sys.stdout.write(_text(report))
    return 0 if all(check.passed for check in checks) else 1


def run(seconds: float) -> dict[str, Any]:
    """Return the report as data: facts about the library, and all checks.

    Raises:
        KernelError: KT530 to KT536 if there is no BLIS to check.
    """
    from kt_ops_amd_blis import native
    from kt_ops_amd_blis.library import library

    blis = library()
    facts = blis.verdict.facts
    return {
        "library": str(blis.verdict.path),
        "origin": blis.verdict.origin,
        "version": blis.version,
        "threading": "" if facts is None else facts.threading,
        "thread_control": blis.thread_control,
        "threads": native.threads(),
        "row_kernels": native.isa(),
        "checks": [*_products(seconds), *_orders(), *_layers()],
    }


def _products(seconds: float) -> Iterator[Check]:
    """K=7168, N=2048 for M from 1 to 512: reordered and plain B, both ways of calling, exact."""
    import numpy as np

    from kt_ops_amd_blis import batch_gemm

    random = np.random.default_rng(0)
    b = random.integers(-128, 128, (DEPTH, COLUMNS), dtype=np.int8)
    b_exact = b.astype(np.float64)
    reordered = batch_gemm.reorder_B_gemm("r", "n", DEPTH, COLUMNS, COLUMNS, b)
    functions = {
        "decode": batch_gemm.decode_cblas_gemm_s8s8s32,
        "prefill": batch_gemm.prefill_cblas_gemm_s8s8s32,
    }
    for rows in ROWS:
        a = random.integers(-128, 128, (rows, DEPTH), dtype=np.int8)
        expected = (a.astype(np.float64) @ b_exact).astype(np.int64)
        for kind, matrix in (("reordered", reordered), ("plain", b)):
            for phase, function in functions.items():
                c = np.full((rows, COLUMNS), -7, np.int32)

                def call(
                    function: Callable[..., None] = function,
                    a: object = a,
                    matrix: object = matrix,
                    c: object = c,
                    rows: int = rows,
                ) -> None:
                    function(
                        *("r", "n", "n", "f", rows, COLUMNS, DEPTH, 1, a, DEPTH, 0),
                        *(matrix, COLUMNS, 0, 0, c, COLUMNS, 0),
                    )

                call()
                time.sleep(_SETTLE)
                took = _median(call, seconds) if kind == "reordered" else 0.0
                operations = 2 * rows * DEPTH * COLUMNS
                yield Check(
                    f"{phase} M={rows} K={DEPTH} N={COLUMNS}, {kind} B",
                    bool((c == expected).all()),
                    took * 1e3,
                    operations / took / 1e9 if took else 0.0,
                )


def _orders() -> Iterator[Check]:
    """Orders, transposes, leading dimensions above the row length, alpha and beta."""
    import numpy as np

    from kt_ops_amd_blis import batch_gemm

    random = np.random.default_rng(1)
    m, n, k, extra = 5, 96, 130, 3
    for order in "rc":
        for transa in "nt":
            for transb in "nt":
                a = random.integers(-128, 128, (m, k), dtype=np.int8)
                b = random.integers(-128, 128, (k, n), dtype=np.int8)
                c = random.integers(-9, 9, (m, n), dtype=np.int32)
                expected = 2 * (a.astype(np.int64) @ b.astype(np.int64)) + 3 * c
                stored_a, lda = _store(a, order, transa, extra)
                stored_b, ldb = _store(b, order, transb, extra)
                stored_c, ldc = _store(c, order, "n", extra)
                batch_gemm.prefill_cblas_gemm_s8s8s32(
                    *(order, transa, transb, "f", m, n, k, 2, stored_a, lda, 0),
                    *(stored_b, ldb, 0, 3, stored_c, ldc, 0),
                )
                result = stored_c[:, :n] if order == "r" else stored_c[:, :m].T
                yield Check(
                    f"order {order}, transposes {transa}{transb}, alpha 2, beta 3",
                    bool((result == expected).all()),
                )


def _store(
    matrix: npt.NDArray[Any], order: str, trans: str, extra: int
) -> tuple[npt.NDArray[Any], int]:
    """Return a matrix as it lies in memory for an order and a transpose, and its leading dimension."""
    import numpy as np

    lines = matrix if (order == "r") == (trans == "n") else matrix.T
    stored = np.zeros((lines.shape[0], lines.shape[1] + extra), matrix.dtype)
    stored[:, : lines.shape[1]] = lines
    return stored, stored.shape[1]


def _layers() -> Iterator[Check]:
    """A small layer of experts against exact arithmetic, with and without group scales."""
    import numpy as np
    import torch

    from kt_core.operators.kernel import Activation, ExpertsShape, ExpertsWeights, KernelContext
    from kt_core.weights import PackedTensor, QuantType
    from kt_ops_amd_blis import reference
    from kt_ops_amd_blis.experts import MoeInt8

    experts, hidden, inter, top_k = 8, 320, 200, 3
    random = np.random.default_rng(2)

    def matrices(*shape: int) -> npt.NDArray[np.float32]:
        values = random.standard_normal((experts, *shape)) / np.sqrt(shape[1])
        return np.asarray(values, np.float32)

    gate, up, down = matrices(inter, hidden), matrices(inter, hidden), matrices(hidden, inter)
    stored = [
        [PackedTensor(f"{e}", m.shape, QuantType.F32, m.view(np.uint8)) for e, m in enumerate(t)]
        for t in (gate, up, down)
    ]
    for group in (0, 64):
        shape = ExpertsShape(experts, hidden, inter, top_k)
        context = KernelContext(
            "selftest", torch.float32, torch.device("cpu"), {"group_size": group}
        )
        layer = MoeInt8(shape, Activation(), context)
        layer.load(ExpertsWeights(stored[0], stored[1], stored[2]))
        for tokens in (1, 7, 150):
            x = random.standard_normal((tokens, hidden)).astype(np.float32)
            index = np.argsort(random.random((tokens, experts)), axis=1)[:, :top_k].copy()
            weights = random.random((tokens, top_k)).astype(np.float32)
            expected = reference.experts(x, index, weights, gate, up, down, group=group)
            result = layer.forward(
                torch.from_numpy(x), torch.from_numpy(index), torch.from_numpy(weights)
            )
            error = np.linalg.norm(result.numpy() - expected) / np.linalg.norm(expected)
            scheme = f"group size {group}" if group else "per channel"
            yield Check(f"layer of experts, {tokens} tokens, {scheme}", bool(error < _LAYER_BOUND))


def _median(call: Callable[[], None], seconds: float) -> float:
    times: list[float] = []
    end = time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _text(report: dict[str, Any]) -> str:
    names = (
        *("library", "origin", "version", "threading", "thread_control", "threads"),
        "row_kernels",
    )
    lines = [f"{name.replace('_', ' ') + ':':16}{report[name]}" for name in names]
    checks: list[Check] = report["checks"]
    for check in checks:
        speed = (
            f"  {check.milliseconds:9.3f} ms {check.gops:8.0f} GOPS" if check.milliseconds else ""
        )
        lines.append(f"{'ok  ' if check.passed else 'FAIL'} {check.name}{speed}")
    failed = sum(not check.passed for check in checks)
    lines.append(f"{len(checks) - failed} of {len(checks)} checks equal the reference")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
