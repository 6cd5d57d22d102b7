"""A step that works in threads: they are on the stage as it is."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import torchmove as tm


def in_a_thread(work, *given):
    thread = threading.Thread(target=work, args=given)
    thread.start()
    thread.join()


def test_what_a_thread_does_is_done_on_the_device_that_is_not_there():
    sent = []

    def step(model, batch):
        in_a_thread(lambda: sent.append(batch.to("cuda")))
        assert sent[0].device.type == "cuda"
        model(sent[0]).sum().backward()

    assert tm.rehearse(step, nn.Linear(2, 2), torch.ones(1, 2)).ok


@pytest.mark.parametrize("pool", [False, True])
def test_a_line_that_would_fail_in_a_thread_is_found_there(pool):
    def careless(model):
        model(torch.ones(1, 2))

    def step(model):
        if pool:
            with ThreadPoolExecutor(2) as workers:
                list(workers.map(careless, [model] * 4))
        else:
            in_a_thread(careless, model)

    found = tm.rehearse(step, nn.Linear(2, 2)).findings
    assert [(each.kind, each.code) for each in found] == [("factory", "model(torch.ones(1, 2))")]


def test_an_error_that_ends_a_thread_stops_the_rehearsal():
    def broken(model):
        model(torch.ones(1, 2, device="cuda"))
        raise ValueError("not this one")

    rehearsed = tm.rehearse(lambda model: in_a_thread(broken, model), nn.Linear(2, 2))
    assert not rehearsed.ok
    assert 'raise ValueError("not this one")' in rehearsed.stopped
    assert "ValueError: not this one" in rehearsed.stopped


def test_many_threads_at_once_know_their_own_devices():
    wrong = []

    def work(where):
        for _ in range(50):
            made = torch.zeros(3, device=where) + torch.ones(3, device=where)
            if made.device.type != where:
                wrong.append(made.device)

    def step(model):
        model.weight.sum().backward()
        threads = [threading.Thread(target=work, args=(where,)) for where in ("cuda", "cpu") * 4]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    rehearsed = tm.rehearse(step, nn.Linear(2, 2))
    assert not wrong
    assert not rehearsed.findings


def test_a_thread_that_outlasts_the_step_is_itself_again():
    go, told = threading.Event(), []

    def late():
        go.wait(30)
        told.append(torch.ones(2).add_(1))

    def step(model):
        threading.Thread(target=late, name="late").start()
        model.weight.sum().backward()

    assert tm.rehearse(step, nn.Linear(2, 2)).ok
    thread = next(each for each in threading.enumerate() if each.name == "late")
    go.set()
    thread.join(30)
    assert type(told[0]) is torch.Tensor
    assert told[0].tolist() == [2.0, 2.0]


def test_threads_of_others_are_left_alone():
    start, ready, made = threading.Event(), threading.Event(), []

    def bystander():
        start.wait(30)
        in_a_thread(lambda: made.append(torch.ones(2)))
        ready.set()

    thread = threading.Thread(target=bystander)
    thread.start()

    def step(model):
        model.weight.sum().backward()
        start.set()
        assert ready.wait(30)

    assert tm.rehearse(step, nn.Linear(2, 2)).ok
    thread.join(30)
    assert type(made[0]) is torch.Tensor
    assert threading.Thread.start.__module__ == "threading"
