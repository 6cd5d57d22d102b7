"""What a move must not do to those who only stand by: threads, holders of old memory, odd gradients."""

from __future__ import annotations

import copy
import gc
import threading

import pytest
import torch
from torch import Tensor, nn

import torchmove as tm
from torchmove.internals.guards import everything_of
from torchmove.moving import leftovers as _held
from torchmove.testing import refresh

pytestmark = pytest.mark.twin


@pytest.mark.slow
def test_tuples_that_other_threads_are_making_are_left_alone():
    """Python raises SystemError in the thread that makes a tuple while somebody else holds it."""
    errors: list[BaseException] = []
    done = threading.Event()

    def make_tuples() -> None:
        while not done.is_set():
            try:
                tuple(each for each in range(200))
            except SystemError as error:
                errors.append(error)

    threads = [threading.Thread(target=make_tuples) for _ in range(2)]
    for thread in threads:
        thread.start()
    kept = torch.ones(3)
    try:
        for _ in range(60):
            assert any(each is kept for each in everything_of(Tensor))
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert errors == []


@pytest.mark.slow
def test_a_tuple_half_made_is_let_go_of_at_once():
    def numbers():
        for number in range(50):
            everything_of(Tensor)
            yield number

    assert len(tuple(numbers())) == 50


def test_everything_of_finds_subclasses():
    class Special(Tensor):
        pass

    special = torch.ones(2).as_subclass(Special)
    assert any(each is special for each in everything_of(Tensor))
    assert any(each is special for each in everything_of(Special))
    assert not any(each is special for each in everything_of(nn.Parameter))


def test_many_held_tensors_cost_a_few_searches(monkeypatch):
    searches = []
    real = gc.get_referrers
    monkeypatch.setattr(gc, "get_referrers", lambda *those: searches.append(1) or real(*those))
    model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(50)))
    kept = model.state_dict()
    receipt = refresh(model)
    assert len(receipt.held) == len(kept) == 100
    assert len(searches) <= 3
    assert any("OrderedDict" in held.by or "under" in held.by for held in receipt.held)
    assert all(held.by.startswith("a tensor of shape") for held in receipt.held)


class Talkative(dict):
    def items(self):
        raise AssertionError("code of a holder was run")


class Private:
    def __getattribute__(self, name: str) -> object:
        raise AssertionError("code of a holder was run")


def test_the_search_for_holders_runs_no_code_of_theirs():
    model = nn.Linear(3, 3)
    private = Private()
    object.__setattr__(private, "old", model.weight.data)
    talkative = Talkative(old=model.bias.data)
    receipt = refresh(model)
    assert [str(held.path) for held in receipt.held] == ["model.weight", "model.bias"]
    assert talkative.keys() == {"old"}


def test_a_search_that_fails_does_not_fail_the_move(monkeypatch):
    def fail(*_: object) -> None:
        raise RuntimeError("no search today")

    monkeypatch.setattr(_held, "_holders", fail)
    model = nn.Linear(3, 3)
    old = model.weight.data
    receipt = tm.move(model, to="twin:0")
    assert [held.by for held in receipt.held] == ["something that Python's gc does not track"]
    assert (old.device.type, model.weight.device.type) == ("cpu", "twin")


UNSEARCHED = "not searched for; receipt.find_holders() searches"


@pytest.fixture
def searches(monkeypatch) -> list[int]:
    """What is spent to find who holds old memory, in a process of a thousand objects."""
    spent: list[int] = []
    has = _held._Budget.has

    def counted(budget: _held._Budget, searches: int) -> bool:
        is_there = has(budget, searches)
        spent.extend([searches] * is_there)
        return is_there

    monkeypatch.setattr(_held.sys, "getallocatedblocks", lambda: 1000)
    monkeypatch.setattr(_held, "_WORTH_BYTES", 1 << 20)
    monkeypatch.setattr(_held._Budget, "has", counted)
    return spent


class Owner:
    pass


@pytest.mark.parametrize("has_dict", [False, True])
def test_an_object_that_holds_a_tensor_in_an_attribute_is_named(has_dict):
    """Without a dict of its own, as objects are since Python 3.11, and once somebody has asked for the dict."""
    owner, tensor = Owner(), torch.ones(2, 3)
    owner.old = tensor.data
    if has_dict:
        vars(owner)
    assert [held.by for held in refresh([tensor]).held] == ["a tensor of shape (2, 3) under 'old' in a Owner"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("looks", "expected", "said"),
    [
        (999, [], UNSEARCHED),
        (1000, [1], "a tensor of shape (2048, 128)"),
        (2000, [1, 1], "a tensor of shape (2048, 128) under 'old' in dict of 2"),
        (3000, [1, 1, 1], "a tensor of shape (2048, 128) under 'old' in a Owner"),
        (5999, [1, 1, 1], "a tensor of shape (2048, 128) under 'old' in a Owner"),
        (9000, [_held._COLLECTING, 1, 1, 1], "a tensor of shape (2048, 128) under 'old' in a Owner"),
    ],
)
def test_the_search_for_holders_takes_no_more_than_it_may(looks, expected, said, searches, monkeypatch):
    monkeypatch.setattr(_held, "_OBJECTS_PER_SECOND", looks / _held._LEAST_SECONDS)
    monkeypatch.setattr(_held, "_SHARE", float("inf"))
    owner, tensor = Owner(), torch.ones(2048, 128)
    owner.__dict__ = {"other": None, "old": tensor.data}  # of its own, in every version of Python
    searches.clear()
    receipt = refresh([tensor])
    assert searches == expected
    assert [(held.nbytes, held.by) for held in receipt.held] == [(1 << 20, said)]
    assert receipt.find_holders()[0].by == "a tensor of shape (2048, 128) under 'old' in a Owner"
    del owner.old
    assert receipt.find_holders() == ()


def test_a_long_move_may_be_followed_by_a_longer_search(searches, monkeypatch):
    monkeypatch.setattr(_held, "_OBJECTS_PER_SECOND", 100)
    tensor = torch.ones(2048, 128)
    old = _held.OldStorages(tm.plan(tensor, to="twin:0"))
    old.record([0], [tensor])
    old.release()
    assert [each.by for each in old.held(1.0).held] == [UNSEARCHED]
    assert [each.by for each in old.held(100.0).held] == ["a tensor of shape (2048, 128)"]


def test_little_old_memory_is_counted_and_not_searched_for(searches, monkeypatch):
    model = nn.Linear(9, 9)
    kept = model.state_dict()
    with monkeypatch.context() as patch:
        patch.setattr(gc, "collect", None)
        patch.setattr(gc, "get_referrers", None)
        receipt = refresh(model)
    assert searches == []
    assert [(held.nbytes, held.by) for held in receipt.held] == [(324, UNSEARCHED), (36, UNSEARCHED)]
    holders = [held.by for held in receipt.find_holders()]
    named = [f"of shape {tuple(each.shape)} under {name!r} in OrderedDict of 2" for name, each in kept.items()]
    assert holders == [f"a tensor {each}" for each in named]


def test_a_receipt_keeps_no_old_memory_and_can_be_copied(searches):
    model = nn.Linear(9, 9)
    kept = model.state_dict()
    receipt = refresh(model)
    again = copy.deepcopy(receipt)
    assert again.held == receipt.held
    assert again.find_holders() == ()
    del kept
    assert receipt.find_holders() == ()


def test_a_gradient_that_does_not_fit_fails_and_changes_nothing():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model(torch.ones(1, 2)).sum().backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    model[1].weight.data = model[1].weight.data.half()
    with pytest.raises(tm.MoveFailed, match=r"gradient is torch.float32 \(2, 2\), its tensor is torch.float16"):
        tm.move(model, to="twin:0")
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}
    assert all(one.grad is other for one, other in zip(model.parameters(), gradients, strict=True))


def test_a_step_that_cannot_be_undone_does_not_keep_the_others_from_it(monkeypatch):
    from torchmove.moving import apply as _apply
    from torchmove.moving import apply as _repointing

    model = nn.Linear(2, 2)
    model.device = torch.device("cpu")

    def settle(*_: object) -> None:
        monkeypatch.setattr(_repointing, "_write", refuse)
        raise RuntimeError("first")

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("cannot be written")

    monkeypatch.setattr(_apply, "call_overrides", settle)
    with pytest.raises(tm.MoveFailed, match=r"could not be rolled back \(RuntimeError: cannot be written\)") as caught:
        tm.move(model, to="twin:0")
    assert caught.value.not_undone == "RuntimeError: cannot be written"
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}


def test_a_name_of_a_device_on_a_module_is_repointed(route):
    model = nn.Linear(2, 2)
    model.device = model.table_device = str(route.home)
    model.title = "cpu"
    route.start(model)
    route.there(model)
    expected = {torch.device(route.home)} if route.is_fresh else {route.away, torch.device(route.away.type)}
    assert torch.device(model.device) in expected
    assert torch.device(model.table_device) in expected
    assert model.title == "cpu"


def test_a_nested_tensor_of_strided_layout_moves():
    model = nn.Linear(2, 2)
    model.ragged = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)])
    refresh(model)
    assert [part.shape for part in model.ragged.unbind()] == [(2, 3), (4, 3)]


def test_planning_runs_no_code_of_a_tensor_class():
    class Guarded(Tensor):
        @classmethod
        def __torch_function__(cls, *given: object, **named: object) -> object:
            raise AssertionError("code of a tensor class was run")

    model = nn.Linear(2, 2)
    model.guarded = torch.ones(3, dtype=torch.uint8).as_subclass(Guarded)
    assert tm.plan(model, to="twin:0").ok
