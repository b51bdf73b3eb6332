"""Which rule wins: semantics by example, and the fast way against trying every rule on every
module."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kt_core.errors import RuleError
from kt_core.rules import Matcher, Rule, RuleSet, check_text, explain_module, match_modules
from kt_core.rules.match import class_matches
from kt_core.rules.merged import check_merged
from kt_core.rules.pattern_facts import facts

LINEAR = ("torch.nn.modules.linear.Linear", "torch.nn.modules.module.Module")
LIST = ("torch.nn.modules.container.ModuleList", "torch.nn.modules.module.Module")
MLP = ("transformers.models.llama.modeling_llama.LlamaMLP", "torch.nn.modules.module.Module")


def rule(index, name=None, cls=None, *, to="kt_core.Module", kwargs=None, **flags):
    return Rule(
        index,
        name,
        cls,
        to,
        kwargs or {},
        flags.get("recursive", True),
        flags.get("continue_", False),
    )


def ruleset(*rules):
    return RuleSet("rules.yaml", tuple(rules))


def model(layers=3):
    """A small decoder, parents before children."""
    modules = [
        ("", ("transformers.models.llama.modeling_llama.LlamaForCausalLM",)),
        ("model", ("transformers.models.llama.modeling_llama.LlamaModel",)),
        ("model.layers", LIST),
    ]
    for i in range(layers):
        modules += [
            (f"model.layers.{i}", ("x.Layer",)),
            (f"model.layers.{i}.mlp", MLP),
            *((f"model.layers.{i}.mlp.{name}_proj", LINEAR) for name in ("gate", "up", "down")),
        ]
    return [*modules, ("lm_head", LINEAR)]


def won(matches):
    return {m.path: m.rule for m in matches.modules if m.rule is not None}


def test_the_first_match_wins_and_the_rest_is_named():
    rules = ruleset(
        rule(0, r"^model\.layers\.1\.mlp\.up_proj$", kwargs={"a": 1}),
        rule(1, None, "torch.nn.Linear", kwargs={"a": 2}),
        rule(2, r"up_proj$"),
    )
    matches = match_modules(rules, model())
    by_path = {m.path: m for m in matches.modules}
    assert by_path["model.layers.1.mlp.up_proj"].rule == 0
    assert by_path["model.layers.1.mlp.up_proj"].losers == (1, 2)
    assert by_path["model.layers.1.mlp.up_proj"].kwargs == {"a": 1}
    assert by_path["model.layers.0.mlp.up_proj"].rule == 1
    assert by_path["model.layers.0.mlp"].rule is None
    assert [r.matched for r in matches.rules] == [1, 10, 3]
    assert [r.won for r in matches.rules] == [1, 9, 0]
    assert matches.rules[2].lost_to == {0: 1, 1: 2}


def test_name_is_searched_and_both_conditions_must_hold():
    rules = ruleset(rule(0, "up_proj", "torch.nn.Linear"), rule(1, "up_proj"), rule(2, "mlp$"))
    modules = [("a.up_proj_x", LINEAR), ("a.up_proj_y", LIST), ("a.mlp", MLP)]
    assert won(match_modules(rules, modules)) == {"a.up_proj_x": 0, "a.up_proj_y": 1, "a.mlp": 2}


def test_continue_collects_kwargs_and_keeps_the_first_class():
    rules = ruleset(
        rule(0, "mlp", to="first", kwargs={"a": 1, "b": 1}, continue_=True),
        rule(1, "other", to="unrelated", kwargs={"z": 0}),
        rule(2, "mlp$", to="second", kwargs={"b": 2, "c": 2}, continue_=True),
        rule(3, "layers", to="third", kwargs={"c": 3}),
        rule(4, "mlp$", to="fourth", kwargs={"d": 4}),
    )
    match = Matcher(rules).first("model.layers.0.mlp", MLP)
    assert match.rule == 0
    assert match.added == (2, 3)
    assert match.kwargs == {"a": 1, "b": 2, "c": 3}
    assert match.losers == (4,)
    report = match_modules(rules, model()).rules
    assert report[3].added == 3 * 4
    assert report[4].lost_to == {3: 3}


def test_merged_options_are_checked_against_the_operator_they_reach(registry):
    text = (
        "- match: {name: 'mlp$'}\n  replace: {class: sample.LowRank, kwargs: {mode: sum}}\n"
        "  continue: true\n"
        "- match: {name: 'layers.0'}\n  replace: {kwargs: {rank: 4}}\n"
        "- match: {name: 'layers.1'}\n  replace: {kwargs: {rank: 0, renk: 1, generate_device: gpu}}\n"
    )
    checked = check_text(text, "rules.yaml", registry)
    assert [str(p.location) for p in checked.problems if p.code != "KT135"] == []
    rules = check_text(text.replace("gpu", "cpu"), "rules.yaml", registry).ruleset
    problems = check_merged(rules, match_modules(rules, model()), registry)
    # Layer 0 is complete, layer 1 is wrong in two ways, layer 2 lacks what a later rule was to add.
    assert [(p.code, str(p.location)) for p in problems] == [
        ("KT140", "rules.yaml:2:12"),
        ("KT132", "rules.yaml:7:28"),
        ("KT133", "rules.yaml:7:37"),
    ]


def test_recursive_false_keeps_all_rules_away_from_the_children():
    rules = ruleset(rule(0, r"\.1\.mlp$", recursive=False), rule(1, None, "torch.nn.Linear"))
    matches = match_modules(rules, model())
    by_path = {m.path: m for m in matches.modules}
    inside = by_path["model.layers.1.mlp.up_proj"]
    assert (inside.rule, inside.kept_by, inside.losers) == (None, 0, (1,))
    assert by_path["model.layers.2.mlp.up_proj"].rule == 1
    assert matches.rules[1].matched == 3 * 2 + 1
    assert matches.rules[1].kept_away == {0: 3}


def test_a_sibling_that_only_begins_alike_is_not_inside():
    rules = ruleset(rule(0, "^a$", recursive=False), rule(1, "^a"))
    assert won(match_modules(rules, [("a", MLP), ("a.b", MLP), ("ab", MLP)])) == {"a": 0, "ab": 1}


def test_recursive_false_of_an_added_rule_counts():
    rules = ruleset(
        rule(0, "mlp$", continue_=True), rule(1, "mlp$", recursive=False), rule(2, "proj")
    )
    matches = match_modules(rules, model(1))
    assert {m.kept_by for m in matches.modules if "proj" in m.path} == {1}


def test_the_model_itself_is_matched_but_noted():
    matches = match_modules(ruleset(rule(0, "")), model(1))
    assert matches.modules[0].rule == 0
    assert [p.code for p in matches.problems] == ["KT128"]
    quiet = match_modules(ruleset(rule(0, "", to="default")), model(1))
    assert quiet.problems == ()


@pytest.mark.parametrize(
    ("name", "qualified", "same"),
    [
        ("torch.nn.Linear", "torch.nn.modules.linear.Linear", True),
        ("torch.Linear", "torch.nn.modules.linear.Linear", True),
        ("torch.nn.modules.linear.Linear", "torch.nn.modules.linear.Linear", True),
        ("torch.nn.modules.lin.Linear", "torch.nn.modules.linear.Linear", False),
        ("torch.nn.linear", "torch.nn.modules.linear.Linear", False),
        ("torch.nn.Linear", "torch.nnx.Linear", False),
        ("other.nn.Linear", "torch.nn.modules.linear.Linear", False),
        ("torch.nn.modules.linear.sub.Linear", "torch.nn.modules.linear.Linear", False),
    ],
)
def test_a_class_matches_through_its_parent_packages(name, qualified, same):
    assert class_matches(name, (qualified,)) is same


def test_a_base_class_matches_and_so_does_the_copy_it_was_made_from():
    assert class_matches("torch.nn.Module", LINEAR)
    theirs = "ktransformers.models.modeling_deepseek_v3.DeepseekV3MoE"
    ours = "transformers.models.deepseek_v3.modeling_deepseek_v3.DeepseekV3MoE"
    assert class_matches(theirs, (ours, "torch.nn.modules.module.Module"))
    gate = "ktransformers.models.modeling_deepseek_v3.MoEGate"
    assert class_matches(gate, (ours.replace("MoE", "TopkRouter"),))


def test_explain_gives_every_rule_its_verdict():
    rules = ruleset(
        rule(0, "^lm_head$"),
        rule(1, "up_proj$"),
        rule(2, None, "torch.nn.Linear"),
        rule(3, None, "torch.nn.LayerNorm"),
    )
    lines = explain_module(rules, "model.layers.0.mlp.up_proj", model(1))
    assert [line.split(") ", 1)[1].split(":")[0] for line in lines] == [
        "does not match",
        "wins",
        "loses",
        "does not match",
    ]
    kept = explain_module(
        ruleset(rule(0, "mlp$", recursive=False), rule(1, "proj")),
        "model.layers.0.mlp.up_proj",
        model(1),
    )
    assert "recursive: false" in kept[0]
    assert "kept away" in kept[2]


# --- time
# ------------------------------------------------------------------------------------------

CATASTROPHES = [
    r"^model\.layers\.(.*)+\.mlp$",
    r"^(a|aa)+$",
    r"^((\w|\w\w|\.)+)+X$",
    r"^(?:\w+\.?|.)*X$",
    r"(.*.*.*.*.*.*.*.*.*.*.*.*)X",
]


@pytest.mark.parametrize("pattern", CATASTROPHES)
def test_a_catastrophic_pattern_ends_within_a_second(pattern):
    paths = [("model.layers." + "a" * 60 + ".b" * 40, MLP), ("a" * 200 + "!", MLP)]
    start = time.process_time()
    try:
        match_modules(ruleset(rule(0, "^b"), rule(1, pattern)), paths * 5)
    except RuleError as error:
        problem = error.problems[0]
        assert problem.code == "KT170"
        assert "rule 2" in problem.message
        assert paths[0][0][:40] in problem.message or paths[1][0][:40] in problem.message
    assert time.process_time() - start < 1


def test_many_slow_searches_together_end_as_well():
    pattern = r"^(\w|\w\w)+[XY]$"
    modules = [("a" * 27 + str(i), MLP) for i in range(5000)]
    start = time.process_time()
    with pytest.raises(RuleError, match="KT170"):
        match_modules(ruleset(rule(0, pattern)), modules)
    assert time.process_time() - start < 5


def test_the_whole_is_limited_too():
    modules = [(f"a.x{i}", MLP) for i in range(20_000)]
    rules = ruleset(*(rule(i, f"a\\.(x|y)?(1|2){i}") for i in range(50)))
    with pytest.raises(RuleError, match="KT171"):
        Matcher(rules, total=0.01).run(modules)


def deepseek(layers=61, experts=256):
    for i in range(layers):
        yield f"model.layers.{i}", ("x.Layer",)
        for part in ("self_attn", "self_attn.q_proj", "self_attn.o_proj", "mlp", "mlp.experts"):
            yield f"model.layers.{i}.{part}", LINEAR if part.endswith("proj") else MLP
        for e in range(experts):
            yield f"model.layers.{i}.mlp.experts.{e}", MLP
            for name in ("gate", "up", "down"):
                yield f"model.layers.{i}.mlp.experts.{e}.{name}_proj", LINEAR
    yield "lm_head", LINEAR


def test_two_thousand_rules_and_a_hundred_thousand_modules():
    modules = list(deepseek(layers=98))
    assert len(modules) > 100_000
    kinds = ("self_attn", r"self_attn\.q_proj", r"self_attn\.o_proj", "mlp", r"mlp\.experts")
    rules = [
        rule(i, rf"^model\.layers\.({i % 100}|1[0-9]{{2}})\.{kinds[i % 5]}$", kwargs={"a": i})
        for i in range(700)
    ]
    rules += [rule(700 + i, rf"^model\.layers\.\d+\.mlp\.experts\.{i}$") for i in range(300)]
    rules += [
        rule(1000 + i, rf"^model\.layers\.{i % 100}\.(?!self_attn).*_proj$", "torch.nn.Linear")
        for i in range(900)
    ]
    rules += [rule(1900 + i, rf"^model\.layers\.(?!.*mlp\.gate{i}).*X$") for i in range(99)]
    rules += [rule(1999, ".*", to="default")]
    start = time.process_time()
    matches = match_modules(ruleset(*rules), modules)
    took = time.process_time() - start
    assert matches.rules[1999].matched == len(modules)
    assert took < 5


# --- against the plain way
# -------------------------------------------------------------------------

ATOM_LINES = r"""
a b w1 \. . 1 12 \d \d+ [0-9]+ [12] [^.]* .* .+ .? (1|2) (a|1)? (a\.)* (?!1) (?!.*b) (?=a|\d) 1?
\w \w+ a{1,2} \d{2} (.*) x* (\.\d+)+ (\d|\.)+ (.*1)? [a-z]* \.(1|12)\. (?:b|\d+)$
"""
ATOMS = st.sampled_from(ATOM_LINES.split())
PATTERNS = st.one_of(
    st.builds("".join, st.lists(ATOMS, max_size=6)),
    st.builds(lambda atoms: "^" + "".join(atoms), st.lists(ATOMS, max_size=6)),
    st.builds(lambda atoms: r"^a\." + "".join(atoms) + "$", st.lists(ATOMS, max_size=5)),
    st.builds(lambda a, b: f"({a})|^b{b}", ATOMS, ATOMS),
    st.builds(lambda a, b, c: rf"^a\.{a}\.{b}\.{c}", ATOMS, ATOMS, ATOMS),
)
SEGMENTS = st.sampled_from(
    ["a", "b", "w1", "x", "1", "2", "12", "0", "121", "aa", "a1b", "9", "1a"]
)
PATHS = st.builds(".".join, st.lists(SEGMENTS, min_size=1, max_size=5))


@settings(max_examples=400, deadline=None)
@given(
    st.lists(PATTERNS, min_size=1, max_size=6),
    st.lists(PATHS, min_size=1, max_size=25, unique=True),
)
def test_shared_decisions_equal_trying_every_rule_on_every_module(patterns, paths):
    rules = ruleset(*(rule(i, pattern) for i, pattern in enumerate(patterns)))
    # Generous limits: what is compared is what matches, and a busy machine is slow.
    matcher = Matcher(rules, per_match=60, total=600)
    for path in paths:
        expected = tuple(i for i, p in enumerate(patterns) if re.search(p, path))
        match = matcher.first(path, MLP)
        found = () if match.rule is None else (match.rule, *match.losers)
        assert found == expected, (patterns, path)


@settings(max_examples=300, deadline=None)
@given(PATTERNS, st.lists(SEGMENTS, min_size=1, max_size=5), st.data())
def test_a_pattern_said_to_ignore_numbers_does(pattern, segments, data):
    matter = facts(pattern).numbers
    changed = list(segments)
    places = [i for i, segment in enumerate(segments) if segment.isdigit()]
    for number, i in enumerate(places):
        if matter is not None and number not in matter:
            changed[i] = str(data.draw(st.integers(0, 1234)))
    before, after = ".".join(segments), ".".join(changed)
    assert bool(re.search(pattern, before)) == bool(re.search(pattern, after)), (before, after)
