"""What tensors show of one memory after a move: the same bytes, one counter of in-place writes."""

from __future__ import annotations

import pytest
import torch
from laws import COPIED_AS_BYTES, assert_same, bits, trace
from torch import nn
from zoo import numbers

import torchmove as tm
from torchmove import chain
from torchmove.testing import refresh

pytestmark = pytest.mark.twin

# ---------------------------------------------------------------- bytes


def odd_bools() -> torch.Tensor:
    return torch.tensor([0, 1, 2, 255, 128, 1], dtype=torch.uint8).view(torch.bool)


BOOLS = {
    "whole": odd_bools,
    "a view": lambda: odd_bools()[1:5],
    "every other": lambda: odd_bools()[::2],
    "a scalar": lambda: odd_bools()[3],
    "transposed": lambda: odd_bools().view(2, 3).t(),
    "many": lambda: torch.arange(100_000, dtype=torch.uint8).view(torch.bool),
}


@pytest.mark.parametrize("thorough", ["quick", "bytes"])
@pytest.mark.parametrize("kind", BOOLS)
def test_bools_keep_bytes_other_than_0_and_1(kind, thorough, route):
    model = nn.Linear(2, 2)
    model.register_buffer("mask", BOOLS[kind]())
    model.more = [odd_bools() for _ in range(5)]
    before = [bits(each) for each in (model.mask, *model.more)]
    route.start(model)
    for go in (route.there, route.back):
        go(model) if route.is_fresh else go(model, verify=thorough)
        assert [bits(each) for each in (model.mask, *model.more)] == before


@pytest.mark.parametrize("dtype", sorted(COPIED_AS_BYTES - {torch.bool}, key=str), ids=str)
def test_dtypes_of_less_than_a_byte_move_as_bytes(dtype, route):
    model = nn.Linear(2, 2)
    packed = torch.arange(12, dtype=torch.uint8)
    model.register_buffer("codes", packed.view(dtype))
    model.register_buffer("part", packed.clone().view(dtype)[2:9:3])
    model.scales = nn.Parameter(packed.clone().view(dtype), requires_grad=False)
    tensors = {"codes": model.codes, "part": model.part, "scales": model.scales}
    route.start(model)
    before = trace(tensors)
    route.there(model)
    assert {tensor.device for tensor in tensors.values()} == {route.away}
    assert_same(before, trace(tensors))
    receipt = route.back(model) if route.is_fresh else route.back(model, verify="bytes")
    assert_same(before, trace(tensors))
    assert tm.verify(model, after=receipt).ok


# ---------------------------------------------------------------- in-place writes


class Shared(nn.Module):
    """Several windows on one memory, in the ways in which torch makes them share a version counter, or not."""

    def __init__(self) -> None:
        super().__init__()
        flat = numbers(12)
        self.register_buffer("table", numbers(6))
        self.rows = self.table.view(2, 3)
        self.detached = self.table.detach()
        self.apart = self.table.data
        self.left, self.right = flat[:5], flat[5:]  # views of a tensor that is not part of the state
        self.weight = nn.Parameter(flat)
        self.complex = torch.zeros(4, dtype=torch.complex64)
        self.conjugated = self.complex.conj()[1:]
        self.imaginary = self.conjugated.imag
        self.as_bytes = self.table.view(torch.uint8)


WRITES = [
    ("table", "rows", True),
    ("rows", "table", True),
    ("detached", "rows", True),
    ("apart", "rows", False),
    ("left", "right", True),
    ("right", "weight", True),
    ("complex", "conjugated", True),
    ("imaginary", "complex", True),
    ("as_bytes", "detached", True),
]


@pytest.mark.parametrize(("written", "saved", "notices"), WRITES)
def test_autograd_notices_in_place_writes_as_before(written, saved, notices, route):
    model = Shared()
    route.start(model)
    for go in (None, route.there, route.back):
        if go is not None:
            go(model)
        used = getattr(model, saved).detach()
        result = (torch.ones_like(used, requires_grad=True) * used).sum().abs()
        with torch.no_grad():
            getattr(model, written).zero_()
        if notices:
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                result.backward()
        else:
            result.backward()


def test_version_counters_are_shared_as_before_and_nothing_else_changes(route):
    model = Shared()
    tensors = {name: value for name, value in vars(model).items() if isinstance(value, torch.Tensor)}
    tensors |= {"table": model.table, "weight": model.weight}
    route.start(model)
    before = trace(tensors)
    assert len(before.counters) > 8
    for go in (route.there, route.back):
        go(model)
        assert_same(before, trace(tensors))


# ---------------------------------------------------------------- inference mode


def test_a_model_made_in_inference_mode_moves(route):
    with torch.inference_mode():
        model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        model.register_buffer("row", model[0].weight[0])
    model.eval()
    tensors = dict(model.state_dict(keep_vars=True))
    route.start(model)
    before = trace(tensors)
    assert model[0].weight.requires_grad
    for go, device in ((route.there, route.away), (route.back, route.home)):
        go(model)
        assert_same(before, trace(tensors))
        with torch.inference_mode():
            assert model(torch.ones(3, 2, device=device)).device == device
    refresh(model)
    assert_same(before, trace(tensors))


# ---------------------------------------------------------------- several storages over one memory


def by_dlpack() -> tuple[list[torch.Tensor], bool]:
    one = numbers(8)
    return [one, torch.from_dlpack(one), torch.from_dlpack(one[2:])], True


def by_numpy() -> tuple[list[torch.Tensor], bool]:
    array = numbers(8).numpy()
    return [torch.from_numpy(array), torch.from_numpy(array[1:]), torch.from_numpy(array).view(2, 4)], True


def overlapping_in_part() -> tuple[list[torch.Tensor], bool]:
    array = numbers(8).numpy()
    return [torch.from_numpy(array[3:]), torch.from_numpy(array[:6]), torch.from_numpy(array[4:5])], True


def of_other_dtypes() -> tuple[list[torch.Tensor], bool]:
    array = numbers(8).numpy()
    return [
        torch.from_numpy(array.view("int16")[2:]),
        torch.from_numpy(array),
        torch.from_numpy(array.view("i1")),
    ], True


def parts_of_a_storage() -> tuple[list[torch.Tensor], bool]:
    one = numbers(8)
    part = torch.empty(0).set_(one.untyped_storage()[8:24], 0, (4,))
    return [part, one, one[3:]], True


def side_by_side() -> tuple[list[torch.Tensor], bool]:
    array = numbers(8).numpy()
    return [torch.from_numpy(array[:4]), torch.from_numpy(array[4:]), torch.from_numpy(numbers(8).numpy())], False


LENT = {
    make.__name__: make
    for make in (by_dlpack, by_numpy, overlapping_in_part, of_other_dtypes, parts_of_a_storage, side_by_side)
}


def written_through(tensors: list[torch.Tensor]) -> list[list[bool]]:
    """Which of the others change when one is written to."""
    found = []
    for one in tensors:
        before = [bits(each) for each in tensors]
        kept = one.detach().clone()
        one.fill_(1) if one.any() else one.fill_(2)
        one.zero_()
        found.append([bits(each) != was for each, was in zip(tensors, before, strict=True)])
        one.copy_(kept)
    return found


@pytest.mark.parametrize("kind", LENT)
def test_storages_over_one_memory_are_one_memory_afterwards(kind, route):
    tensors, shared = LENT[kind]()
    model = nn.Linear(2, 2)
    model.lent, model.apart = tensors, numbers(3)
    before, writes = [bits(each) for each in tensors], written_through(tensors)
    assert any(sum(each) > 1 for each in writes) is shared
    route.start(model)
    for go, device in ((route.there, route.away), (route.back, route.home)):
        receipt = go(model)
        assert {each.device for each in tensors} == {device}
        assert [bits(each) for each in tensors] == before
        assert written_through(tensors) == writes
        assert tm.verify(model, after=receipt).ok


@pytest.mark.parametrize("kind", [kind for kind in LENT if kind != "side_by_side"])
def test_shared_memory_is_counted_and_copied_once(kind):
    tensors, _ = LENT[kind]()
    inventory = tm.survey(tensors)
    assert len(inventory.storages) == 1
    assert tm.plan(tensors, to="twin:0").nbytes <= 32
    assert inventory.nbytes <= 32
    assert len([*inventory.sharing(inventory.tensors[0])]) == 2


def test_one_of_two_tensors_that_share_memory_cannot_stay_alone():
    tensors, _ = by_dlpack()
    plan = tm.plan(tensors, to="twin:0", keep=["tensors[1]"])
    assert {refusal.code for refusal in plan.refusals} == {"R041"}


def test_what_stays_on_its_device_is_left_as_it_is():
    tensors, _ = by_numpy()
    model = nn.Linear(2, 2)
    model.lent = tensors
    addresses = [each.data_ptr() for each in tensors]
    tm.move(model, to="twin:0", keep=["model.lent"])
    assert [each.data_ptr() for each in tensors] == addresses


def test_a_storage_that_begins_within_an_element_is_refused():
    memory = bytearray(bytes(range(32)))
    tensors = [
        torch.frombuffer(memory, dtype=torch.float32),
        torch.frombuffer(memory, dtype=torch.int16, count=4, offset=3),
    ]
    with pytest.raises(tm.MoveRefused, match="R045"):
        tm.move(tensors, to="twin:0")


def test_a_holder_of_either_storage_is_named_as_a_leftover():
    one = numbers(300_000)
    other = torch.from_dlpack(one)
    held = other.untyped_storage()
    receipt = tm.move([one, other], to="twin:0")
    assert [held.nbytes()] * 2 == [each.nbytes for each in receipt.held]  # what dlpack made keeps what it was made of


def test_a_failed_move_leaves_them_as_they_were(monkeypatch):
    tensors, _ = overlapping_in_part()
    before, addresses = [bits(each) for each in tensors], [each.data_ptr() for each in tensors]
    monkeypatch.setattr(chain, "verify_move", lambda *_: 1 / 0)
    with pytest.raises(tm.MoveFailed):
        tm.move(tensors, to="twin:0")
    assert [each.data_ptr() for each in tensors] == addresses
    assert [bits(each) for each in tensors] == before
