"""The pool of threads: its size, forks, cancelling, concurrent callers, idle workers."""

from __future__ import annotations

import os
import resource
import threading
import time

import pytest
import torch

from kt_core.errors import KernelError
from kt_core.operators.kernel import KernelContext, LinearShape
from kt_core.registry.machine import effective_threads

pytest.importorskip("kt_ops_cpu.formats")

from kt_ops_cpu.library import native
from kt_ops_cpu.linear import CpuLinear
from kt_ops_cpu.placement import Topology, parse_cpu_list, place, read_topology, split_width

from kt_ops_cpu import pool

CPU = torch.device("cpu")


def linear(weight, **options):
    rows, cols = weight.shape
    kernel = CpuLinear(LinearShape(cols, rows), KernelContext("layer", torch.float32, CPU, options))
    kernel.load(weight, None)
    return kernel


@pytest.fixture
def kernel(random_packed, restore_threads):
    return linear(random_packed("Q4_K", 640, 512))


@pytest.fixture
def x():
    return torch.randn(33, 512, generator=torch.Generator().manual_seed(0))


def test_default_is_what_computes_well_here(monkeypatch):
    monkeypatch.delenv("KT_CPU_THREADS", raising=False)
    assert pool.default_threads(os.environ) == effective_threads()
    assert pool.default_threads({"KT_CPU_THREADS": "3"}) == 3


@pytest.mark.parametrize("text", ["0", "-1", "1000000", "abc", "", "2.5", "٣", "9" * 40])
def test_bad_numbers_of_threads(text):
    with pytest.raises(KernelError, match="KT_CPU_THREADS") as caught:
        pool.default_threads({"KT_CPU_THREADS": text})
    assert caught.value.code == "KT507"
    if text.lstrip("-").isascii() and text.lstrip("-").isdecimal():
        with pytest.raises(KernelError):
            pool.set_threads(int(text))


def test_rules_that_disagree(random_packed, monkeypatch, restore_threads):
    monkeypatch.setattr(pool, "_asked", None)
    weight = random_packed("Q4_K", 16, 256)
    linear(weight, threads=2)
    linear(weight, threads=2)
    linear(weight)
    with pytest.raises(KernelError, match="2 and 3") as caught:
        linear(weight, threads=3)
    assert caught.value.code == "KT514"


def test_any_number_of_threads_gives_the_same(kernel, x):
    pool.set_threads(1)
    prefill, decode = kernel.forward(x), kernel.forward(x[:1])
    for threads in (2, 3, 7, 64):
        pool.set_threads(threads)
        for _ in range(3):
            assert torch.equal(kernel.forward(x), prefill)
            assert torch.equal(kernel.forward(x[:1]), decode)


def test_nodes_give_the_same(kernel, x, monkeypatch):
    monkeypatch.setenv("KT_CPU_TOPOLOGY", "0")
    pool.set_threads(3)
    wanted = kernel.forward(x)
    monkeypatch.setenv("KT_CPU_TOPOLOGY", "0;0;0")
    placement = pool.set_threads(5)
    assert placement.node_of_thread == (0, 1, 2, 0, 1)
    assert torch.equal(kernel.forward(x), wanted)


def test_callers_in_several_threads_take_turns(kernel, x):
    pool.set_threads(2)
    wanted = kernel.forward(x)
    wrong = []

    def call():
        results = [kernel.forward(x) for _ in range(20)]
        wrong.extend(y for y in results if not torch.equal(y, wanted))

    callers = [threading.Thread(target=call) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_works_on_both_sides_of_a_fork(kernel, x):
    pool.set_threads(3)
    wanted = kernel.forward(x)
    child = os.fork()
    if child == 0:
        os._exit(0 if torch.equal(kernel.forward(x), wanted) else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert torch.equal(kernel.forward(x), wanted)


def test_cancel_stops_a_call_and_the_next_one_runs(random_packed, restore_threads):
    pool.set_threads(2)
    kernel = linear(random_packed("Q4_K", 2048, 1024))
    x = torch.randn(4000, 1024, generator=torch.Generator().manual_seed(0))
    stop = threading.Event()

    def cancel():
        while not stop.wait(0.002):
            pool.cancel()

    def run_until_cancelled():
        for _ in range(50):
            kernel.forward(x)

    canceller = threading.Thread(target=cancel)
    canceller.start()
    try:
        with pytest.raises(KernelError) as caught:
            run_until_cancelled()
    finally:
        stop.set()
        canceller.join()
    assert caught.value.code == "KT510"
    assert torch.isfinite(kernel.forward(x[:8])).all()
    pool.cancel()  # nothing runs: no effect on the next call
    assert torch.isfinite(kernel.forward(x[:8])).all()


def test_idle_workers_sleep(kernel, x):
    pool.set_threads(4)
    kernel.forward(x)
    time.sleep(0.05)
    before = resource.getrusage(resource.RUSAGE_SELF)
    time.sleep(0.3)
    after = resource.getrusage(resource.RUSAGE_SELF)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert used < 0.05


def test_scratch_is_shared_bounded_and_given_back(kernel, random_packed):
    lib = native().lib
    lib.kt_cpu_scratch_free()
    assert lib.kt_cpu_scratch_bytes() == 0
    kernel.forward(torch.zeros(8, 512))
    small = lib.kt_cpu_scratch_bytes()
    assert small > 0
    linear(random_packed("Q4_K", 640, 512)).forward(torch.zeros(8, 512))
    assert lib.kt_cpu_scratch_bytes() == small
    kernel.forward(torch.zeros(20000, 512))
    assert lib.kt_cpu_scratch_bytes() < 64 << 20
    lib.kt_cpu_scratch_free()
    assert torch.equal(kernel.forward(torch.zeros(1, 512)), torch.zeros(1, 640))


class TestPlacement:
    """Pure functions, tried on machines that are not at hand."""

    def test_threads_are_dealt_out_in_proportion(self):
        wide = Topology((tuple(range(24)), tuple(range(24, 32))))
        placement = place(wide, 8)
        assert [placement.node_of_thread.count(node) for node in (0, 1)] == [6, 2]
        assert place(wide, 1).topology.nodes == (tuple(range(24)),)
        assert set(place(Topology(((0,), (1,), (2,))), 3).node_of_thread) == {0, 1, 2}

    @pytest.mark.parametrize(
        ("nodes", "parts"),
        [(1, [0, 768]), (2, [0, 512, 768]), (3, [0, 256, 512, 768]), (4, [0, 256, 512, 768, 768])],
    )
    def test_width_is_split_in_whole_blocks(self, nodes, parts):
        assert split_width(768, nodes) == parts

    def test_narrow_and_ragged_widths(self):
        assert split_width(96, 2) == [0, 96, 96]
        assert split_width(1000, 2) == [0, 512, 1000]

    @pytest.mark.parametrize(
        ("text", "cpus"),
        [("0", (0,)), ("0-3,8\n", (0, 1, 2, 3, 8)), ("", ()), ("x", ()), ("3-1", ()), ("1,,2", ())],
    )
    def test_cpu_lists(self, text, cpus):
        assert parse_cpu_list(text) == cpus

    def test_reads_the_kernels_files(self, tmp_path, monkeypatch):
        monkeypatch.setattr("kt_ops_cpu.placement.affinity", lambda: frozenset({1, 2, 3, 9}))
        for node, text in ((0, "0-3"), (1, "4-7"), (10, "8-11")):
            folder = tmp_path / f"sys/devices/system/node/node{node}"
            folder.mkdir(parents=True)
            (folder / "cpulist").write_text(text + "\n")
        assert read_topology({}, tmp_path).nodes == ((1, 2, 3), (9,))

    def test_without_such_files_there_is_one_node(self, tmp_path, monkeypatch):
        monkeypatch.setattr("kt_ops_cpu.placement.affinity", lambda: frozenset({4, 5}))
        assert read_topology({}, tmp_path).nodes == ((4, 5),)

    @pytest.mark.parametrize("text", ["", ";", "0;", "a", "0-1;b", ";".join(["0"] * 17)])
    def test_bad_topologies(self, text):
        with pytest.raises(KernelError) as caught:
            read_topology({"KT_CPU_TOPOLOGY": text})
        assert caught.value.code == "KT507"
