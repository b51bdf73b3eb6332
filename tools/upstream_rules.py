"""What KTransformers' own rule files give here: plans each on its full-size model, writes the table.

    python tools/upstream_rules.py FOLDER docs/upstream-rules.md

``FOLDER`` holds KTransformers' ``optimize_rules``. Nothing of it is copied into the page but file names.
Each file's placement is held against what KTransformers' own matching gives on the same model, which
is computed here a second time, with Python's own ``re`` and YAML.
"""

from __future__ import annotations

import argparse
import logging
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
import yaml

from kt_core.errors import KtError, Problem, Severity
from kt_core.models.hf import config_from_values, skeleton_model
from kt_core.plan.build import make_plan
from kt_core.plan.devices import canonical
from kt_core.plan.model import ModulePlan, Plan
from kt_core.plan.skeleton import skeleton_of
from kt_core.registry.candidates import Candidate
from kt_core.registry.registry import Registry, core_candidate
from kt_core.rules.classes import matches as names_class
from kt_core.rules.load import check_file

ROOT = Path(__file__).resolve().parents[1]
DEVICES = ("cuda:0", *(f"cuda:{n}" for n in range(1, 8)), "xpu:0", "npu:0")
_OLD_NAMES = {"mixtral": (("mlp", "block_sparse_moe"),)}
"""What KTransformers' own model files call a part of the path: by model type, new -> old."""

DEFAULT = "cuda:0"
"""Where KTransformers puts what no rule matches."""


@dataclass(frozen=True, eq=False)
class Model:
    """A published model: its name, and transformers' configuration of it."""

    name: str
    model_type: str
    architecture: str
    values: Mapping[str, Any] = field(default_factory=dict)


_V2 = {
    "hidden_size": 5120, "intermediate_size": 12288, "num_hidden_layers": 60,
    "num_attention_heads": 128, "n_routed_experts": 160, "num_experts_per_tok": 6,
    "moe_intermediate_size": 1536, "first_k_dense_replace": 1, "n_group": 8, "topk_group": 3,
    "topk_method": "group_limited_greedy",
}  # fmt: skip
_LITE = {
    "hidden_size": 2048, "intermediate_size": 10944, "num_hidden_layers": 27,
    "num_attention_heads": 16, "n_routed_experts": 64, "num_experts_per_tok": 6,
    "moe_intermediate_size": 1408, "first_k_dense_replace": 1, "q_lora_rank": None,
    "topk_method": "greedy", "n_group": 1, "topk_group": 1,
}  # fmt: skip
_MOONLIGHT = {
    "hidden_size": 2048, "intermediate_size": 11264, "num_hidden_layers": 27,
    "num_attention_heads": 16, "n_routed_experts": 64, "num_experts_per_tok": 6,
    "moe_intermediate_size": 1408, "first_k_dense_replace": 1, "q_lora_rank": None,
    "n_group": 1, "topk_group": 1, "n_shared_experts": 2,
}  # fmt: skip
_QWEN2 = {
    "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
    "num_attention_heads": 28, "num_key_value_heads": 4, "num_experts": 64,
    "num_experts_per_tok": 8, "moe_intermediate_size": 2560,
    "shared_expert_intermediate_size": 20480,
}  # fmt: skip
_QWEN3 = {
    "hidden_size": 4096, "num_hidden_layers": 94, "num_attention_heads": 64,
    "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128, "moe_intermediate_size": 1536,
}  # fmt: skip
_GLM = {
    "hidden_size": 4096, "intermediate_size": 10944, "num_hidden_layers": 46, "head_dim": 128,
    "num_attention_heads": 96, "n_routed_experts": 128, "moe_intermediate_size": 1408,
    "first_k_dense_replace": 1, "attention_bias": True,
}  # fmt: skip
_INTERN = {
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 92544,
}  # fmt: skip

# By the beginning of the file's name, the longest first.
MODELS: Mapping[str, Model] = {
    "DeepSeek-V2-Lite": Model("DeepSeek-V2-Lite", "deepseek_v2", "DeepseekV2ForCausalLM", _LITE),
    "DeepSeek-V2": Model("DeepSeek-V2", "deepseek_v2", "DeepseekV2ForCausalLM", _V2),
    "DeepSeek-V3": Model("DeepSeek-V3", "deepseek_v3", "DeepseekV3ForCausalLM"),
    "Glm4Moe": Model("GLM-4.5-Air", "glm4_moe", "Glm4MoeForCausalLM", _GLM),
    "Internlm2_5": Model("InternLM2.5-7B", "llama", "LlamaForCausalLM", _INTERN),
    "Mixtral": Model("Mixtral 8x7B", "mixtral", "MixtralForCausalLM"),
    "Moonlight": Model("Moonlight-16B-A3B", "deepseek_v3", "DeepseekV3ForCausalLM", _MOONLIGHT),
    "Qwen2": Model("Qwen2-57B-A14B", "qwen2_moe", "Qwen2MoeForCausalLM", _QWEN2),
    "Qwen3Next": Model("Qwen3-Next-80B-A3B", "qwen3_next", "Qwen3NextForCausalLM"),
    "Qwen3": Model("Qwen3-235B-A22B", "qwen3_moe", "Qwen3MoeForCausalLM", _QWEN3),
    "Smallthinker": Model("SmallThinker-21B-A3B", "smallthinker", "SmallThinkerForCausalLM"),
}


@dataclass
class Outcome:
    """What one file gives. ``plan`` is ``None`` where the file itself is refused."""

    path: str
    model: str
    problems: list[Problem]
    plan: Plan | None = None
    placed: int = 0
    elsewhere: list[tuple[str, str, str]] = field(default_factory=list)

    @property
    def errors(self) -> list[Problem]:
        """What forbids loading."""
        return [p for p in self.problems if p.severity is Severity.ERROR]

    @property
    def gives(self) -> str:
        """The verdict in a few words."""
        if self.errors:
            return "findings"
        if self.elsewhere:
            return "a plan that differs"
        return "the same plan"


@cache
def registry() -> Registry:
    """All distributions of this checkout by their plugins' data, whether installed or not."""
    found = [core_candidate()]
    for package in ("kt_ops_cpu", "kt_ops_cuda", "kt_ops_amd_blis"):
        if str(ROOT / package) not in sys.path:
            sys.path.append(str(ROOT / package))
        module = __import__(f"{package}.plugin", fromlist=["plugin"])
        name = package.replace("_", "-")
        found.append(
            Candidate(
                package, name, "0", f"{package}.plugin", package, lambda module=module: module
            )
        )
    return Registry.of(*found)


@cache
def skeleton(model: Model) -> Any:
    """The model on meta."""
    config = config_from_values(model.model_type, (model.architecture,), model.values)
    return skeleton_model(config, torch.bfloat16)


def model_of(path: str) -> Model:
    """The model a file is for, by its name."""
    name = path.rpartition("/")[2]
    begin = max((b for b in MODELS if name.startswith(b)), key=len)
    return MODELS[begin]


def outcome(folder: Path, path: str) -> Outcome:
    """Check and plan one file."""
    file = folder / path
    model = model_of(path)
    checked = check_file(file, registry())
    problems = list(checked.problems)
    found = Outcome(path, model.name, problems)
    if checked.ruleset is None:
        return found
    try:
        built = skeleton(model)
    except (KtError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[0]
        problems.append(Problem("KT302", f"transformers has no such model: {reason}"))
        return found
    plan = make_plan(
        built,
        checked.ruleset,
        registry=registry(),
        default_device=DEFAULT,
        assume_devices=(*DEVICES, "cpu"),
    )
    problems.extend(plan.problems)
    found.plan = plan
    if not plan.errors:
        theirs = upstream_devices(file, built)
        for module in plan.modules:
            if module.resident and module.path in theirs:
                found.placed += 1
                ours = _device(module)
                if ours != theirs[module.path]:
                    found.elsewhere.append((module.path, ours, theirs[module.path]))
    return found


def _device(module: ModulePlan) -> str:
    return module.decode.device if module.decode is not None else module.device


def upstream_devices(file: Path, model: Any) -> dict[str, str]:
    """Where KTransformers' engine puts each module: the first rule that fits, from top to bottom.

    Children of a module whose rule says ``recursive: False`` get no rule at all.
    """
    rules = yaml.safe_load(file.read_text(encoding="utf-8"))
    found: dict[str, str] = {}
    barrier = ""
    for module in skeleton_of(model).modules:
        path = module.path
        for new, old in _OLD_NAMES.get(model.config.model_type, ()):
            path = re.sub(rf"\b{new}\b", old, path)
        if barrier and module.path.startswith(barrier):
            found[module.path] = DEFAULT
            continue
        barrier = ""
        rule = next((r for r in rules if _fits(r["match"], path, module.classes)), None)
        kwargs = (rule or {}).get("replace", {}).get("kwargs") or {}
        device = kwargs.get("generate_device") or kwargs.get("device") or DEFAULT
        found[module.path] = canonical(device)
        if rule is not None and not rule.get("recursive", True):
            barrier = f"{module.path}." if module.path else "."
    return found


def _fits(match: Mapping[str, str], path: str, classes: Sequence[str]) -> bool:
    if "class" in match and not names_class(match["class"], classes):
        return False
    return "name" not in match or re.search(match["name"], path) is not None


# --- the page -------------------------------------------------------------------------------------

HEAD = """\
# KTransformers' rule files

KTransformers ships 38 rule files. Each was checked and planned here on the full-size model it is for, with
all of kt's distributions and eight GPUs assumed, and its placement was held against the one that
KTransformers' own matching gives on that model. This page is made by `tools/upstream_rules.py`.

*The same plan*: every module is on the device where KTransformers puts it. *Findings*: the file cannot run
here as it is, and each reason is an error with its line. Bring a file up to date with
`kt rules migrate FILE`; it lists what it changed and what is left.

"""


def page(outcomes: Sequence[Outcome]) -> str:
    """The whole page."""
    counts = Counter(o.gives for o in outcomes)
    said = ", ".join(f"{count} give {gives}" for gives, count in counts.most_common())
    lines = [
        f"Of {len(outcomes)} files, {said}.",
        "",
        "| file | planned on | gives | why |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| `{o.path}` | {o.model} | {_cell(o)} | {'<br>'.join(_reasons(o))} |" for o in outcomes
    ]
    codes = sorted({p.code for o in outcomes for p in o.problems})
    lines += ["", "## What the codes mean", ""]
    lines += [f"- [{code}](errors.md#{code.lower()}): {_title(code)}." for code in codes]
    return HEAD + "\n".join(lines) + "\n"


def _cell(found: Outcome) -> str:
    if found.plan is not None and not found.errors:
        return f"{found.gives}, {found.placed} modules"
    return found.gives


def _title(code: str) -> str:
    from kt_core.errors.catalogue import find

    known = find(code)
    return known.title if known is not None else code


def _reasons(found: Outcome) -> Iterator[str]:
    """Each kind of finding once: its code, what it says, and in which lines."""
    groups: dict[tuple[str, str], list[int]] = {}
    for problem in found.problems:
        line = problem.location.line if problem.location is not None else 0
        groups.setdefault((problem.code, _general(problem)), []).append(line)
    for (code, message), at in groups.items():
        where = ", ".join(str(line) for line in dict.fromkeys(at) if line)
        yield f"{code} {message}" + (f" (line {where})" if where else "")
    if found.elsewhere:
        path, ours, theirs = found.elsewhere[0]
        yield (
            f"{len(found.elsewhere)} modules are elsewhere, {path} among them: "
            f"{ours} instead of {theirs}"
        )
    if not found.problems and not found.elsewhere:
        yield "nothing to say"


def _general(problem: Problem) -> str:
    """A message without what differs from rule to rule, safe inside a table."""
    text = re.sub(r"^rule \d+ (\(line \d+\) )?", "a rule ", problem.message)
    text = re.sub(r"rule \d+ \(line \d+\)", "an earlier rule", text)
    text = re.sub(r"\blayers\.\d+\.", "layers.N.", text)
    if problem.code == "KT330" and problem.facts:
        known = [f.partition(": ")[2] for f in problem.facts if f.startswith("class: ")]
        text += f": {known[0].rpartition('.')[2]}" if known else ""
    return text.replace("|", "\\|").replace("<", "&lt;")


def files_in(folder: Path) -> list[str]:
    """All rule files, those of no platform first."""
    found = [file.relative_to(folder).as_posix() for file in folder.rglob("*.yaml")]
    return sorted(found, key=lambda path: (path.count("/"), path.casefold()))


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="KTransformers' optimize_rules")
    parser.add_argument("page", type=Path, help="the page to write")
    args = parser.parse_args(argv)
    logging.getLogger("transformers").setLevel(logging.ERROR)
    outcomes = [outcome(args.folder, path) for path in files_in(args.folder)]
    args.page.write_text(page(outcomes), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
