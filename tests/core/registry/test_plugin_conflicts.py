"""Names that two plugins claim: both are refused, whatever the order they are found in."""

from __future__ import annotations

import itertools
import json

import pytest

from kt_core.errors import PluginError
from kt_core.registry.candidates import find_candidates
from kt_core.registry.installed import Installed
from kt_core.registry.records import State
from kt_core.registry.registry import Registry
from kt_core.testing.registry import (
    fake_plugin,
    fake_registry,
    kernel_spec,
    operator_spec,
    write_distribution,
)

SHOW = """
import json, sys
from kt_core.registry.registry import Registry
from kt_core.cli.plugins import as_json
json.dump([as_json(r) for r in Registry.discover().plugins], sys.stdout)
"""

SOURCE = """
from kt_core import KernelSpec, hookimpl
KT_PLUGIN_API = 1
@hookimpl
def kt_register_kernels():
    return [KernelSpec("{package}.linear", "{package}.ops:L", "linear", ("cpu",), ("*",), "s",
                       aliases=({alias!r},))]
"""


def write(folder, distribution, package, *, name=None, version="1.0", alias="Alias"):
    return write_distribution(
        folder,
        distribution,
        version,
        plugins={name or package.removeprefix("kt_"): f"{package}.plugin"},
        files={f"{package}/plugin.py": SOURCE.format(package=package, alias=alias)},
    )


def states(registry):
    return {record.name: record.state for record in registry.plugins}


def discovered(child, *path, **environ):
    done = child("-c", SHOW, path=path, **environ)
    assert done.returncode == 0, done.stderr
    return {(r["distribution"], r["name"]): r for r in json.loads(done.stdout)}


def test_two_plugins_that_claim_one_alias_are_both_refused_and_named():
    fast = fake_plugin("fast", kernels=[kernel_spec("kt_fast.linear", aliases=("Same",))])
    quick = fake_plugin("quick", kernels=[kernel_spec("kt_quick.linear", aliases=("Same",))])
    third = fake_plugin("third", kernels=[kernel_spec("kt_third.linear")])
    for order in itertools.permutations([fast, quick, third]):
        registry = fake_registry(*order)
        assert states(registry) == {
            "kt_core": State.READY,
            "fast": State.DUPLICATE,
            "quick": State.DUPLICATE,
            "third": State.READY,
        }
        problem = registry.unknown("Same", "kernel")
        assert problem.code == "KT213"
        assert "kt-fast 1.0" in problem.message
        assert "kt-quick 1.0" in problem.message
        assert registry.kernel("kt_fast.linear") is None


def test_nobody_can_push_out_another_by_claiming_its_name():
    toy = fake_plugin("toy", kernels=[kernel_spec("kt_toy.linear")])
    thief = fake_plugin("thief", kernels=[kernel_spec("kt_thief.x", aliases=("kt_toy.linear",))])
    for order in ((toy, thief), (thief, toy)):
        registry = fake_registry(*order, core=False)
        assert states(registry) == {"toy": State.READY, "thief": State.DUPLICATE}
        refused = next(record for record in registry.plugins if record.name == "thief")
        assert refused.reason == 'the kernel name "kt_toy.linear" belongs to kt-toy 1.0'


def test_every_conflict_is_told_at_once():
    names = ("Same", "Other")
    one = fake_plugin("one", kernels=[kernel_spec("kt_one.x", aliases=names)])
    two = fake_plugin("two", kernels=[kernel_spec("kt_two.x", aliases=names)])
    record = fake_registry(one, two, core=False).plugins[0]
    assert [record.reason, *record.facts] == [
        f'the kernel name "{name}" is registered by kt-one 1.0 and by kt-two 1.0'
        for name in sorted(names)
    ]


def test_an_operator_and_a_kernel_may_share_a_name():
    toy = fake_plugin(
        operators=[operator_spec("kt_toy.Linear", aliases=("Toy",))],
        kernels=[kernel_spec("kt_toy.linear", aliases=("Toy",))],
    )
    registry = fake_registry(toy)
    assert registry.operator("Toy").spec.name == "kt_toy.Linear"
    assert registry.kernel("Toy").spec.name == "kt_toy.linear"


def test_the_core_keeps_its_names():
    thief = fake_plugin("thief", kernels=[kernel_spec("kt_thief.x", aliases=("KLinearTorch",))])
    registry = fake_registry(thief)
    assert states(registry) == {"kt_core": State.READY, "thief": State.DUPLICATE}
    assert registry.kernel("KLinearTorch").plugin.name == "kt_core"


@pytest.mark.parametrize("turned", [False, True])
def test_two_distributions_with_one_plugin_name(tmp_path, child, turned):
    first, second = tmp_path / "a", tmp_path / "b"
    write(first, "kt-one", "kt_one", name="same", alias="A")
    write(second, "kt-two", "kt_two", name="same", alias="B")
    path = [second, first] if turned else [first, second]
    found = discovered(child, *path)
    for distribution in ("kt-one", "kt-two"):
        record = found[distribution, "same"]
        assert (record["state"], record["code"]) == ("duplicate", "KT213")
        assert "kt-one 1.0 and kt-two 1.0" in record["reason"]
    chosen = discovered(child, *path, KT_PLUGINS="kt-two")
    assert chosen["kt-two", "same"]["state"] == "ready"
    assert chosen["kt-one", "same"]["state"] == "disabled"


def test_the_order_on_the_path_changes_nothing(tmp_path, child):
    folders = []
    for number, (distribution, alias) in enumerate(
        [("kt-b", "Shared"), ("kt-a", "Shared"), ("kt-c", "Own")]
    ):
        folder = tmp_path / str(number)
        write(folder, distribution, distribution.replace("-", "_"), alias=alias)
        folders.append(folder)
    results = [
        [
            # Times differ from run to run, and a note about a slow one with them.
            {key: value for key, value in record.items() if key not in ("load_seconds", "notes")}
            for record in discovered(child, *order).values()
        ]
        for order in (folders, folders[::-1])
    ]
    assert results[0] == results[1]


def test_one_distribution_in_two_versions_is_refused(tmp_path, child):
    first, second = tmp_path / "a", tmp_path / "b"
    write(first, "kt-toy", "kt_toy", version="1.0")
    write(second, "kt_toy", "kt_toy", version="2.0")  # names are compared as PEP 503 says
    record = next(r for r in discovered(child, first, second).values() if r["name"] == "toy")
    assert (record["state"], record["code"]) == ("duplicate", "KT213")
    assert "1.0 and 2.0" in record["reason"]
    assert any(str(first) in fact for fact in record["facts"])
    assert any(str(second) in fact for fact in record["facts"])


def test_equal_copies_of_a_distribution_are_used_once_with_a_note(tmp_path, child):
    first, second = tmp_path / "a", tmp_path / "b"
    write(first, "kt-toy", "kt_toy")
    write(second, "kt-toy", "kt_toy")
    record = discovered(child, first, second)["kt-toy", "toy"]
    assert record["state"] == "ready"
    assert "installed 2 times" in record["notes"][0]


def test_the_egg_info_beside_an_editable_install_is_no_copy(tmp_path, child):
    first, second = tmp_path / "a", tmp_path / "b"
    write(first, "kt-toy", "kt_toy")
    metadata = write(second, "kt-toy", "kt_toy")
    (metadata / "METADATA").rename(metadata / "PKG-INFO")
    metadata.rename(second / "kt_toy.egg-info")
    record = discovered(child, first, second)["kt-toy", "toy"]
    assert (record["state"], record["notes"]) == ("ready", [])
    alone = discovered(child, second)["kt-toy", "toy"]
    assert (alone["state"], alone["version"]) == ("ready", "1.0")


def test_an_upgrade_that_was_cut_short_is_two_versions(tmp_path, child):
    write(tmp_path, "kt-toy", "kt_toy", version="1.0")
    write(tmp_path, "kt-toy", "kt_toy", version="2.0")
    record = discovered(child, tmp_path)["kt-toy", "toy"]
    assert (record["state"], record["code"]) == ("duplicate", "KT213")


def test_a_plugin_in_a_zip_file_is_found(tmp_path, child):
    import shutil

    write(tmp_path / "site", "kt-toy", "kt_toy")
    archive = shutil.make_archive(str(tmp_path / "plugins"), "zip", tmp_path / "site")
    assert discovered(child, archive)["kt-toy", "toy"]["state"] == "ready"


def test_one_folder_twice_on_the_path_is_no_copy(tmp_path, child):
    write(tmp_path, "kt-toy", "kt_toy")
    record = discovered(child, tmp_path, f"{tmp_path}/")["kt-toy", "toy"]
    assert (record["state"], record["notes"]) == ("ready", [])


@pytest.mark.parametrize(
    ("distribution", "points", "owner"),
    [
        ("kt-evil", {"evil": "kt_core.operators.plugin"}, "kt-core"),
        ("kt-evil", {"evil": "kt_ops_cpu.plugin"}, "kt-ops-cpu"),
        ("kt-evil", {"kt_ops_cuda": "kt_evil.plugin"}, "kt-ops-cuda"),
        ("kt-evil", {"kt_core": "kt_evil.plugin"}, "kt-core"),
    ],
)
def test_nobody_poses_as_one_of_our_distributions(distribution, points, owner):
    candidates, refused = find_candidates([Installed(distribution, "1.0", "/x", points)])
    assert candidates == []
    assert [(r.state, r.code) for r in refused] == [(State.DUPLICATE, "KT213")]
    assert f"belongs to {owner}, not to {distribution}" in refused[0].reason


def test_our_own_distributions_may_use_their_own_names():
    own = Installed("kt-ops-cpu", "0.1.0", "/x", {"kt_ops_cpu": "kt_ops_cpu.plugin"})
    candidates, refused = find_candidates([own])
    assert [candidate.package for candidate in candidates] == ["kt_ops_cpu"]
    assert refused == []


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (None, {"toy": "ready", "zoo": "ready"}),
        ("", {"toy": "disabled", "zoo": "disabled"}),
        ("toy", {"toy": "ready", "zoo": "disabled"}),
        (" kt-zoo , ", {"toy": "disabled", "zoo": "ready"}),
        ("kt_core,TOY,zoo", {"toy": "ready", "zoo": "ready"}),
    ],
)
def test_kt_plugins_chooses_who_may_load(tmp_path, child, setting, expected):
    write(tmp_path, "kt-toy", "kt_toy", alias="A")
    write(tmp_path, "kt-zoo", "kt_zoo", alias="B")
    environ = {} if setting is None else {"KT_PLUGINS": setting}
    found = discovered(child, tmp_path, **environ)
    assert {n: r["state"] for (_, n), r in found.items() if n in expected} == expected
    assert found["kt-core", "kt_core"]["state"] == "ready"


def test_a_disabled_plugin_is_not_imported_and_named_when_a_rule_needs_it(tmp_path, child):
    write_distribution(
        tmp_path,
        "kt-toy",
        plugins={"toy": "kt_toy.plugin"},
        files={"kt_toy/plugin.py": "import os\nos._exit(77)"},
    )
    code = (
        "from kt_core.registry.registry import Registry\n"
        "print(Registry.discover().unknown('kt_toy.linear', 'kernel').render())"
    )
    done = child("-c", code, path=[tmp_path], KT_PLUGINS="")
    assert done.stdout.startswith('KT217 "kt_toy.linear" is brought by the plugin "toy"')
    assert "help: add toy to KT_PLUGINS" in done.stdout


def test_an_unknown_word_in_kt_plugins_is_an_error(tmp_path, kt):
    write(tmp_path, "kt-toy", "kt_toy")
    done = kt("plugins", path=[tmp_path], KT_PLUGINS="toyy,nothing_like_it")
    assert done.returncode == 3
    assert 'KT218 KT_PLUGINS names what is not installed: "nothing_like_it", "toyy"' in done.stderr
    assert "installed: " in done.stderr


def test_discover_reads_kt_plugins_from_the_environment_given():
    with pytest.raises(PluginError) as caught:
        Registry.discover({"KT_PLUGINS": "no_such_plugin"})
    assert caught.value.code == "KT218"
    registry = Registry.discover({"KT_PLUGINS": ""})
    assert {r.name for r in registry.plugins if r.state is State.READY} == {"kt_core"}
