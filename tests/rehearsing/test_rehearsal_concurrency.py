"""A step that works in threads: they are on the stage as it is."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from laws import bits
from torch import nn
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

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


def test_torch_knows_of_no_mode_once_a_thread_that_outlives_the_rehearsal_has_ended():
    """Otherwise torch.compile compiles nothing any more."""
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait, daemon=True)
    assert tm.rehearse(lambda model: thread.start(), nn.Linear(2, 2)).ok
    ended.set()
    thread.join()
    assert not is_in_torch_dispatch_mode()


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


def averaged(average, model):
    with torch.no_grad():
        for mine, theirs in zip(average.parameters(), model.parameters(), strict=True):
            mine.mul_(0.9).add_(theirs, alpha=0.1)


@pytest.mark.parametrize("daemon", [False, True])
def test_a_thread_that_is_not_joined_ends_before_the_weights_are_real_again(daemon):
    model, average = (nn.Sequential(*(nn.Linear(4, 4) for _ in range(20))) for _ in range(2))

    def step(model, average, batch):
        model(batch.to("cuda")).sum().backward()
        threading.Thread(target=averaged, args=(average, model), daemon=daemon).start()

    before = [bits(each) for each in average.parameters()]
    for _ in range(5):
        assert tm.rehearse(step, model, average, torch.ones(1, 4)).ok
        assert [bits(each) for each in average.parameters()] == before


@pytest.mark.parametrize("daemon", [False, True])
def test_a_thread_that_does_not_end_is_reported_unless_it_is_a_daemon_and_is_ended(daemon):
    model = nn.Linear(2, 2)

    def forever(model, optimizer, batch):
        while True:
            model(batch.to("cuda")).sum().backward()
            optimizer.step()

    def step(model, optimizer, batch):
        model(batch.to("cuda"))
        threading.Thread(target=forever, args=(model, optimizer, batch), daemon=daemon, name="endless").start()

    optimizer, before = torch.optim.AdamW(model.parameters()), [bits(each) for each in model.parameters()]
    rehearsed = tm.rehearse(step, model, optimizer, torch.ones(1, 2))
    assert rehearsed.ok is daemon
    assert daemon or "a thread of the step was still running when the step ended" in rehearsed.stopped
    for thread in [each for each in threading.enumerate() if each.name == "endless"]:
        thread.join(60)  # its work has ended; Python may still be busy with the thread itself
        assert not thread.is_alive()
    assert [bits(each) for each in model.parameters()] == before
    assert model.weight.grad is None
    assert not optimizer.state


def test_a_thread_that_sleeps_through_the_end_changes_nothing_when_it_wakes():
    go, model = threading.Event(), nn.Linear(2, 2)

    def late(model):
        go.wait(30)
        averaged(model, model)

    def step(model):
        model.weight.sum().backward()
        threading.Thread(target=late, args=(model,), name="late", daemon=True).start()

    before = bits(model.weight)
    assert tm.rehearse(step, model).ok
    thread = next(each for each in threading.enumerate() if each.name == "late")
    go.set()
    thread.join(30)
    assert bits(model.weight) == before


def test_a_pool_that_was_there_before_and_is_there_after_works_on():
    with ThreadPoolExecutor(1) as pool:

        def careless(model):
            return model(torch.ones(1, 2))

        def step(model):
            pool.submit(careless, model).result()

        model = nn.Linear(2, 2)
        found = tm.rehearse(step, model).findings
        assert [each.code for each in found] == ["return model(torch.ones(1, 2))"]
        assert type(pool.submit(careless, model).result(30)) is torch.Tensor


def test_a_daemon_that_has_nothing_to_do_with_torch_is_no_matter():
    go = threading.Event()

    def step(model):
        threading.Thread(target=go.wait, args=(30,), daemon=True).start()
        model.weight.sum().backward()

    assert tm.rehearse(step, nn.Linear(2, 2)).ok
    go.set()


def test_a_thread_that_leaves_by_sys_exit_is_no_error():
    def step(model):
        in_a_thread(sys.exit)
        model.weight.sum().backward()

    assert tm.rehearse(step, nn.Linear(2, 2)).ok


def test_a_thread_is_its_own_again():
    def step(model, thread):
        thread.start()
        thread.join()
        model.weight.sum().backward()

    thread = threading.Thread(target=print)
    assert tm.rehearse(step, nn.Linear(2, 2), thread).ok
    assert "run" not in vars(thread)


def test_a_rehearsal_within_a_thread_of_a_rehearsal_is_refused_and_does_not_hang():
    def inner(model):
        tm.rehearse(lambda model: model, model)

    rehearsed = tm.rehearse(lambda model: in_a_thread(inner, model), nn.Linear(2, 2))
    assert "RuntimeError: another rehearsal is running" in rehearsed.stopped


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
