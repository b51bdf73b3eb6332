"""Schemas that plugins bring: what is refused, and that what passes is well-formed and fast."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from kt_core.registry.schemas import KEYWORDS, pattern_fault, schema_faults
from kt_core.testing.registry import fake_plugin, fake_registry, operator_spec


def properties(**schemas):
    return {"type": "object", "properties": schemas}


def nested(depth):
    schema = {"type": "string"}
    for _ in range(depth):
        schema = {"anyOf": [schema]}
    return properties(x=schema)


def doubling(levels):
    """Twice as many subschemas with every level, in a schema that is small on paper."""
    defs = {f"l{i}": {"anyOf": [{"$ref": f"#/$defs/l{i + 1}"}] * 2} for i in range(levels)}
    defs[f"l{levels}"] = {"type": "string"}
    return {"type": "object", "$defs": defs, "properties": {"x": {"$ref": "#/$defs/l0"}}}


BAD = {
    "no-mapping": (["object"], "not a JSON schema object"),
    "no-object": ({"type": "string"}, '"type": "object"'),
    "no-type": ({"properties": {}}, '"type": "object"'),
    "remote-ref": (properties(x={"$ref": "http://127.0.0.1:9/x.json"}), "leads outside"),
    "file-ref": (properties(x={"$ref": "other.json#/a"}), "leads outside"),
    "anchor-ref": (properties(x={"$ref": "#name"}), "leads outside"),
    "dynamic-ref": (properties(x={"$dynamicRef": "#x"}), "not a keyword"),
    "lost-ref": (properties(x={"$ref": "#/$defs/gone"}), "does not exist in the schema"),
    "circle": (
        {"type": "object", "$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}}
        | {"properties": {"x": {"$ref": "#/$defs/a"}}},
        "refers to itself",
    ),
    "own-circle": (properties(x={"$ref": "#"}), "refers to itself"),
    "other-draft": (
        {"type": "object", "$schema": "http://json-schema.org/draft-07/schema#"},
        "not draft 2020-12",
    ),
    "address": ({"type": "object", "$id": "http://x/y"}, "no address"),
    "misspelt": ({"type": "object", "requried": ["a"]}, 'did you mean "required"?'),
    "type-word": (properties(x={"type": "int"}), "'int' is not a type"),
    "type-twice": (properties(x={"type": ["null", "null"]}), "names a type twice"),
    "required-text": ({"type": "object", "required": "a"}, "list of property names"),
    "required-twice": ({"type": "object", "required": ["a", "a"]}, "names a property twice"),
    "negative": (properties(x={"minLength": -1}), "whole number from 0"),
    "float-count": (properties(x={"maxItems": 1.5}), "whole number from 0"),
    "bool-count": (properties(x={"maxItems": True}), "whole number from 0"),
    "nan": (properties(x={"minimum": float("nan")}), "not possible here"),
    "infinite": (properties(x={"maximum": float("inf")}), "not possible here"),
    "zero-multiple": (properties(x={"multipleOf": 0}), "not possible here"),
    "text-number": (properties(x={"minimum": "1"}), "must be a number"),
    "description": (properties(x={"description": 3}), "must be text"),
    "int-key": ({"type": "object", 1: {}}, "is not a string"),
    "int-property": ({"type": "object", "properties": {1: {}}}, "is not a string"),
    "default-set": (properties(x={"default": {1, 2}}), "is not a JSON value"),
    "default-nan": (properties(x={"default": [float("nan")]}), "is not a JSON value"),
    "empty-enum": (properties(x={"enum": []}), "at least one entry"),
    "empty-anyof": (properties(x={"anyOf": []}), "at least one entry"),
    "list-schema": (properties(x=["string"]), "must be an object or a boolean"),
    "deep": (nested(40), "nested more than 24 deep"),
    "wide": (properties(**{f"p{i}": {} for i in range(6000)}), "more than 5000 subschemas"),
    "doubling": (doubling(20), "once its references are followed"),
    "unique-objects": (
        properties(x={"type": "array", "items": {"type": "object"}, "uniqueItems": True}),
        'needs "maxItems"',
    ),
    "regex-broken": (properties(x={"pattern": "("}), "does not compile"),
    "regex-nested": (properties(x={"pattern": r"^(.*)+x"}), "exponential time"),
    "regex-key": ({"type": "object", "patternProperties": {"(a+)*": {}}}, "exponential time"),
    "regex-number": (properties(x={"pattern": 5}), "must be text"),
}

GOOD = {
    "empty": {"type": "object"},
    "closed": {"type": "object", "properties": {}, "additionalProperties": False},
    "values": properties(
        a={"type": "integer", "minimum": 1, "maximum": 8, "default": 4, "description": "bits"},
        b={"enum": ["x", None, 3]},
        c={"type": ["string", "null"], "pattern": r"^cuda(:\d+)?$"},
        d={"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
        e={"type": "array", "items": {}, "uniqueItems": True, "maxItems": 16},
        f={"oneOf": [{"const": True}, {"type": "number", "exclusiveMinimum": 0}]},
        g=True,
    ),
    "references": {
        "type": "object",
        "$defs": {"device": {"type": "string"}, "a/b": {"$ref": "#/$defs/device"}},
        "properties": {"x": {"$ref": "#/$defs/a~1b"}, "y": {"$ref": "#/$defs/device"}},
    },
    "own-words": {"type": "object", "x-order": ["a"], "$comment": "for a form"},
    "conditional": {"type": "object", "if": {"required": ["a"]}, "then": {"required": ["b"]}},
}


@pytest.mark.parametrize("name", BAD)
def test_a_schema_is_refused_with_the_reason(name):
    schema, reason = BAD[name]
    start = time.perf_counter()
    faults = schema_faults(schema)
    assert time.perf_counter() - start < 2
    assert any(reason in fault for fault in faults), faults


@pytest.mark.parametrize("name", GOOD)
def test_a_sound_schema_passes_and_jsonschema_agrees(name):
    assert schema_faults(GOOD[name]) == []
    Draft202012Validator.check_schema(GOOD[name])


def test_a_fault_names_its_place():
    schema = properties(bits={"anyOf": [{"type": "integer"}, {"type": "int"}]})
    assert schema_faults(schema)[0].startswith("at /properties/bits/anyOf/1/type: ")


def test_every_fault_is_reported_at_once():
    schema = properties(a={"type": "int"}, b={"minimum": "x"}, c={"pattern": "("})
    assert len(schema_faults(schema)) == 3


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.floats(),
    st.sampled_from(["string", "object", "#/$defs/a", "#", "http://x", "[a-z]+", "(", "a"]),
)
SCHEMAS = st.recursive(
    st.one_of(VALUES, st.lists(VALUES, max_size=2)),
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from(sorted(KEYWORDS)), inner, max_size=4),
        st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2),
        st.lists(inner, max_size=2),
    ),
    max_leaves=12,
)


@settings(max_examples=400, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(KEYWORDS)), SCHEMAS, max_size=4))
def test_whatever_passes_is_well_formed_in_the_eyes_of_jsonschema(schema):
    schema["type"] = "object"
    if not schema_faults(schema):
        Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize(
    "pattern",
    [r"^[a-z]+$", r"^cuda(:\d+)?$", r"(?:ab)*", r"(a+)?", r"[]a+]*", r"\(a+\)*", r"^(cpu|cuda)$"],
)
def test_plain_patterns_pass(pattern):
    assert pattern_fault(pattern) is None


@pytest.mark.parametrize(
    "pattern",
    [
        r"(.*)+x",
        r"((a+))*",
        r"(a|aa)+$",
        r"(?:a+){2,}",
        r"(?P<n>a)(?P=n)",
        r"(\w)\1",
        r".*.*.*x",
        r"(?:(?:a)*)*",
        "a" * 300,
    ],
)
def test_patterns_that_can_run_away_are_refused(pattern):
    assert pattern_fault(pattern) is not None


def test_a_bad_schema_refuses_the_plugin_and_opens_no_socket(monkeypatch):
    import socket

    monkeypatch.setattr(socket, "socket", None)
    remote = properties(x={"$ref": "http://127.0.0.1:9/schema.json"})
    registry = fake_registry(
        fake_plugin(operators=[operator_spec("kt_toy.X", kwargs_schema=remote)])
    )
    record = next(record for record in registry.plugins if record.name == "toy")
    assert record.code == "KT211"
    assert "kwargs_schema at /properties/x/$ref" in record.reason
