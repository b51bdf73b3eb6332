"""Calls to the host run beside their caller, in order, and their errors reach it."""

from __future__ import annotations

import threading

import pytest
import torch

from kt_core.errors import KernelError
from kt_core.operators.offload import HostLane, lane_from

PATIENCE = 20.0
"""Seconds until a wait that should have ended is called a deadlock."""


def test_the_caller_goes_on_while_the_call_runs():
    caller_went_on = threading.Event()

    def run(x):
        assert caller_went_on.wait(PATIENCE), "the caller waited for the call"
        return x * 2

    wait = HostLane(torch.device("cpu")).submit(run, [torch.ones(3)])
    caller_went_on.set()
    assert wait().tolist() == [2, 2, 2]


def test_a_call_starts_when_the_one_before_has_ended():
    lane = HostLane(torch.device("cpu"))
    order = []
    gate = threading.Event()

    def slow(x):
        gate.wait(PATIENCE)
        order.append("first")
        return x

    def quick(x):
        order.append("second")
        return x + 1

    first = lane.submit(slow, [torch.zeros(1)])
    timer = threading.Timer(0.05, gate.set)
    timer.start()
    second = lane.submit(quick, [torch.zeros(1)])
    assert second().item() == 1
    assert first().item() == 0
    assert order == ["first", "second"]
    timer.join()


def test_an_error_of_the_kernel_is_raised_where_the_result_is_fetched():
    def run(x):
        raise KernelError.of("KT503", "asked for expert 9")

    lane = HostLane(torch.device("cpu"))
    wait = lane.submit(run, [torch.zeros(1)])
    with pytest.raises(KernelError, match="expert 9"):
        wait()
    assert lane.submit(lambda x: x, [torch.ones(1)])().item() == 1


def test_the_worker_computes_without_gradients():
    wait = HostLane(torch.device("cpu")).submit(
        lambda x: torch.tensor(float(torch.is_grad_enabled())), [torch.zeros(1)]
    )
    assert wait().item() == 0


def test_modules_of_one_device_share_a_lane():
    assert lane_from(torch.device("cpu")) is lane_from(torch.device("cpu"))
