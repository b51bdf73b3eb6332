"""Run probes in this process for another one: ``python -m kt_core.registry.probe_child REQUEST``.

``REQUEST`` is JSON: ``plugins`` to load, ``items`` as ``[operator|kernel|report, name, device]`` and whether
to import ``targets``. Each item is announced before and answered after, one line of JSON each, so that the
parent knows which one it was when this process dies.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from kt_core.errors import KtError
from kt_core.registry.registry import Registry
from kt_core.registry.specs import Rejected


def main(argv: Sequence[str]) -> int:
    """Answer every item of the request on the standard output this process was started with."""
    request = json.loads(argv[0])
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what native code prints must not come between the answers
    sys.stdout = sys.stderr
    registry = Registry.discover(only=request["plugins"], isolate=False)
    for line in _lines(registry, request):
        answers.write(json.dumps(line) + "\n")
        answers.flush()
    return 0


def _lines(registry: Registry, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"ready": True}
    for number, (sort, name, device) in enumerate(request["items"]):
        yield {"begin": number}
        if sort == "report":
            record = next((r for r in registry.plugins if r.name == name), None)
            lines = registry.report(record) if record is not None else ()
            yield {"done": number, "detail": "\n".join(lines)}
            continue
        found: Any = registry.operator(name) if sort == "operator" else registry.kernel(name)
        if found is None:
            yield {"done": number, "reasons": ["its plugin registered nothing here"], "help": ""}
        elif request["targets"]:
            yield {"done": number, **_target(registry, found.spec)}
        else:
            result = registry.probe(found.spec, device)
            if isinstance(result, Rejected):
                yield {"done": number, "reasons": list(result.reasons), "help": result.help}
            else:
                yield {"done": number, "detail": result.detail}


def _target(registry: Registry, spec: Any) -> dict[str, Any]:
    try:
        registry.load_target(spec)
    except KtError as error:
        problem = error.problems[0]
        return {"reasons": [f"{problem.code} {problem.message}"], "help": problem.help or ""}
    return {"detail": spec.target}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
