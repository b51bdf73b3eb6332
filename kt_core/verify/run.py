"""Run a prompt through a loaded plan and hold every module against the reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from kt_core.models.hf import dynamic_cache, forward_logits
from kt_core.plan.model import ModulePlan, Plan
from kt_core.registry.registry import Registry
from kt_core.verify import report as reports
from kt_core.verify.answer import answer_of, drift_of
from kt_core.verify.bounds import Bounds
from kt_core.verify.capture import (
    Call,
    as_real,
    first_tensor,
    joined,
    only_tensor,
    recording,
    tensors_in,
    with_cache,
    with_inputs_of,
)
from kt_core.verify.compare import (
    BROKEN,
    DTYPE_BOUNDS,
    OK,
    Bound,
    describe,
    difference,
    judge,
    wrong_columns,
)
from kt_core.verify.probes import Probes
from kt_core.verify.reference import Reference, StreamedExperts
from kt_core.verify.report import Finding, Report
from kt_core.verify.truth import truth_of
from kt_core.verify.weights import WeightsCheck, explained
from kt_core.weights import WeightSource

Progress = Callable[[str], Any]


def verify(
    model: nn.Module,
    plan: Plan,
    source: WeightSource,
    registry: Registry,
    tokens: torch.Tensor,
    *,
    decode: int = 4,
    experts: int | None = None,
    checkpoint: WeightSource | None = None,
    progress: Progress = lambda text: None,
) -> Report:
    """Compare ``model``, loaded by ``plan`` from ``source``, with plain float32 modules.

    ``tokens`` ``(1, n)``: all but the last ``decode`` are run as a prompt, those one by one.
    ``experts``: how many of a layer's experts are also called by themselves (``None``: all).
    ``checkpoint`` are the weights that the file was made from.

    Raises:
        PlanError: KT360 where neither reading of the file knows a parameter.
    """
    return _Verification(model, plan, source, registry, checkpoint, progress, experts).run(
        tokens, decode
    )


class _Verification:
    def __init__(
        self,
        model: nn.Module,
        plan: Plan,
        source: WeightSource,
        registry: Registry,
        checkpoint: WeightSource | None,
        progress: Progress,
        experts: int | None,
    ) -> None:
        self.model = model
        self.plan = plan
        self.source = source
        self.progress = progress
        self.config: Any = model.config
        self.device = torch.device(plan.default_device)
        self.dtype_bound = DTYPE_BOUNDS[plan.dtype]
        self.reference = Reference(
            self.config,
            truth_of(source, self.config),
            lambda name: self.weights.adapter(name),
            source,
            self.device,
        )
        other = None if checkpoint is None else truth_of(checkpoint, self.config)
        self.weights = WeightsCheck(plan, source, self.reference, other)
        self.probes = Probes(self.reference, experts)
        self.modules = {module.path: module for module in plan.modules}
        self.findings: list[Finding] = []
        self.bounds = Bounds(plan, source, registry)

    def run(self, tokens: torch.Tensor, decode: int) -> Report:
        split = tokens.shape[1] - decode
        report = Report(
            self.plan.architecture,
            self.plan.weights or "",
            self.plan.rules_path,
            self.plan.dtype,
            split,
            decode,
        )
        with torch.inference_mode():
            self._run(tokens, split, report)
        self._left_over()
        report.findings = explained(self.findings)
        report.notes.extend(self._notes(report))
        return report

    def _run(self, tokens: torch.Tensor, split: int, report: Report) -> None:
        self.progress("the plan")
        inner = "model.layers."
        watched: dict[str, nn.Module] = {
            f"{inner}{i}": self.model.get_submodule(f"{inner}{i}")
            for i in range(self.reference.layers)
        }
        ends = ("model.embed_tokens", "model.norm", "lm_head")
        watched |= {path: self.model.get_submodule(path) for path in ends}
        pieces = [tokens[:, :split], *torch.split(tokens[:, split:], 1, dim=1)]
        with recording(watched, copy=False) as calls:
            cache = dynamic_cache(self.model)
            logits = [forward_logits(self.model, piece, cache, keep=0) for piece in pieces]
        found = torch.cat([part.cpu().float() for part in logits], dim=1)
        del cache, logits
        hidden = self.reference.embed(tokens.to(self.device))
        given = self.reference.calls(hidden)
        self._end("model.embed_tokens", calls, hidden, split)
        self._rotary(calls[f"{inner}0"], given[0], split)
        previous = "model.embed_tokens"
        for number, (args, kwargs) in enumerate(given):
            path = f"{inner}{number}"
            self.progress(f"layer {number + 1} of {self.reference.layers}")
            self._link(previous, path, calls)
            layer = self.reference.layer(number)
            hidden = only_tensor(layer(hidden, *args, **kwargs))
            report.drift.append(drift_of(number, calls[path], hidden, split))
            self._layer(path, layer, calls[path], args, kwargs, split)
            previous = path
        self._link(previous, "model.norm", calls)
        norm = self.reference.outside("model.norm")
        self._end("model.norm", calls, norm(self._input_of("model.norm", calls, hidden)), split)
        self._link("model.norm", "lm_head", calls)
        head_input = self._input_of("lm_head", calls, hidden)
        self._end("lm_head", calls, self.reference.head(head_input), split)
        report.answer = answer_of(found, self.reference.head(norm(hidden)).cpu(), tokens.cpu())

    # --- one layer --------------------------------------------------------------------------------

    def _layer(
        self,
        path: str,
        layer: nn.Module,
        calls: Sequence[Call],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        split: int,
    ) -> None:
        own = self.model.get_submodule(path)
        mine = {
            f"{path}.{n}" if n else path: m for n, m in layer.named_modules() if _has_weights(m)
        }
        theirs = {
            name: self.model.get_submodule(name) for name in mine if _exists(self.model, name)
        }
        with recording(theirs) as found:
            cache = dynamic_cache(self.model)
            for call in calls:
                own(*with_cache(call.args, cache), **with_cache(dict(call.kwargs), cache))
        inputs = [t for call in calls if (t := first_tensor(call.args)) is not None]
        inputs = inputs or [call.kwargs["hidden_states"] for call in calls]
        start = torch.cat([t.to(self.device, torch.float32) for t in inputs], dim=1)
        with recording(mine, copy=False) as expected:
            layer(start, *args, **kwargs)
        for name in sorted(theirs, key=lambda n: -n.count(".")):  # parts before what they make up
            self._module(name, mine[name], found[name], expected[name], split)
        for name in mine:
            planned = self.modules.get(name)
            if planned is not None and name in theirs:
                self.findings.extend(self.weights.check(planned, theirs[name]))
                self._probe(planned, theirs[name], mine[name], found[name])

    def _module(
        self,
        name: str,
        reference: nn.Module,
        found: Sequence[Call],
        expected: Sequence[Call],
        split: int,
    ) -> None:
        if not found or len(expected) != 1:
            return
        taken = with_inputs_of(expected[0], found, self.device)
        outputs = [t for call in found if (t := first_tensor(call.output)) is not None]
        if taken is None or len(outputs) != len(found):
            return
        wanted = first_tensor(reference(*taken[0], **taken[1]))
        together = None if wanted is None else joined(outputs, wanted)
        if wanted is not None and together is not None:
            self._compare(name, together, wanted.cpu(), split)

    def _compare(self, name: str, found: torch.Tensor, expected: torch.Tensor, split: int) -> None:
        planned = self.modules.get(name)
        rows = [t.reshape(-1, t.shape[-1]) for t in (found.float(), expected.float())]
        whole = planned is None or (planned.decode is None and not planned.bindings)
        parts = {reports.PREFILL: slice(0, split), reports.DECODE: slice(split, None)}
        if found.dim() > 3 or len(rows[0]) <= split:
            parts = {reports.PREFILL: slice(None)}
        for phase, part in parts.items():
            bound = self.bounds.of(name, planned, phase)
            a, b = rows[0][part], rows[1][part]
            apart = difference(a, b)
            by_rows = whole and bool(self.bounds.parts_of(name))
            verdict, notes = judge(apart, bound, by_rows=by_rows), []
            if apart.missing:
                notes.append(
                    f"{apart.missing} values are not finite, first for token {apart.first_missing}"
                )
            elif verdict != OK and (how := describe(a, b)):
                notes.append(how)
            if planned is not None and planned.decode is not None and planned.experts is None:
                wrong = wrong_columns(a, b, bound) if verdict != BROKEN else []
                if wrong:
                    verdict = BROKEN
                    notes.append(f"outputs {', '.join(map(str, wrong[:6]))} are wrong")
            self._add(name, planned, phase, apart, bound, verdict, notes, by_rows=by_rows)

    def _probe(
        self, planned: ModulePlan, own: nn.Module, reference: nn.Module, calls: Sequence[Call]
    ) -> None:
        """Calls that no prompt makes: nothing but zeros, and every expert by itself."""
        if planned.decode is None or planned.prefill is None:
            return
        phases = ((reports.PREFILL, planned.prefill), (reports.DECODE, planned.decode))
        for phase, kernel in phases:
            bound = self.bounds.of(planned.path, planned, phase)
            if isinstance(reference, StreamedExperts):
                outcome = self.probes.experts(own, reference, calls, phase, kernel.device, bound)
                what = reports.ROUTED
            else:
                outcome = self.probes.zero(own, planned, calls, phase, kernel.device, self.plan)
                what = phase
            if outcome is not None:
                apart, verdict, notes = outcome
                self._add(planned.path, planned, what, apart, bound, verdict, notes)

    # --- around the layers ------------------------------------------------------------------------

    def _end(
        self, path: str, calls: Mapping[str, Sequence[Call]], expected: torch.Tensor, split: int
    ) -> None:
        outputs = [t for call in calls[path] if (t := first_tensor(call.output)) is not None]
        found = joined([t.cpu() for t in outputs], expected)
        planned = self.modules.get(path)
        if found is not None:
            self._compare(path, found, expected.cpu(), split)
        if planned is not None:
            own = self.model.get_submodule(path)
            self.findings.extend(self.weights.check(planned, own))
            if path == "lm_head":
                self._probe(planned, own, nn.Module(), calls[path])

    def _input_of(
        self, path: str, calls: Mapping[str, Sequence[Call]], like: torch.Tensor
    ) -> torch.Tensor:
        """What the plan gave to ``path``, in the reference's dtype."""
        inputs = [t for call in calls[path] if (t := first_tensor(call.args)) is not None]
        found = joined([t.to(self.device) for t in inputs], like)
        return like if found is None else found.float()

    def _rotary(
        self, calls: Sequence[Call], given: tuple[tuple[Any, ...], dict[str, Any]], split: int
    ) -> None:
        """Compare the rotary angles, which belong to no layer."""
        ours = given[1].get("position_embeddings")
        theirs = [call.kwargs.get("position_embeddings") for call in calls]
        if ours is None or any(value is None for value in theirs):
            return
        own = tensors_in(ours)
        parts = [tensors_in(value) for value in theirs]
        if any(len(part) != len(own) for part in parts):
            return
        bound = self.dtype_bound
        for i, expected in enumerate(own):
            found = joined([as_real(part[i]).cpu() for part in parts], as_real(expected).cpu())
            if found is not None:
                apart = difference(found, as_real(expected))
                verdict = judge(apart, bound)
                notes = [] if verdict == OK else ["rotary angles differ"]
                self._add("model.rotary_emb", None, reports.PREFILL, apart, bound, verdict, notes)

    def _link(self, before: str, after: str, calls: Mapping[str, Sequence[Call]]) -> None:
        """What a module gets is what the one before it gave, on whatever devices they are."""
        for one, two in zip(calls[before], calls[after], strict=False):
            given = first_tensor(one.output)
            taken = first_tensor(two.args)
            taken = first_tensor(two.kwargs.get("hidden_states")) if taken is None else taken
            if given is None or taken is None or given.numel() != taken.numel():
                continue
            apart = difference(taken, given)
            verdict = judge(apart, self.dtype_bound)
            if verdict != OK:
                notes = [f"it does not get what {before} gave"]
                self._add(after, None, "input", apart, self.dtype_bound, verdict, notes)
                return

    def _left_over(self) -> None:
        """A bias in the file that no module adds is missing from every answer."""
        for stored, owner in self.reference.truth.left_over().items():
            if owner and stored.endswith(".bias"):
                nothing = torch.zeros(1, 1)
                values = torch.from_numpy(self.source.tensor(stored).dequantize()).reshape(1, -1)
                apart = difference(nothing.expand_as(values), values)
                notes = [f"its bias is dropped: nothing takes {stored}"]
                planned = self.modules.get(owner)
                bound = Bound(0.0, "what the file holds is used")
                self._add(owner, planned, reports.WEIGHTS, apart, bound, BROKEN, notes)

    # --- bounds and findings ----------------------------------------------------------------------

    def _add(
        self,
        name: str,
        planned: ModulePlan | None,
        what: str,
        apart: Any,
        bound: Bound,
        verdict: str,
        notes: Sequence[str],
        *,
        by_rows: bool = False,
    ) -> None:
        shown = self.model.get_submodule(name) if _exists(self.model, name) else None
        self.findings.append(
            Finding(
                name,
                planned.class_name if planned else type(shown).__name__,
                planned.operator if planned else "default",
                what,
                apart.typical if by_rows else apart.relative,
                apart.worst,
                bound.relative,
                bound.why,
                verdict,
                tuple(notes),
            )
        )

    def _notes(self, report: Report) -> list[str]:
        notes = []
        left = self.reference.truth.left_over()
        if left:
            notes.append(f"no module takes these tensors of the file: {', '.join([*left][:6])}")
        if self.reference.unread:
            names = sorted(self.reference.unread)
            notes.append(
                f"{len(names)} parameters could only be read in the adapter's own way, so its "
                f"mapping of them is not proven: {', '.join(names[:4])}"
            )
        answer = report.answer
        if answer is not None and answer.reference_loss > 0.8 * answer.chance:
            notes.append(
                "the reference does not predict this prompt either; if every module is ok, look at "
                "the file, its metadata and the prompt, not at the kernels"
            )
        return notes


def _has_weights(module: nn.Module) -> bool:
    if isinstance(module, StreamedExperts):
        return True
    return any(True for _ in module.parameters()) or any(
        isinstance(inner, StreamedExperts) for inner in module.modules()
    )


def _exists(model: nn.Module, path: str) -> bool:
    try:
        model.get_submodule(path)
    except AttributeError:
        return False
    return True
