"""Calls from several threads through one lane to the host."""

from __future__ import annotations

import os
import threading

import pytest
import torch

from kt_core.operators.offload import HostLane


def test_threads_that_share_a_lane_get_their_own_results():
    lane = HostLane(torch.device("cpu"))
    wrong = []

    def ask(number):
        for at in range(40):
            x = torch.full((4,), float(1000 * number + at))
            if not torch.equal(lane.submit(lambda y: y + 1, (x,))(), x + 1):
                wrong.append((number, at))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []


def test_a_call_that_fails_does_not_spoil_the_next():
    lane = HostLane(torch.device("cpu"))

    def fail(_):
        raise ValueError("no")

    failed = lane.submit(fail, (torch.zeros(1),))
    assert lane.submit(lambda y: y, (torch.ones(1),))().item() == 1
    with pytest.raises(ValueError, match="no"):
        failed()


def test_a_call_from_before_a_fork_is_not_waited_for(monkeypatch):
    lane = HostLane(torch.device("cpu"))
    never = threading.Event()
    lane.submit(lambda y: (never.wait(5), y)[1], (torch.zeros(1),))
    monkeypatch.setattr(os, "getpid", lambda: -1)  # as in a child, which has no such thread
    assert lane.submit(lambda y: y + 1, (torch.zeros(1),))().item() == 1
    never.set()
