"""``replace`` against what is registered: operator, kernels of both phases, devices, options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kt_core.errors import Location, Severity
from kt_core.rules import devices, schema_check
from kt_core.rules.fields import KERNEL_KWARGS, PHASE_KWARGS, PLACEMENT_KWARGS
from kt_core.rules.ktransformers import OPTIONS, RENAMED, Option
from kt_core.rules.model import DEFAULT
from kt_core.rules.problems import Problems
from kt_core.rules.structure import Draft
from kt_core.rules.suggest import did_you_mean
from kt_core.rules.text import bare, listed, printable, show

if TYPE_CHECKING:
    from kt_core.registry.records import Found
    from kt_core.registry.registry import Registry
    from kt_core.registry.specs import KernelSpec, OperatorSpec

_PREFIX = "replace.kwargs"
_shown = schema_check.shown
_NO_KERNEL = ("none", "null", "~", "")


@dataclass
class _Replace:
    """What is known about one rule's operator while its kwargs are checked."""

    draft: Draft
    kwargs: dict[str, Any]
    operator: OperatorSpec | None
    kernels: dict[str, KernelSpec] = field(default_factory=dict)
    unresolved: bool = False
    """A kernel is not registered, so that its options are not known."""
    bad_devices: set[Location] = field(default_factory=set)

    def value(self, name: str) -> Location:
        """Where the value of a kwarg stands."""
        return self.draft.places.get(f"{_PREFIX}.{name}", self.draft.place)

    def key(self, name: str) -> Location:
        """Where its key stands."""
        return self.draft.keys.get(f"{_PREFIX}.{name}", self.draft.place)


def lint_replace(
    draft: Draft, registry: Registry, problems: Problems, *, after_continue: bool
) -> None:
    """Check the ``replace`` of one rule, and take out of ``draft.kwargs`` what has no effect.

    ``after_continue``: an earlier rule lets this one add kwargs, so they may be meant for another
    rule's operator; the plan checks them once it is known for which.
    """
    name = draft.replace_class
    if name is None:
        return
    operator: OperatorSpec | None = None
    if name != DEFAULT:
        found = registry.operator(name)
        if found is None:
            _unknown_operator(draft, name, registry, problems)
            _devices_only(draft, problems)
            return
        operator = found.spec
    if draft.kwargs is None:
        return
    replace = _Replace(draft, draft.kwargs, operator)
    kinds = _device_kinds(replace, problems)
    if operator is None:
        _default(replace, kinds, problems, after_continue)
        return
    _kernels(replace, kinds, registry, problems)
    _options(replace, registry, problems, after_continue)


def _unknown_operator(draft: Draft, name: str, registry: Registry, problems: Problems) -> None:
    place = draft.places.get("replace.class", draft.place)
    if name.strip().casefold() == DEFAULT:
        problems.add(
            "KT131",
            f"{show(name)} is not {DEFAULT}; case and spaces count",
            place,
            help=f"class: {DEFAULT}",
        )
        return
    problems.take(registry.unknown(printable(name), "operator", location=place))


# --- devices --------------------------------------------------------------------------------------


def _devices_only(draft: Draft, problems: Problems) -> None:
    if draft.kwargs is not None:
        _device_kinds(_Replace(draft, draft.kwargs, None), problems)


def _device_kinds(replace: _Replace, problems: Problems) -> dict[str, str]:
    """Check every device name; return the device type of each kwarg that has a good one."""
    kinds: dict[str, str] = {}
    for name in PLACEMENT_KWARGS:
        if name in replace.kwargs:
            kind = _device(replace, name, name, problems)
            if kind is not None:
                kinds[name] = kind
    transfer = replace.kwargs.get("transfer_map")
    if isinstance(transfer, dict):
        for layer in transfer:
            _device(replace, f"transfer_map.{layer}", f"transfer_map, layer {layer}", problems)
    return kinds


def _device(replace: _Replace, key: str, name: str, problems: Problems) -> str | None:
    value = replace.kwargs[key] if key in replace.kwargs else _layer_device(replace.kwargs, key)
    where = replace.value(key)
    kind = devices.kind_of(value) if isinstance(value, str) else None
    if kind is not None:
        return kind
    meant = devices.meant_by(value) if isinstance(value, str) else None
    if isinstance(value, int) and not isinstance(value, bool):
        meant = f"cuda:{value}"
    facts = ["devices: cpu, cuda, cuda:0, cuda:1, …, xpu, npu"]
    if value == "meta":
        meant = "cpu"
        facts = ["meta is where models are built without memory; nothing can run there"]
    replace.bad_devices.add(where)
    problems.add(
        "KT135",
        f"{name}: {_shown(value)} is not a device",
        where,
        facts=facts,
        help=_device_help(name, meant),
    )
    return None


def _device_help(name: str, meant: str | None) -> str:
    if meant is None:
        return "name a device, or leave the key out for the default one"
    return f"write {meant}" if " " in name else f"{name}: {show(meant)}"


def _layer_device(kwargs: Mapping[str, Any], key: str) -> Any:
    return kwargs["transfer_map"][int(key.partition(".")[2])]


# --- default --------------------------------------------------------------------------------------


def _default(
    replace: _Replace, kinds: Mapping[str, str], problems: Problems, after_continue: bool
) -> None:
    """``default`` keeps the module, so it takes only the devices."""
    for name in list(replace.kwargs):
        if name in PLACEMENT_KWARGS or after_continue:
            continue
        option = OPTIONS.get(name)
        if option is not None and _known_option(replace, name, option, problems):
            continue
        near = did_you_mean(name, PLACEMENT_KWARGS)
        problems.add(
            "KT134",
            f"{show(name)} means nothing to default, which keeps the module and only places it",
            replace.key(name),
            facts=[f"it takes: {listed(PLACEMENT_KWARGS)}"],
            help=f"{near}: {bare(str(replace.kwargs[name]))}"
            if near
            else f"delete {bare(name)}, or name an operator as class",
        )
    generate, prefill = (replace.kwargs.get(f"{phase}_device") for phase in ("generate", "prefill"))
    both = {"generate_device", "prefill_device"} <= kinds.keys()
    if both and generate != prefill and not after_continue:
        problems.add(
            "KT134",
            f"default has one place for both phases, {show(generate)}; prefill_device is not used",
            replace.value("prefill_device"),
            help=f"prefill_device: {show(generate)}",
            severity=Severity.WARNING,
        )


# --- kernels --------------------------------------------------------------------------------------


def _kernels(
    replace: _Replace, kinds: Mapping[str, str], registry: Registry, problems: Problems
) -> None:
    assert_kind = replace.operator.kernel_kind if replace.operator is not None else None
    for name, device_name in KERNEL_KWARGS.items():
        if name not in replace.kwargs:
            continue
        value = replace.kwargs[name]
        if replace.operator is not None and assert_kind is None:
            if name not in replace.operator.kwargs_schema.get("properties", {}):
                problems.add(
                    "KT138",
                    f"{replace.operator.name} runs no kernels, so {name} means nothing to it",
                    replace.key(name),
                    help=f"delete {name}",
                )
            continue
        if value is None or (isinstance(value, str) and value.strip().casefold() in _NO_KERNEL):
            _no_kernel(replace, name, registry, problems)
            continue
        if not isinstance(value, str):
            problems.add(
                "KT132",
                f"{name} must be the name of a kernel, not {_shown(value)}",
                replace.value(name),
                help=_example(name, assert_kind, registry),
            )
            continue
        found = registry.kernel(value, assert_kind)
        if found is None:
            replace.unresolved = True
            _unknown_kernel(replace, name, value, registry, problems)
            continue
        replace.kernels[name] = found.spec
        _kernel_device(replace, name, device_name, found.spec, kinds, problems)


def _no_kernel(replace: _Replace, name: str, registry: Registry, problems: Problems) -> None:
    other = next(kernel for kernel in KERNEL_KWARGS if kernel != name)
    named = replace.kwargs.get(other)
    phase = "prefill" if name == "prefill_op" else "decode"
    known = isinstance(named, str) and named.strip().casefold() not in _NO_KERNEL
    kind = replace.operator.kernel_kind if replace.operator is not None else None
    problems.add(
        "KT139",
        f"{name}: {_shown(replace.kwargs[name])} names no kernel, but {phase} needs one",
        replace.value(name),
        facts=["KTransformers then ran the other phase's kernel"] if known else [],
        help=f"{name}: {named}" if known else _example(name, kind, registry),
    )


def _example(name: str, kind: str | None, registry: Registry) -> str | None:
    kernels = registry.kernels(kind)
    return f"{name}: {kernels[0].spec.name}" if kernels else None


def _unknown_kernel(
    replace: _Replace, name: str, value: str, registry: Registry, problems: Problems
) -> None:
    kind = replace.operator.kernel_kind if replace.operator is not None else None
    where = replace.value(name)
    other = registry.kernel(value)
    if other is not None and kind is not None:
        fitting = [found.spec.name for found in registry.kernels(kind)]
        problems.add(
            "KT137",
            f"{show(value)} is for {other.spec.kind}; {_name(replace)} needs a kernel for {kind}",
            where,
            facts=[f"kernels for {kind}: {listed(fitting) or 'none registered'}"],
            help=f"{name}: {fitting[0]}" if fitting else None,
        )
        return
    problems.take(registry.unknown(printable(value), "kernel", kind=kind, location=where))


def _name(replace: _Replace) -> str:
    return replace.operator.name if replace.operator is not None else DEFAULT


def _kernel_device(
    replace: _Replace,
    name: str,
    device_name: str,
    kernel: KernelSpec,
    kinds: Mapping[str, str],
    problems: Problems,
) -> None:
    """A kernel must run on the device its phase is on. Without a device the plan chooses one."""
    if device_name not in replace.kwargs and device_name == "prefill_device":
        device_name = "generate_device"
    kind = kinds.get(device_name)
    if kind is None or kind in kernel.devices:
        return
    problems.add(
        "KT136",
        f"the kernel {show(kernel.name)} does not run on {replace.kwargs[device_name]}",
        replace.value(device_name if device_name in replace.kwargs else name),
        facts=[f"it runs on: {listed(kernel.devices)}", f"named by {name}: {replace.kwargs[name]}"],
        help=f"{device_name}: {show(kernel.devices[0])}",
    )


# --- options --------------------------------------------------------------------------------------


def _options(
    replace: _Replace, registry: Registry, problems: Problems, after_continue: bool
) -> None:
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
        if option is not None and _known_option(replace, name, option, problems):
            continue
        if not after_continue:
            _unknown_option(replace, name, known, registry, problems)
    _check_values(replace, operator, problems, after_continue)


def _schemas(replace: _Replace, registry: Registry) -> Iterator[Mapping[str, Any]]:
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


def _known_option(replace: _Replace, name: str, option: Option, problems: Problems) -> bool:
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


def _one_device(replace: _Replace, problems: Problems) -> None:
    """KTransformers' model wrappers have one ``device`` for both phases."""
    where, key = replace.value("device"), replace.key("device")
    value = replace.kwargs.pop("device")
    for name in ("generate_device", "prefill_device"):
        if name not in replace.kwargs:
            replace.kwargs[name] = value
            replace.draft.places[f"{_PREFIX}.{name}"] = where
            replace.draft.keys[f"{_PREFIX}.{name}"] = key
    if _device(replace, "generate_device", "generate_device", problems) is not None:
        problems.add(
            "KT142",
            f"device: {_shown(value)} is read as generate_device and prefill_device",
            key,
            help=f"generate_device: {bare(str(value))}, and prefill_device: {bare(str(value))}",
            severity=Severity.NOTE,
        )


def _unknown_option(
    replace: _Replace, name: str, known: set[str], registry: Registry, problems: Problems
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
        f"{_name(replace)} has no option {show(name)}",
        replace.key(name),
        facts=facts,
        help=f"{near}:{written}" if near else f"delete {bare(name)}",
    )


def _owner(name: str, replace: _Replace, registry: Registry) -> str | None:
    found: list[Found[Any]] = [*registry.kernels()]
    for entry in found:
        if name in entry.spec.options_schema.get("properties", {}):
            return str(entry.spec.name)
    return None


def _check_values(
    replace: _Replace, operator: OperatorSpec, problems: Problems, after_continue: bool
) -> None:
    _check_schema(replace, operator.name, operator.kwargs_schema, problems, after_continue)
    done: set[str] = set()
    for kernel in replace.kernels.values():
        if kernel.name not in done:
            done.add(kernel.name)
            _check_schema(replace, kernel.name, kernel.options_schema, problems, after_continue)


def _check_schema(
    replace: _Replace,
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
                _PREFIX, replace.draft.places.get("replace", replace.draft.place)
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
