"""The whole page. It needs no network, no other file and, but for search and filters, no script."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from functools import cache
from importlib import resources

from kt_core import __version__
from kt_core.errors import Problem, Severity
from kt_core.plan.model import Plan, RulePlan
from kt_core.plan_page.parts import Palette, Rows, bar, chip, esc, facts, size, table
from kt_core.plan_page.tree import phases, plan_tree
from kt_core.units import human_bytes

MARK = "<!doctype html><!-- kt plan -->"
"""What every page begins with: a file that begins so may be written again."""
_LISTED = 200


def plan_page(plan: Plan) -> str:
    """Return the HTML text of ``plan``."""
    script, style = _asset("page.js"), _asset("page.css")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    body = "\n".join(_body(plan))
    return (
        f'{MARK}\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="generator" content="kt {esc(__version__)}">\n'
        f"<title>kt plan: {esc(plan.architecture)}</title>\n<style>{style}</style></head>\n"
        f"<body>\n{body}\n<script>{script}</script>\n</body></html>\n"
    )


@cache
def _asset(name: str) -> str:
    return resources.files("kt_core.plan_page").joinpath(name).read_text(encoding="utf-8")


def _body(plan: Plan) -> Iterator[str]:
    palette = Palette.of(plan)
    root = plan_tree(plan)
    yield f"<header><h1>{esc(plan.architecture)} <small>kt plan</small></h1>"
    yield facts(_headline(plan, root.modules)) + "</header><main>"
    yield from _problems(plan.problems)
    yield from _devices(plan, palette)
    yield from _kernels(plan, palette)
    yield '<section id="modules"><h2>Modules</h2>'
    yield (
        '<div class="tools" hidden><input type="search" id="find" autocomplete="off" '
        'aria-label="search modules" placeholder="search: path, class, kernel, rule…   ( / )">'
        '<button type="button" id="all">open all</button>'
        '<button type="button" id="none">close all</button>'
        '<output id="found" aria-live="polite"></output></div>'
    )
    yield (
        '<div class="tree"><div class="head" aria-hidden="true"><span>module</span>'
        "<span>prefill</span><span>decode</span><span>in the file</span><span>in memory</span>"
        "<span>rule</span></div>"
    )
    yield from Rows(plan, palette).root(root)
    yield "</div></section>"
    yield from _rules(plan)
    yield from _names("Modules that no rule matches", plan.unmatched, "they stay as they are")
    yield from _names("Tensors that no module takes", plan.unused_tensors, "of the weight file")
    yield f"</main><footer>written by kt {esc(__version__)} from headers only</footer>"


def _headline(plan: Plan, modules: int) -> Iterator[tuple[str, str]]:
    if plan.weights is not None:
        yield "weights", f"{plan.weights} ({human_bytes(plan.stored)} of tensors)"
    yield "rules", plan.rules_path
    yield "activations", plan.dtype
    yield "default device", plan.default_device
    yield "modules", f"{modules}"
    cache = human_bytes(plan.cache.bytes_per_token)
    yield "cache", f"{cache} per token, {plan.cache.context} tokens"


def _problems(problems: tuple[Problem, ...]) -> Iterator[str]:
    if not problems:
        return
    yield '<section id="problems"><h2>What kt has to say</h2>'
    order = list(Severity)
    for problem in sorted(problems, key=lambda problem: order.index(problem.severity)):
        where = f"<code>{esc(problem.location)}</code> " if problem.location else ""
        lines = "".join(f"<li>{esc(fact)}</li>" for fact in problem.facts)
        lines += f"<li>help: <code>{esc(problem.help)}</code></li>" if problem.help else ""
        yield (
            f'<div class="problem {problem.severity.value}"><b>{problem.severity.value} '
            f"{esc(problem.code)}</b> {esc(problem.message)}<br>{where}<ul>{lines}</ul></div>"
        )
    yield "</section>"


def _devices(plan: Plan, palette: Palette) -> Iterator[str]:
    needs = {
        device: (plan.resident.get(device, 0), plan.cache.bytes_per_device.get(device, 0))
        for device in palette.devices
    }
    most = max((sum(both) for both in needs.values()), default=0)
    yield '<section id="devices"><h2>Memory</h2><ul class="cards">'
    for number, (device, (weights, cached)) in enumerate(needs.items()):
        stack = bar(palette, {device: weights}, most, cache=cached)
        words = f"{human_bytes(weights)} of weights"
        words += f" + {human_bytes(cached)} of cache" if cached else ""
        yield (
            f'<li><button type="button" class="pick" data-f="D{number}" aria-pressed="false" '
            f"disabled>{chip(palette, '', device)}</button><strong>{human_bytes(weights + cached)}"
            f"</strong> <span>{words}</span>{stack}</li>"
        )
    yield "</ul></section>"


def _kernels(plan: Plan, palette: Palette) -> Iterator[str]:
    if not palette.kernels:
        return
    counts = {name: [0, 0] for name in palette.kernels}
    origins: dict[str, str] = {}
    where: dict[str, set[str]] = {name: set() for name in palette.kernels}
    for module in plan.modules:
        for index, (_, kernel, device) in enumerate(phases(module)):
            if kernel:
                counts[kernel][index] += 1
                where[kernel].add(device)
        for used in (module.prefill, module.decode):
            if used is not None:
                origins[used.name] = used.distribution
    yield '<section id="kernels"><h2>Kernels</h2><ul class="cards kernels">'
    for number, name in enumerate(palette.kernels):
        chips = "".join(chip(palette, "", device) for device in sorted(where[name]))
        prefill, decode = counts[name]
        yield (
            f'<li><button type="button" class="pick" data-f="K{number}" aria-pressed="false" '
            f'disabled><span class="chip plain"><i class="mark {palette.kernel(name)}"></i>'
            f"{esc(name)}</span></button>{chips} <span>prefill of {prefill}, decode of {decode} "
            f"modules · {esc(origins[name])}</span></li>"
        )
    yield "</ul></section>"


def _rules(plan: Plan) -> Iterator[str]:
    if not plan.rules:
        return
    won = dict.fromkeys(range(len(plan.rules)), 0)
    for module in plan.modules:
        if module.rule is not None:
            won[module.rule] += sum(module.resident.values())
    yield '<section id="rules"><h2>Rules</h2>'
    head = ("", "matches", "becomes", "fits", "won", "in memory", "where")
    yield table(head, (_rule(rule, won[rule.index]) for rule in plan.rules)) + "</section>"


def _rule(rule: RulePlan, resident: int) -> str:
    wants = [f"<code>{esc(text)}</code>" for text in (rule.name, rule.match_class) if text]
    lost = ", ".join(f"{n} to rule {index + 1}" for index, n in sorted(rule.lost_to.items()))
    return (
        f'<tr id="rule-{rule.index + 1}"><th scope="row">{rule.index + 1}</th>'
        f"<td>{' and '.join(wants)}</td><td>{esc(rule.replace_class)}</td>"
        f'<td class="num">{rule.matched}</td><td class="num" title="lost: {esc(lost or "none")}">'
        f'{rule.won}</td><td class="num">{size(resident)}</td>'
        f"<td><code>{esc(rule.place)}</code></td></tr>"
    )


def _names(title: str, names: tuple[str, ...], more: str) -> Iterator[str]:
    if not names:
        return
    rest = f"<li>… {len(names) - _LISTED} more</li>" if len(names) > _LISTED else ""
    items = "".join(f"<li><code>{esc(name)}</code></li>" for name in names[:_LISTED])
    yield (
        f'<section class="names"><details><summary><h2>{esc(title)} ({len(names)})</h2> '
        f"{esc(more)}</summary><ul>{items}{rest}</ul></details></section>"
    )
