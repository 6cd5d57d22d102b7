"""What tensors show of one memory after a move: the same bytes, one counter of in-place writes."""

from __future__ import annotations

import pytest
import torch
from laws import COPIED_AS_BYTES, assert_same, bits, trace
from torch import nn
from zoo import numbers

import torchmove as tm
from torchmove.testing import refresh

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
