"""The HTML page of a plan: complete, self-contained, small and harmless."""

from __future__ import annotations

import json
from html.parser import HTMLParser

import pytest

from kt_core.errors import Location, Problem, Severity
from kt_core.plan.model import CachePlan, KernelPlan, ModulePlan, Plan, RulePlan
from kt_core.plan_page import plan_page, plan_tree
from kt_core.plan_page.tree import ranges

VOID = {"meta", "br", "input", "hr", "img"}


class Page(HTMLParser):
    """Reads a page strictly: every element must be closed, in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.text, self.attributes = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("script", "style"):
            self.text.append(data)

    @property
    def words(self):
        return " ".join("".join(self.text).split())

    def nodes(self):
        return [attrs for tag, attrs in self.attributes if attrs.get("class") == "n"]


def kernel(name="kt_ops_cpu.linear", device="cpu", **fields):
    return KernelPlan(name, device, fields.pop("distribution", "kt-ops-cpu"), **fields)


def module(path, **fields):
    return ModulePlan(
        **{
            "path": path,
            "class_name": "Linear",
            "operator": "kt_core.Linear",
            "distribution": "kt-core",
            "rule": 0,
            "place": "/rules/mine.yaml:3:5",
            "device": "cpu",
            "out_device": None,
            "kwargs": {},
            "prefill": kernel(),
            "decode": kernel(),
            "bindings": (),
            "experts": None,
            "stored": 1024,
            "resident": {"cpu": 2048},
            **fields,
        }
    )


def plan(*modules, **fields):
    return Plan(
        **{
            "architecture": "LlamaForCausalLM",
            "weights": "/models/tiny.gguf",
            "weights_format": "gguf",
            "rules_path": "/rules/mine.yaml",
            "default_device": "cpu",
            "dtype": "float32",
            "modules": modules,
            "rules": (RulePlan(0, "/rules/mine.yaml:3:5", "^x", None, "kt_core.Linear", 3, 2, {}),),
            "cache": CachePlan(4096, 100, {"cpu": 409600}),
            **fields,
        }
    )


def layers(count, **last):
    found = []
    for number in range(count):
        more = last if number == count - 1 else {}
        found.append(module(f"model.layers.{number}.up", **more))
        found.append(module(f"model.layers.{number}.down"))
    return found


def at(root, path):
    for name in path.split("."):
        root = next(child for child in root.children if child.name == name)
    return root


def test_members_that_are_alike_stand_once_and_sums_stay():
    made = plan(*layers(61))
    root = plan_tree(made)
    (group,) = at(root, "model.layers").children
    assert (group.name, group.count) == ("0\u201360", 61)
    assert root.resident == made.resident == {"cpu": 61 * 2 * 2048}
    assert root.stored == made.stored
    assert root.modules == 61 * 3 + 3


def test_what_differs_deep_inside_stands_apart():
    root = plan_tree(plan(*layers(61, device="cuda:0", decode=kernel(device="cuda:0"))))
    assert [n.name for n in at(root, "model.layers").children] == ["0\u201359", "60"]


def test_alike_members_need_not_be_neighbours():
    modules = [
        module(f"layers.{n}.up", types=("Q6_K" if n in (1, 4) else "Q4_K",)) for n in range(6)
    ]
    names = [node.name for node in at(plan_tree(plan(*modules)), "layers").children]
    assert names == ["0, 2\u20133, 5", "1, 4"]


def test_a_name_that_only_looks_like_a_number_is_a_name():
    modules = [module(f"layers.{name}.up") for name in ("7", "07", "\u0667", "9" * 5000)]
    names = [node.name for node in at(plan_tree(plan(*modules)), "layers").children]
    assert names == ["7", "07", "\u0667", "9" * 5000]


def test_a_tied_head_counts_once_in_the_file():
    made = plan(module("embed"), module("head", tied_to="embed.weight", resident={}))
    assert plan_tree(made).stored == made.stored == 1024


@pytest.mark.parametrize(
    ("numbers", "text"),
    [((), ""), ((3,), "3"), ((2, 0, 1, 7), "0\u20132, 7"), ((1, 3), "1, 3")],
)
def test_ranges(numbers, text):
    assert ranges(numbers) == text


def test_the_page_says_what_the_plan_says():
    decode = kernel("kt_ops_cuda.marlin", "cuda:1", options={"num_bits": 4}, detail="sm_90")
    made = plan(
        module("model.up", decode=decode, types=("Q4_K",), resident={"cpu": 3 << 20}),
        module("model.norm", rule=None, place="", operator="default", prefill=None, decode=None),
        unused_tensors=("left.over",),
        problems=(
            Problem("KT331", "rule 2 is shadowed", Location("/rules/mine.yaml", 9, 1), ("f",), "h"),
            Problem("KT333", "a bias is left", severity=Severity.WARNING),
        ),
    )
    page = Page(plan_page(made))
    for words in (
        "/models/tiny.gguf",
        "3.0 MiB",
        "kt_ops_cuda.marlin on cuda:1, from kt-ops-cpu (sm_90); num_bits: 4",
        "mine.yaml:3",
        "/rules/mine.yaml:3:5",
        "none matches; it stays as it is on cpu",
        "left.over",
        "error KT331 rule 2 is shadowed",
        "/rules/mine.yaml:9:1",
        "warning KT333",
        "400.0 KiB of cache",
    ):
        assert words in page.words, words
    assert [node["data-p"] for node in page.nodes()] == ["", "model", "model.up", "model.norm"]
    assert page.nodes()[2]["data-t"] == "D0 D1 K0 K1"


def test_an_operator_that_holds_others_is_named():
    block = module("model.mlp", operator="kt_core.MoeBlock", prefill=None, decode=None, resident={})
    page = Page(plan_page(plan(block, module("model.mlp.up"))))
    assert "kt_core.MoeBlock, from kt-core" in page.words
    assert page.words.count("kt_core.MoeBlock") == 2


def test_nothing_is_fetched_and_no_other_script_runs():
    page = Page(plan_page(plan(*layers(3))))
    for tag, attributes in page.attributes:
        assert not {"src", "srcset", "data", "action", "poster"} & set(attributes), tag
        assert attributes.get("href", "#").startswith("#")
        assert not any(name.startswith("on") for name in attributes)
        assert tag not in ("link", "iframe", "object", "embed", "base", "img")
    policy = next(a["content"] for t, a in page.attributes if "http-equiv" in a)
    assert policy.startswith("default-src 'none'")
    assert "script-src 'sha256-" in policy
    text = plan_page(plan())
    assert "@import" not in text
    assert "url(" not in text


HOSTILE = (
    '"><script>alert(1)</script><img src=x onerror=alert(2)>\u202e\x1b[31m&lt;</style></details>'
)


def test_hostile_names_stay_text():
    made = plan(
        module(HOSTILE, class_name=HOSTILE, types=(HOSTILE,), kwargs={HOSTILE: HOSTILE}),
        module(f"layers.0.{HOSTILE}", operator=HOSTILE, place=f"{HOSTILE}:1:2", tied_to=HOSTILE),
        module("layers.1.x", prefill=kernel(HOSTILE, detail=HOSTILE), out_device=HOSTILE),
        architecture=HOSTILE,
        weights=HOSTILE,
        rules_path=HOSTILE,
        rules=(RulePlan(0, HOSTILE, HOSTILE, HOSTILE, HOSTILE, 1, 1, {}),),
        unused_tensors=(HOSTILE,),
        problems=(Problem("KT300", HOSTILE, Location(HOSTILE, 1, 1), (HOSTILE,), HOSTILE),),
    )
    text = plan_page(made)
    clean = Page(plan_page(plan(*layers(2))))
    page = Page(text)
    assert page.tags.count("script") == 1
    assert "img" not in page.tags
    assert {name for _, a in page.attributes for name in a} <= {
        *(name for _, a in clean.attributes for name in a)
    } | {"open"}
    assert "\u202e" not in text
    assert "\x1b" not in text
    assert "alert(1)" in page.words


def test_a_large_model_makes_a_small_page():
    assert len(plan_page(plan(*layers(61)))) < 40_000
    odd = [module(f"layers.{n}.{m}", stored=n) for n in range(61) for m in "abcdefghijklmnop"]
    assert len(plan_page(plan(*odd))) < 2_000_000


def test_no_modules_is_a_page_too():
    assert "LlamaForCausalLM" in Page(plan_page(plan(weights=None, rules=()))).words


class TestCommand:
    @pytest.fixture
    def run(self, tmp_path_factory, capsys):
        pytest.importorskip("torch")
        from kt_core.cli.main import main
        from kt_core.testing.tiny import write_tiny_llama

        file = tmp_path_factory.mktemp("page") / "tiny.gguf"
        write_tiny_llama(file)

        def call(*arguments):
            status = main(["plan", "--gguf", str(file), "--device", "cpu", *map(str, arguments)])
            captured = capsys.readouterr()
            return status, captured.out, captured.err

        call.file = file
        return call

    def test_it_writes_the_page_and_writes_it_again(self, run, tmp_path):
        out = tmp_path / "plan.html"
        for _ in range(2):
            status, text, _ = run("--html", out)
            assert (status, text.startswith(f"wrote {out}")) == (0, True)
        page = Page(out.read_text(encoding="utf-8"))
        assert "kt_core.Linear" in page.words
        assert run("--html", "-")[1] == out.read_text(encoding="utf-8")

    def test_its_numbers_are_those_of_the_json(self, run, tmp_path):
        from kt_core.units import human_bytes

        out = tmp_path / "plan.html"
        run("--html", out)
        data = json.loads(run("--format", "json")[1])
        words = Page(out.read_text(encoding="utf-8")).words
        assert f"{human_bytes(data['resident']['cpu'])} of weights" in words
        assert f"({human_bytes(data['stored'])} of tensors)" in words

    def test_it_never_writes_over_anything_else(self, run, tmp_path):
        before = run.file.read_bytes()
        status, _, err = run("--html", run.file)
        assert (status, "KT751" in err) == (2, True)
        assert run.file.read_bytes() == before
        for name in (tmp_path, tmp_path / "none" / "x.html"):
            status, _, err = run("--html", name)
            assert (status, "KT751" in err, "Traceback" in err) == (2, True, False)
