"""Values against plugins' schemas: our own fast check agrees with ``jsonschema``, and nothing is fetched."""

from __future__ import annotations

import socket
import time

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kt_core.registry.schemas import schema_faults
from kt_core.rules import schema_check

VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-3, 130),
        st.sampled_from([0.0, 1.0, 0.5, -2.5]),
        st.sampled_from(["", "a", "ab", "abc", "cpu", "1"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=6,
)
TYPES = st.sampled_from(["string", "integer", "number", "boolean", "null", "array", "object"])
KEYWORDS = {
    "type": st.one_of(TYPES, st.lists(TYPES, min_size=1, max_size=3, unique=True)),
    "enum": st.lists(VALUES, min_size=1, max_size=3),
    "const": VALUES,
    "minimum": st.integers(-2, 5),
    "maximum": st.integers(-2, 5),
    "exclusiveMinimum": st.integers(-2, 5),
    "exclusiveMaximum": st.integers(-2, 5),
    "minLength": st.integers(0, 3),
    "maxLength": st.integers(0, 3),
    "minItems": st.integers(0, 3),
    "maxItems": st.integers(0, 3),
    "minProperties": st.integers(0, 3),
    "maxProperties": st.integers(0, 3),
    "pattern": st.sampled_from(["^a", "b$", "^(cpu|cuda)$", "c+"]),
    "required": st.lists(st.sampled_from("abc"), max_size=2, unique=True),
    "description": st.just("text"),
}
LEAVES = st.fixed_dictionaries({}, optional=KEYWORDS)


def nested(inner):
    return st.fixed_dictionaries(
        {},
        optional={
            **KEYWORDS,
            "properties": st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
            "additionalProperties": st.one_of(st.booleans(), inner),
            "items": st.one_of(st.booleans(), inner),
        },
    )


SCHEMAS = st.recursive(LEAVES, nested, max_leaves=5)


@settings(max_examples=600, deadline=None)
@given(SCHEMAS, VALUES)
def test_the_fast_check_agrees_with_jsonschema(schema, value):
    assert schema_check._simple(schema)
    ours = {v.path for v in schema_check.check(value, schema)}
    errors = list(jsonschema.Draft202012Validator(schema).iter_errors(value))
    assert bool(ours) == bool(errors)
    # A value of the wrong type is reported as that alone; elsewhere the places are the same too.
    if not any(error.validator == "type" for error in errors):
        theirs = {tuple(error.absolute_path) for error in errors}
        assert {path for path in ours if path in theirs} | {
            path[:-1] for path in ours if path not in theirs
        } == theirs


OTHER = {
    "type": "object",
    "properties": {
        "any": {"anyOf": [{"type": "integer"}, {"const": "auto"}]},
        "deep": {
            "oneOf": [
                {"type": "object", "properties": {"x": {"type": "integer"}}},
                {"type": "null"},
            ]
        },
        "ref": {"$ref": "#/$defs/size"},
        "unique": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
        "map": {
            "type": "object",
            "patternProperties": {"^l[0-9]$": {}},
            "additionalProperties": False,
        },
        "not": {"not": {"const": 3}},
    },
    "$defs": {"size": {"type": "integer", "multipleOf": 8}},
}


@pytest.mark.parametrize(
    ("value", "path", "message"),
    [
        ({"any": 1.5}, ("any",), 'must be a whole number or must be "auto", not 1.5'),
        ({"deep": {"x": "y"}}, ("deep", "x"), 'must be a whole number, not "y"'),
        ({"ref": "x"}, ("ref",), 'must be a whole number, not "x"'),
        ({"ref": 12}, ("ref",), "does not fit its schema: 12 is not a multiple of 8"),
        (
            {"unique": [1, 1]},
            ("unique",),
            "does not fit its schema: [1, 1] has non-unique elements",
        ),
        ({"map": {"l1": 0, "x": 0}}, ("map", "x"), "is not known here (known: nothing)"),
    ],
)
def test_other_keywords_are_named_in_our_words_where_we_have_them(value, path, message):
    assert schema_faults(OTHER) == []
    assert [(v.path, v.message) for v in schema_check.check(value, OTHER)] == [(path, message)]


def test_good_values_of_other_keywords():
    good = {"any": "auto", "deep": None, "ref": 16, "unique": [1, 2], "map": {"l1": 0}, "not": 4}
    assert schema_check.check(good, OTHER) == []


def test_r18_a_remote_reference_is_refused_at_registration_and_never_fetched(monkeypatch):
    schema = {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/x.json"}}}
    assert schema_faults(schema)

    def connect(*args, **kwargs):
        raise AssertionError("tried to connect")

    monkeypatch.setattr(socket, "socket", connect)
    monkeypatch.setattr(socket, "create_connection", connect)
    with pytest.raises(Exception, match=r"Unresolvable|unresolvable|http://127"):
        schema_check.check({"a": 1}, schema)


def exploding(depth):
    schema = {"type": "string"}
    for _ in range(depth):
        schema = {"anyOf": [{"properties": {"a": schema}}, {"properties": {"a": schema}}, schema]}
    return {"type": "object", "properties": {"x": schema}}


@pytest.mark.parametrize(
    "schema",
    [
        exploding(14),
        {
            "type": "object",
            "properties": {"x": {"type": "array", "items": {}, "uniqueItems": True}},
        },
        {"type": "object", "properties": {"x": {"type": "string", "pattern": "^(a+)+$"}}},
        {"type": "object", "properties": {"x": {"$ref": "#/properties/x"}}},
    ],
    ids=["alternatives", "unique-items", "pattern", "circle"],
)
def test_r19_exploding_schemas_do_not_get_as_far(schema):
    start = time.process_time()
    assert schema_faults(schema)
    assert time.process_time() - start < 1


def test_the_largest_schema_and_value_that_do_get_so_far_take_little(registry):
    """What the caps of schemas and of kwargs leave possible, together."""
    deep = {"type": "integer"}
    for _ in range(6):
        deep = {
            "anyOf": [
                {"type": "array", "items": deep},
                {"type": "object", "additionalProperties": deep},
            ]
        }
    schema = {"type": "object", "properties": {"x": deep}}
    assert schema_faults(schema) == []
    value = 1.5
    for _ in range(5):
        value = [value] * 3
    start = time.process_time()
    assert schema_check.check({"x": value}, schema)
    assert time.process_time() - start < 5
