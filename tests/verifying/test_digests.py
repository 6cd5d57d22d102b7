"""Digests: the same for the same bits, wherever they are; another one for anything else."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from zoo import random_bits

import torchmove as tm
from torchmove.verifying import digests as _digest
from torchmove.verifying.digests import digests

COUNTS = [1, 7, 4096, _digest._SMALL, _digest._SMALL + 1, 3 * _digest._SMALL + 4097]
DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.uint8, torch.bool, torch.complex64, torch.complex128]


def digest_of(*tensors: Tensor) -> tuple[tuple[int, int], ...]:
    return digests(tm.survey(list(tensors)).tensors)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_one_bit_anywhere_is_another_digest(count, dtype):
    torch.manual_seed(0)
    tensor = random_bits(count, dtype)
    before = digest_of(tensor)
    assert digest_of(tensor.clone()) == before
    raw = tensor.view(torch.uint8)
    for place in {0, len(raw) // 2, len(raw) - 1, *torch.randint(len(raw), (5,)).tolist()}:
        for bit in (1,) if dtype is torch.bool else (1, 128):
            raw[place] ^= bit
            assert digest_of(tensor) != before
            raw[place] ^= bit


@pytest.mark.parametrize("count", [7, 4096, 5 * _digest._COLUMNS, 3 * _digest._SMALL + 4097])
def test_two_that_change_places_are_another_digest(count):
    tensor = torch.arange(count, dtype=torch.int32)
    before = digest_of(tensor)
    places = [0, 1, count // 2, min(count - 1, _digest._COLUMNS), count - 1]
    for one in places:
        for other in places:
            changed = tensor.clone()
            changed[[one, other]] = changed[[other, one]]
            assert (digest_of(changed) == before) == (one == other)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.sampled_from([1, 3, 50, 70_000]), st.sampled_from(DTYPES)), max_size=12))
def test_a_digest_does_not_depend_on_what_else_is_there(shapes):
    torch.manual_seed(0)
    tensors = [random_bits(*shape) for shape in shapes]
    if tensors:
        assert digest_of(*tensors) == tuple(digest_of(tensor)[0] for tensor in tensors)


def odd_windows(device: str) -> list[Tensor]:
    torch.manual_seed(0)
    flat = torch.randn(300_000).to(device)
    return [
        flat[1:],
        flat[::3],
        flat[:200_000].view(400, 500).t(),
        flat[5].reshape(()),
        torch.randn(3, 4, 5, 6).to(device).to(memory_format=torch.channels_last),
        torch.randn(1, 9).to(device).expand(7, 9),
        torch.empty(0).to(device),
        torch.randn(4, dtype=torch.complex64).to(device).conj(),
    ]


@pytest.mark.twin
@pytest.mark.parametrize("device", ["twin:0", pytest.param("cuda:0", marks=pytest.mark.cuda)])
def test_digests_are_the_same_on_every_device(device):
    assert digest_of(*odd_windows("cpu")) == digest_of(*odd_windows(device))


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_large_and_small_digests_are_the_same_on_a_gpu(dtype):
    torch.manual_seed(0)
    tensors = [random_bits(count, dtype) for count in COUNTS]
    assert digest_of(*tensors) == digest_of(*(tensor.to("cuda:0") for tensor in tensors))
