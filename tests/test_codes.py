"""Codes: one table in the code, of which the page is made; and a case for those that no other test brings about."""

from __future__ import annotations

import functools
import re
import runpy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import torchmove as tm
from torchmove.codes import FILES, FINDINGS, NOTES, REFUSALS
from torchmove.testing import refresh

pytestmark = pytest.mark.twin

ROOT = Path(__file__).parents[1]
TABLE = {**REFUSALS, **FILES, **NOTES, **FINDINGS}


def test_the_page_is_what_the_code_says():
    page = runpy.run_path(str(ROOT / "docs" / "codes.py"))["page"]
    assert (ROOT / "docs" / "codes.md").read_text() == page(), "write it again: python docs/codes.py"


def test_every_code_that_is_used_is_in_the_table_and_the_other_way_round():
    files = [path for path in (ROOT / "src").rglob("*.py") if path.name != "codes.py"]
    used = {code for path in files for code in re.findall(r'"([RNV]\d{3})"', path.read_text())}
    assert used == {*TABLE}


def test_every_code_is_in_its_part_and_in_order():
    for letter, part in (("R", REFUSALS), ("R", FILES), ("N", NOTES), ("V", FINDINGS)):
        assert [*part] == sorted(part)
        assert {code[0] for code in part} == {letter}


@functools.cache
def codes_in_tests() -> set[str]:
    return {code for path in (ROOT / "tests").rglob("*.py") for code in re.findall(r"\b[RNV]\d{3}\b", path.read_text())}


@pytest.mark.parametrize("code", TABLE)
def test_every_code_is_brought_about_by_a_test(code):
    assert code in codes_in_tests()


@pytest.mark.parametrize("code", TABLE)
def test_a_refusal_and_a_finding_say_what_to_do(code):
    what, remedy = TABLE[code]
    assert what
    assert bool(remedy) == (code[0] != "N")
    assert "|" not in what + remedy  # it would end the cell


# ---------------------------------------------------------------- cases


def codes(said: object) -> list[str]:
    return [each.code for each in said]


class Closed(Tensor):
    """A tensor with something inside that it does not tell."""

    @staticmethod
    def __new__(cls) -> Closed:
        return Tensor._make_wrapper_subclass(cls, (2,))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError(func)


def test_a_tensor_that_does_not_say_what_is_inside_is_refused():
    with pytest.raises(tm.MoveRefused) as error:
        tm.move({"closed": Closed()}, to="twin:0")
    assert codes(error.value.refusals) == ["R031"]


def test_a_device_in_a_tuple_is_noted():
    model = nn.Linear(2, 2)
    model.homes = (torch.device("cpu"),)
    notes = tm.move(model, to="twin:0").plan.notes
    assert [(note.code, note.path) for note in notes] == [("N040", "model.homes[0]")]


def test_what_does_not_fit_into_the_budget_of_host_memory_is_noted():
    model = nn.Linear(4, 4).to("twin:0")
    tm.release()  # the host memory that other tests have parked in
    parked = tm.park(model, host_bytes=0)
    assert codes(parked.notes) == ["N050"]
    parked.wake()


def test_a_tie_that_is_broken_after_a_move_is_found():
    whole = torch.zeros(4)
    model = nn.Module()
    model.left, model.right = nn.Parameter(whole[:2]), nn.Parameter(whole[2:])
    receipt = refresh(model)
    model.right.data = model.right.data.clone()
    assert [(found.code, found.path) for found in tm.verify(model, after=receipt).findings] == [("V201", "model.right")]


def test_a_parameter_that_is_frozen_after_a_move_is_found():
    model = nn.Linear(2, 2)
    receipt = tm.move(model, to="twin:0")
    model.bias.requires_grad_(False)
    found = tm.verify(model, after=receipt).findings
    assert [(each.code, each.path) for each in found] == [("V402", "model.bias")]


def test_a_module_that_remembers_where_it_was_is_found():
    model = nn.Linear(2, 2)
    model.device = torch.device("cpu")
    model.to("twin:0")
    found = tm.verify(model, on="twin:0").findings
    assert [(each.code, each.path) for each in found] == [("V403", "model.device")]
