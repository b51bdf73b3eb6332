"""The schema of rule files, narrowed to what is installed: names of operators and kernels, and kwargs.

An editor completes from it and underlines what ``kt-validate`` would refuse. It judges every rule for
itself, so it cannot know what an earlier rule with ``continue: true`` began. It is plain draft
2020-12; ``enumDescriptions``, ``deprecated``, ``doNotSuggest`` and ``patternErrorMessage`` are hints for
editors.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kt_core.rules.fields import KERNEL_KWARGS, PHASE_KWARGS, PLACEMENT_KWARGS
from kt_core.rules.ktransformers import OPTIONS
from kt_core.rules.model import DEFAULT
from kt_core.rules.schema import schema_text

if TYPE_CHECKING:
    from kt_core.registry.records import Found
    from kt_core.registry.registry import Registry
    from kt_core.registry.specs import KernelSpec, OperatorSpec

Schema = dict[str, Any]

ID = "urn:kt:schema:rules:v1:installed"
_CONDITIONS = ("allOf", "anyOf", "dependentSchemas", "else", "if", "not", "oneOf", "then")
"""Keywords of a plugin's schema that join options with each other; kept beside its properties."""
_HIDDEN = {"doNotSuggest": True}
_SUBSCHEMA_MAPS = frozenset({"$defs", "dependentSchemas", "patternProperties", "properties"})
_VALUES = frozenset({"const", "default", "enum", "examples"})


def plugin_schema(registry: Registry) -> Schema:
    """Return the schema for everything that ``registry`` holds."""
    return _Builder(registry).build()


class _Builder:
    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.schema: Schema = json.loads(schema_text())
        self.defs: dict[str, Any] = self.schema["$defs"]
        self.placement = {
            name: self.defs["kwargs"]["properties"][name] for name in PLACEMENT_KWARGS
        }

    def build(self) -> Schema:
        plugins = ", ".join(record.label for record in self.registry.plugins if not record.code)
        self.schema |= {"$id": ID, "$comment": f"Knows: {plugins}"}
        operators = self.registry.operators()
        for name, option in self.defs["kwargs"]["properties"].items():
            if name not in PHASE_KWARGS:
                option |= _HIDDEN  # the operator that takes it offers it
        replace = self.defs["replace"]
        names = [(DEFAULT, "Keeps the module and only places it."), *self._described(operators)]
        replace["properties"]["class"] |= _enum(names)
        conditions = [_when("class", [DEFAULT], {"kwargs": self._add(DEFAULT, self._default())})]
        for found in operators:
            spec = found.spec
            kwargs = self._add(f"operator.{spec.name}", self._operator(spec))
            conditions.append(_when("class", self.registry.names(spec), {"kwargs": kwargs}))
            self._require(spec)
        replace["allOf"] = conditions
        for found_kernel in self.registry.kernels():
            kernel = found_kernel.spec
            self._add(f"kernel.{kernel.name}", self._kernel(kernel))
        return self.schema

    def _add(self, name: str, schema: Schema) -> Schema:
        self.defs[name] = schema
        return {"$ref": _pointer(name)}

    def _default(self) -> Schema:
        properties = {**self.placement, **_foreign(set(self.placement))}
        return {"properties": properties, "additionalProperties": False}

    def _operator(self, spec: OperatorSpec) -> Schema:
        """The kwargs of one operator: its own, those of its kernels, and nothing else."""
        kernels = self.registry.kernels(spec.kernel_kind) if spec.kernel_kind is not None else ()
        own = _moved(spec.kwargs_schema, f"operator.{spec.name}")
        properties = {**self.placement, **own.get("properties", {})}
        conditions = [{key: own[key]} for key in _CONDITIONS if key in own and key not in _BRANCH]
        conditions += [_branch(own)] if "if" in own else []
        if spec.kernel_kind is not None:
            names = self._described(kernels)
            for phase in KERNEL_KWARGS:
                said = self.defs["kwargs"]["properties"][phase]
                properties[phase] = {**said, **_enum(names)} if names else said
            for kernel in kernels:
                conditions += self._when_kernel(kernel.spec)
            owners = _owners(kernels, properties)
            for option, specs in owners.items():
                # Offered where a kernel is named that has it, by that kernel's own schema.
                properties[option] = {"description": _said(option, specs), **_HIDDEN}
            conditions += self._only_with(owners, len(kernels))
        properties |= _foreign(set(properties), one_device=spec.kernel_kind is None)
        schema: Schema = {
            "title": spec.name,
            "description": spec.summary,
            "properties": properties,
            **({"$defs": own["$defs"]} if "$defs" in own else {}),
            **({"allOf": conditions} if conditions else {}),
        }
        schemas = [spec.kwargs_schema, *(found.spec.options_schema for found in kernels)]
        if not any(s.get("additionalProperties", False) is not False for s in schemas):
            schema["additionalProperties"] = False
        return schema

    def _kernel(self, spec: KernelSpec) -> Schema:
        own = _moved(spec.options_schema, f"kernel.{spec.name}")
        kept = {k: v for k, v in own.items() if k in ("properties", "$defs", *_CONDITIONS)}
        return {"title": spec.name, "description": spec.summary, **kept}

    def _when_kernel(self, spec: KernelSpec) -> list[Schema]:
        """What holds where a phase names this kernel: its options, and the devices it runs on."""
        names = self.registry.names(spec)
        named = {"anyOf": [_is(phase, names) for phase in KERNEL_KWARGS]}
        conditions: list[Schema] = [
            {"if": named, "then": {"$ref": _pointer(f"kernel.{spec.name}")}}
        ]
        device = {
            "pattern": f"^({'|'.join(spec.devices)})(:|$)",
            "patternErrorMessage": f"{spec.name} runs on {', '.join(spec.devices)}",
        }
        for phase, where in KERNEL_KWARGS.items():
            other = next(name for name in KERNEL_KWARGS if name != phase)
            conditions.append(_when(phase, names, {where: device}))
            # A phase without a kernel or a device of its own has the other one's.
            alone = _when(phase, names, {KERNEL_KWARGS[other]: device})
            alone["if"]["not"] = {"required": [other, where]}
            conditions.append(alone)
        return conditions

    def _described(self, found: Sequence[Found[Any]]) -> list[tuple[str, str]]:
        """Names first, each with what it is, then all aliases."""
        names = [(f.spec.name, f"{f.spec.summary} ({f.plugin.distribution})") for f in found]
        aliases = [
            (alias, f"Alias of {f.spec.name}: {f.spec.summary}")
            for f in found
            for alias in self.registry.names(f.spec)[1:]
        ]
        return names + aliases

    def _only_with(self, owners: Mapping[str, Sequence[KernelSpec]], kernels: int) -> list[Schema]:
        """Refuse an option where kernels are named, and none of them has it."""
        together: dict[tuple[str, ...], list[str]] = {}
        for option, specs in owners.items():
            if len(specs) < kernels:
                names = tuple(name for spec in specs for name in self.registry.names(spec))
                together.setdefault(names, []).append(option)
        return [
            {
                "if": {
                    "anyOf": [{"required": [phase]} for phase in KERNEL_KWARGS],
                    "not": {"anyOf": [_is(phase, names) for phase in KERNEL_KWARGS]},
                },
                "then": {"properties": dict.fromkeys(options, False)},
            }
            for names, options in together.items()
        ]

    def _require(self, spec: OperatorSpec) -> None:
        """Options that must be given; a rule that continues may leave them to a later one."""
        required = list(spec.kwargs_schema.get("required", ()))
        if required:
            needs = {"required": ["kwargs"], "properties": {"kwargs": {"required": required}}}
            self.defs["rule"].setdefault("allOf", []).append(
                {
                    "if": {
                        "properties": {
                            "replace": _is("class", self.registry.names(spec)),
                            "continue": {"const": False},
                        },
                        "required": ["replace"],
                    },
                    "then": {"properties": {"replace": needs}},
                }
            )


_BRANCH = ("if", "then", "else")


def _branch(schema: Schema) -> Schema:
    return {key: schema[key] for key in _BRANCH if key in schema}


def _enum(names: Sequence[tuple[str, str]]) -> Schema:
    return {
        "enum": [name for name, _ in names],
        "enumDescriptions": [description for _, description in names],
    }


def _is(key: str, names: Sequence[str]) -> Schema:
    return {"properties": {key: {"enum": list(names)}}, "required": [key]}


def _when(key: str, names: Sequence[str], properties: Mapping[str, Schema]) -> Schema:
    return {"if": _is(key, names), "then": {"properties": dict(properties)}}


def _owners(
    kernels: Sequence[Found[KernelSpec]], taken: Mapping[str, Any]
) -> dict[str, list[KernelSpec]]:
    """Options that only kernels declare, each with the kernels that do."""
    owners: dict[str, list[KernelSpec]] = {}
    for found in kernels:
        for option in found.spec.options_schema.get("properties", {}):
            if option not in taken:
                owners.setdefault(option, []).append(found.spec)
    return owners


def _said(option: str, specs: Sequence[KernelSpec]) -> str:
    text = next(
        (
            str(said)
            for spec in specs
            if (said := spec.options_schema["properties"][option].get("description"))
        ),
        "An option",
    )
    return f"{text.rstrip('.')}. Of {', '.join(spec.name for spec in specs)}."


def _foreign(known: set[str], *, one_device: bool = False) -> dict[str, Schema]:
    """Kwargs of KTransformers that are taken without effect."""
    found: dict[str, Schema] = {}
    for name, option in OPTIONS.items():
        said: Schema = {
            "deprecated": True,
            "description": f"Has no effect: {option.why}.",
        } | _HIDDEN
        if name in known:
            continue
        if name == "device" and one_device:
            device = {"$ref": "#/$defs/device", "description": "Read as the device of both phases."}
            found[name] = {**device, "deprecated": True, **_HIDDEN}
        elif option.always:
            found[name] = said
        elif option.harmless:
            found[name] = {**said, "enum": list(option.harmless)}
    return found


def _pointer(name: str) -> str:
    return "#/$defs/" + name.replace("~", "~0").replace("/", "~1")


def _moved(schema: Mapping[str, Any], name: str) -> Schema:
    """A plugin's schema as a part of ours: references lead to where it now stands.

    ``generate_op`` and ``prefill_op`` and the devices are the rule file's own business.
    """
    moved: Schema = _with_references(copy.deepcopy(dict(schema)), _pointer(name))
    if "properties" in moved:
        moved["properties"] = {
            key: value for key, value in moved["properties"].items() if key not in PHASE_KWARGS
        }
    return moved


def _with_references(node: Any, begin: str) -> Any:
    if isinstance(node, list | tuple):
        return [_with_references(item, begin) for item in node]
    if not isinstance(node, Mapping):
        return node
    moved: Schema = {}
    for key, value in node.items():
        if key in _VALUES or key.startswith("x-"):
            moved[key] = value
        elif key in _SUBSCHEMA_MAPS and isinstance(value, Mapping):
            moved[key] = {name: _with_references(item, begin) for name, item in value.items()}
        elif key == "$ref":
            moved[key] = begin + value[1:]
        else:
            moved[key] = _with_references(value, begin)
    return moved
