"""Every shipped rule file on a tiny model of its family: nothing parts from the reference."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from kt_core import Accepted
from kt_core.registry.registry import default_registry
from kt_core.rules import check_text
from kt_core.runtime.apply import apply_plan
from kt_core.runtime.load import prepare
from kt_core.verify.run import verify

from .gguf_of_model import write_gguf
from .tiny_models import CASES

RULES = Path(__file__).resolve().parents[3] / "rules"
SHIPPED = sorted(path.relative_to(RULES).as_posix() for path in RULES.glob("*/*.yaml"))
CASE_OF = {
    "deepseek_v2": "deepseek-v2",
    "deepseek_v3": "deepseek-v3",
    "gemma3": "gemma-3",
    "glm4_moe": "glm-4.5",
    "gpt_oss": "gpt-oss",
    "minimax_m2": "minimax-m2",
    "qwen2_moe": "qwen2-moe",
    "qwen3_moe": "qwen3-moe",
    "qwen3_next": "qwen3-next",
    "smallthinker": "smallthinker-21b",
}


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A quantised file of each family, written when it is first asked for."""
    folder = tmp_path_factory.mktemp("verify")
    made: dict[str, Path] = {}

    def of(family: str) -> Path:
        if family not in made:
            case = next(c for c in CASES if c.id == CASE_OF.get(family, family))
            made[family] = folder / f"{family}.gguf"
            write_gguf(case.build(), made[family], case.gguf, case.quantization, case.style)
        return made[family]

    return of


def runs_here(name: str) -> bool:
    found = default_registry().kernel(name)
    if found is None:
        return False
    device = found.spec.devices[0]
    accepted = isinstance(default_registry().probe(found.spec, device), Accepted)
    return accepted and (device == "cpu" or torch.cuda.is_available())


def rules_for_this_machine(name: str) -> str:
    """The file's text, with kernels and devices that are not here exchanged for torch's on the CPU."""
    text = (RULES / name).read_text()
    for package in ("kt_ops_cpu", "kt_ops_cuda", "kt_ops_amd_blis"):
        for kernel, plain in (
            ("linear_int8", "linear"),
            ("linear", "linear"),
            ("marlin", "linear"),
            ("moe_int8", "experts"),
            ("experts", "experts"),
        ):
            if not runs_here(f"{package}.{kernel}"):
                text = text.replace(f"{package}.{kernel}\n", f"kt_core.torch_{plain}\n")
    if not runs_here("kt_ops_cuda.marlin"):
        text = re.sub(r"class: kt_ops_cuda\.\w+", "class: default", text)
    for number in range(torch.cuda.device_count(), 8):
        text = text.replace(f"cuda:{number}", "cpu")
    if not torch.cuda.is_available():
        text = text.replace(": cuda\n", ": cpu\n")
    options = "        activation_bits: 16\n"
    return text if runs_here("kt_ops_cpu.linear") else text.replace(options, "")


@pytest.mark.parametrize("name", SHIPPED)
def test_nothing_parts_from_the_reference(name, files):
    checked = check_text(rules_for_this_machine(name), name, default_registry())
    assert checked.ruleset is not None, [p.render() for p in checked.problems]
    prepared = prepare(files(name.partition("/")[0]), rules=checked.ruleset, device="cpu")
    generator = torch.Generator().manual_seed(0)
    vocabulary = prepared.model.config.vocab_size
    tokens = torch.randint(0, vocabulary, (1, 14), generator=generator)
    with prepared.source as source:
        apply_plan(prepared.model, prepared.plan, source, prepared.registry)
        report = verify(prepared.model, prepared.plan, source, prepared.registry, tokens, decode=2)
    assert report.verdict == "ok", "\n".join(str(f) for f in report.findings if f.verdict != "ok")
    verified = {finding.module for finding in report.findings}
    kernels = {m.path for m in prepared.plan.modules if m.decode is not None}
    assert kernels
    assert kernels <= verified
    assert report.answer.same_choice > 0.7
