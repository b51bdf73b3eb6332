"""Options of an operator and its kernels against their schemas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from kt_core.errors import Severity
from kt_core.rules import schema_check
from kt_core.rules.fields import KERNEL_KWARGS, PHASE_KWARGS, PLACEMENT_KWARGS
from kt_core.rules.ktransformers import OPTIONS, RENAMED, Option
from kt_core.rules.lint_devices import check_device
from kt_core.rules.problems import Problems
from kt_core.rules.replacement import KWARGS, Replacement
from kt_core.rules.suggest import did_you_mean
from kt_core.rules.text import bare, listed, show

if TYPE_CHECKING:
    from kt_core.registry.records import Found
    from kt_core.registry.registry import Registry
    from kt_core.registry.specs import OperatorSpec

_shown = schema_check.shown


def check_options(
    replace: Replacement, registry: Registry, problems: Problems, after_continue: bool
) -> None:
    """Check that every option is declared by the operator or its kernels, and its value."""
    operator = replace.operator
    if operator is None:
        return
    schemas = list(_schemas(replace, registry))
    known = {name for schema in schemas for name in schema.get("properties", {})}
    known |= {*PLACEMENT_KWARGS, *(KERNEL_KWARGS if operator.kernel_kind is not None else ())}
    open_to_all = any(
        "additionalProperties" in s and s["additionalProperties"] is not False for s in schemas
    )
    for name in list(replace.kwargs):
        if name in known or name in PHASE_KWARGS or open_to_all:
            continue
        option = OPTIONS.get(name)
        if option is not None and known_option(replace, name, option, problems):
            continue
        if not after_continue:
            _unknown_option(replace, name, known, registry, problems)
    _check_values(replace, operator, problems, after_continue)


def _schemas(replace: Replacement, registry: Registry) -> Iterator[Mapping[str, Any]]:
    """The schemas of the operator and its kernels: the named ones, or all it could run."""
    operator = replace.operator
    if operator is None:
        return
    yield operator.kwargs_schema
    if operator.kernel_kind is None:
        return
    if replace.kernels and not replace.unresolved:
        yield from (kernel.options_schema for kernel in replace.kernels.values())
        return
    yield from (found.spec.options_schema for found in registry.kernels(operator.kernel_kind))


def known_option(replace: Replacement, name: str, option: Option, problems: Problems) -> bool:
    """Handle a kwarg that only KTransformers has: taken out if harmless, else explained."""
    value = replace.kwargs[name]
    if option.of_kernel and replace.unresolved:
        return True
    if name == "device" and replace.operator is not None and replace.operator.kernel_kind is None:
        _one_device(replace, problems)
        return True
    harmless = option.always or any(value == h and type(value) is type(h) for h in option.harmless)
    if harmless:
        problems.add(
            "KT142",
            f"{name}: {_shown(value)} has no effect",
            replace.key(name),
            facts=[option.why],
            help=f"delete {name}",
            severity=Severity.NOTE,
        )
        del replace.kwargs[name]
        return True
    problems.add(
        "KT141",
        f"{show(name)} is an option of KTransformers that kt does not have",
        replace.key(name),
        facts=[option.why],
        help=option.help.replace("{value}", bare(RENAMED.get(str(value), str(value)))),
    )
    return True


def _one_device(replace: Replacement, problems: Problems) -> None:
    """KTransformers' model wrappers have one ``device`` for both phases."""
    where, key = replace.value("device"), replace.key("device")
    value = replace.kwargs.pop("device")
    for name in ("generate_device", "prefill_device"):
        if name not in replace.kwargs:
            replace.kwargs[name] = value
            replace.draft.places[f"{KWARGS}.{name}"] = where
            replace.draft.keys[f"{KWARGS}.{name}"] = key
    if check_device(replace, "generate_device", "generate_device", problems) is not None:
        problems.add(
            "KT142",
            f"device: {_shown(value)} is read as generate_device and prefill_device",
            key,
            help=f"generate_device: {bare(str(value))}, and prefill_device: {bare(str(value))}",
            severity=Severity.NOTE,
        )


def _unknown_option(
    replace: Replacement, name: str, known: set[str], registry: Registry, problems: Problems
) -> None:
    near = did_you_mean(name, sorted(known))
    if replace.unresolved and near is None:
        # It may well be an option of the kernel that is not installed.
        return
    owner = _owner(name, replace, registry)
    facts = [f"it takes: {listed(sorted(known))}"]
    if owner is not None:
        facts.append(f"{name} is an option of {owner}")
    value = replace.kwargs[name]
    written = "" if isinstance(value, list | dict) else f" {bare(str(value))}"
    problems.add(
        "KT133",
        f"{replace.name} has no option {show(name)}",
        replace.key(name),
        facts=facts,
        help=f"{near}:{written}" if near else f"delete {bare(name)}",
    )


def _owner(name: str, replace: Replacement, registry: Registry) -> str | None:
    found: list[Found[Any]] = [*registry.kernels()]
    for entry in found:
        if name in entry.spec.options_schema.get("properties", {}):
            return str(entry.spec.name)
    return None


def _check_values(
    replace: Replacement, operator: OperatorSpec, problems: Problems, after_continue: bool
) -> None:
    _check_schema(replace, operator.name, operator.kwargs_schema, problems, after_continue)
    done: set[str] = set()
    for kernel in replace.kernels.values():
        if kernel.name not in done:
            done.add(kernel.name)
            _check_schema(replace, kernel.name, kernel.options_schema, problems, after_continue)


def _check_schema(
    replace: Replacement,
    owner: str,
    schema: Mapping[str, Any],
    problems: Problems,
    after_continue: bool,
) -> None:
    """Check the kwargs that ``schema`` declares; the others belong to someone else."""
    properties = schema.get("properties", {})
    mine = {
        name: _json(value)
        for name, value in replace.kwargs.items()
        if name in properties and name not in PHASE_KWARGS
    }
    given = {*replace.kwargs, *replace.draft.unreadable}
    required = [name for name in schema.get("required", ()) if name not in given]
    for name in required if not (replace.draft.continue_ or after_continue) else ():
        description = properties.get(name, {}).get("description")
        problems.add(
            "KT140",
            f"{owner} needs the option {show(name)}",
            replace.draft.places.get(
                KWARGS, replace.draft.places.get("replace", replace.draft.place)
            ),
            facts=[f"{name}: {description}"] if description else [],
            help=f"{name}: …",
        )
    if not mine:
        return
    reduced = {key: value for key, value in schema.items() if key != "required"}
    reduced["properties"] = {k: v for k, v in properties.items() if k not in PHASE_KWARGS}
    for violation in schema_check.check(mine, reduced):
        path = ".".join(map(str, violation.path))
        unknown = violation.message.startswith(schema_check.UNKNOWN)
        place = replace.key(path) if unknown else replace.value(path)
        if place in replace.bad_devices:
            continue
        description = _description(schema, violation.path)
        problems.add(
            "KT132",
            f"{path} {violation.message}" if path else f"kwargs {violation.message}",
            place,
            facts=[f"{owner}: {description}"] if description else [f"an option of {owner}"],
            help=violation.help,
        )


def _description(schema: Mapping[str, Any], path: schema_check.Path) -> str | None:
    if not path:
        return None
    found = schema.get("properties", {}).get(path[0], {})
    text = found.get("description") if isinstance(found, Mapping) else None
    return str(text) if text else None


def _json(value: Any) -> Any:
    """Layer numbers as keys become text, as in JSON."""
    if isinstance(value, dict):
        return {str(key): _json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_json(item) for item in value]
    return value
