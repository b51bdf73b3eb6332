"""The JSON schema for editors, and that it says the same as the checks."""

from __future__ import annotations

import json

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kt_core.rules import check_text, schema_text
from kt_core.rules.fields import FILE, MATCH, PHASE_KWARGS, REPLACE, RULE

SCHEMA = json.loads(schema_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
# What a schema can know: the rest needs the registry, or compares rules with each other.
STRUCTURE = {"KT112", "KT114", "KT116", "KT117", "KT118", "KT119", "KT120", "KT123", "KT135"}


def test_it_is_a_valid_schema_of_the_draft_it_names():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"


@pytest.mark.parametrize("shape", [FILE, RULE, MATCH, REPLACE], ids=lambda shape: shape.what)
def test_its_objects_have_the_keys_that_are_checked_and_no_others(shape):
    name = shape.what.rpartition(" ")[2]
    found = SCHEMA["$defs"][name]
    assert tuple(found["properties"]) == shape.keys
    assert tuple(found.get("required", ())) == shape.required
    assert found["additionalProperties"] is False


def test_every_property_has_a_description():
    described = [
        (name, key, "description" in value)
        for name, definition in SCHEMA["$defs"].items()
        for key, value in definition.get("properties", {}).items()
    ]
    assert described
    assert all(has for _, _, has in described), described
    assert set(PHASE_KWARGS) <= set(SCHEMA["$defs"]["kwargs"]["properties"])


def test_it_refers_to_nothing_outside_and_offers_no_alternatives():
    def walk(node):
        if isinstance(node, dict):
            for key, value in node.items():
                assert key not in ("oneOf", "anyOf"), "an editor then cannot say which key is wrong"
                assert key != "$ref" or value.startswith("#/")
                walk(value)
        elif isinstance(node, list):
            for item in node:
                walk(item)

    walk(SCHEMA)


SCALARS = st.sampled_from(
    ["a", "", "torch.nn.Linear", "default", "cpu", "cuda:1", "gpu", 1, 0, True, False, None]
)
DEVICES = st.sampled_from(["cpu", "cuda", "cuda:12", "gpu", "cuda:01", "cuda:", 1, None, ["cpu"]])


def mostly(strategy):
    return st.one_of(
        strategy, strategy, strategy, SCALARS, st.lists(SCALARS, max_size=1), st.just({})
    )


def mapping(**fields):
    return st.one_of(
        st.fixed_dictionaries({}, optional=fields),
        st.fixed_dictionaries({}, optional={**fields, "zzz": SCALARS, "1": SCALARS}),
    )


MATCHES = mapping(
    name=mostly(st.sampled_from(["^a$", "b"])),
    **{"class": mostly(st.sampled_from(["torch.nn.Linear", "x.y", "Linear", "a..b", "é.b"]))},
)
KWARGS = mapping(
    generate_device=DEVICES,
    prefill_device=DEVICES,
    transfer_map=mapping(**{"0": DEVICES, "30": DEVICES, "03": DEVICES}),
    anything=SCALARS,
)
REPLACES = mapping(
    **{"class": mostly(st.sampled_from(["default", "sample.Open"]))}, kwargs=mostly(KWARGS)
)
RULES = mapping(
    match=mostly(MATCHES),
    replace=mostly(REPLACES),
    recursive=mostly(st.booleans()),
    **{"continue": mostly(st.booleans())},
)
FILES = st.one_of(
    st.lists(mostly(RULES), max_size=3),
    mapping(
        version=st.sampled_from([1, 1, 2, "1", None]),
        architectures=mostly(st.lists(st.sampled_from(["A", "B_1", "no name", 1, ""]), max_size=3)),
        description=mostly(st.sampled_from(["text", " ", ""])),
        rules=mostly(st.lists(mostly(RULES), max_size=2)),
    ),
    SCALARS,
)


@settings(max_examples=600, deadline=None)
@given(FILES)
def test_the_checks_refuse_what_the_schema_refuses_and_nothing_else(document):
    registry = _registry()
    checked = check_text(json.dumps(document, ensure_ascii=False), "rules.yaml", registry)
    ours = {problem.code for problem in checked.problems} & STRUCTURE
    theirs = [error.message for error in VALIDATOR.iter_errors(document)]
    assert bool(ours) == bool(theirs), (checked.problems, theirs)


def _registry():
    from kt_core.operators import plugin as core
    from kt_core.registry.hookspecs import hookimpl
    from kt_core.registry.registry import Registry
    from kt_core.registry.specs import OperatorSpec

    class open_plugin:  # noqa: N801 - stands for a plugin's module
        KT_PLUGIN_API = 1

        @staticmethod
        @hookimpl
        def kt_register_operators():
            schema = {"type": "object", "additionalProperties": True}
            return [OperatorSpec("sample.Open", "sample:Open", "Open.", kwargs_schema=schema)]

    if not hasattr(_registry, "made"):
        _registry.made = Registry.of(core, open_plugin, environ={})
    return _registry.made
