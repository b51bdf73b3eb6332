"""The plan in words: a summary that fits a screen, and the answer to "why this module?"."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from kt_core.plan.model import ModulePlan, Plan
from kt_core.units import human_bytes

_HEADER: tuple[str, ...] = (
    "modules",
    "class",
    "operator",
    "prefill",
    "decode",
    "stored as",
    "rule",
)


def summary(plan: Plan) -> str:
    """What is loaded, what runs where, and how much memory it takes."""
    return "\n".join(_summary(plan))


def _summary(plan: Plan) -> Iterator[str]:
    yield f"model     {plan.architecture}, {plan.dtype} activations"
    if plan.weights is not None:
        yield f"weights   {plan.weights} ({human_bytes(plan.stored)} of tensors)"
    yield f"rules     {plan.rules_path}"
    yield ""
    yield from _table(_groups(plan))
    yield ""
    for device, count in sorted(plan.resident.items()):
        cache = plan.cache.bytes_per_device.get(device, 0)
        yield (
            f"memory    {device}: {human_bytes(count)} of weights"
            + (f" + {human_bytes(cache)} of cache" if cache else "")
        )
    yield (
        f"cache     {human_bytes(plan.cache.bytes_per_token)} per token, "
        f"{plan.cache.context} tokens"
    )
    for device, count in sorted(plan.streamed.items()):
        yield (
            f"prefill   long prompts go layer by layer: {human_bytes(count)} of it on {device} at a time"
        )
    if plan.unmatched:
        shown = ", ".join(plan.unmatched[:3]) + (", …" if len(plan.unmatched) > 3 else "")
        yield f"unmatched {len(plan.unmatched)} modules stay as they are: {shown}"
    if plan.unused_tensors:
        shown = ", ".join(plan.unused_tensors[:3])
        yield f"unused    {len(plan.unused_tensors)} tensors of the file: {shown}"


def _groups(plan: Plan) -> list[tuple[str, ...]]:
    """Modules that are treated alike, as rows of a table."""
    counts: Counter[tuple[str, ...]] = Counter()
    rules: dict[tuple[str, ...], set[int]] = {}
    for module in plan.modules:
        if module.resident or module.decode or module.tied_to:
            key = _treatment(module)
            counts[key] += 1
            rules.setdefault(key, set()).update(() if module.rule is None else (module.rule + 1,))
    rows: list[tuple[str, ...]] = [_HEADER]
    rows += [(str(count), *key, _ranges(rules[key])) for key, count in counts.items()]
    return rows


def _ranges(numbers: set[int]) -> str:
    """``{1, 2, 3, 7}`` -> ``1-3 7``."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return " ".join(str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in runs) or "-"


def _treatment(module: ModulePlan) -> tuple[str, ...]:
    if module.prefill is not None and module.decode is not None:
        phases = tuple(
            f"{kernel.name} on {kernel.device}" for kernel in (module.prefill, module.decode)
        )
    else:
        phases = (module.device, module.device)
    return (module.class_name, module.operator, *phases, " ".join(module.types) or "-")


def _table(rows: list[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def module_lines(plan: Plan) -> Iterator[str]:
    """One line per module, for ``--modules``."""
    rows: list[tuple[str, ...]] = [("module", *_HEADER[1:])]
    rows += [
        (m.path or "(root)", *_treatment(m), "-" if m.rule is None else str(m.rule + 1))
        for m in plan.modules
    ]
    yield from _table(rows)
