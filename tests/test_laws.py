"""Every state of the zoo, over every route, obeys the laws."""

from __future__ import annotations

import gc

import pytest
import torch
from laws import addresses, assert_same, trace
from zoo import ZOO, State

import torchmove as tm


@pytest.fixture(params=ZOO)
def state(request: pytest.FixtureRequest) -> State:
    torch.manual_seed(0)
    return ZOO[request.param]()


def everywhere(state: State) -> dict[str, torch.Tensor]:
    return {**state.moves, **state.stays}


def test_there_and_back_is_the_same_state_bit_for_bit(state, route):
    route.start(*state.objects)
    before = trace(everywhere(state))
    route.there(*state.objects, verify="bytes") if not route.is_fresh else route.there(*state.objects)
    assert_same(before, trace(everywhere(state)))
    assert {str(tensor.device) for tensor in state.moves.values()} <= {str(route.away)}
    assert {tensor.device.type for tensor in state.stays.values()} <= {"cpu"}
    route.back(*state.objects)
    assert_same(before, trace(everywhere(state)))
    assert {str(tensor.device) for tensor in state.moves.values()} <= {str(route.home)}


def test_nothing_keeps_looking_at_the_old_storages(state, route):
    route.start(*state.objects)
    before = addresses(state.moves)
    receipt = route.there(*state.objects)
    after = addresses(state.moves)
    assert all(after[name] != before[name] for name in before if state.moves[name].numel())
    assert receipt.held == ()


def test_a_second_move_is_a_no_op(state, route):
    route.start(*state.objects)
    if route.is_fresh:
        pytest.skip("a refresh is a move each time")
    route.there(*state.objects)
    before, places = trace(everywhere(state)), addresses(everywhere(state))
    receipt = route.there(*state.objects)
    assert not receipt.plan.moves
    assert addresses(everywhere(state)) == places
    assert_same(before, trace(everywhere(state)))


def test_planning_moves_nothing(state, twin):
    before, places, used = trace(everywhere(state)), addresses(everywhere(state)), twin.bytes_in_use()
    plan = tm.plan(*state.objects, to="twin:1")
    assert plan.ok
    assert addresses(everywhere(state)) == places
    assert twin.bytes_in_use() == used
    assert_same(before, trace(everywhere(state)))


def test_verify_agrees_once_it_is_there(state, route):
    route.start(*state.objects)
    receipt = route.there(*state.objects)
    assert tm.verify(*state.objects, after=receipt).ok
    assert tm.verify(*state.objects, on=route.away).ok


def test_a_path_leads_to_its_tensor(state):
    inventory = tm.survey(*state.objects)
    roots = dict(zip(inventory.roots, inventory.objects, strict=True))
    for slot in inventory.tensors:
        found = slot.path.fetch(roots)
        is_part = slot.path.how == "call"
        assert found is slot.tensor or is_part


def test_results_print_and_convert_to_json(state, twin):
    inventory, plan = tm.survey(*state.objects), tm.plan(*state.objects, to="twin:0")
    receipt = tm.move(*state.objects, to="twin:0")
    verdict = tm.verify(*state.objects, on="twin:0")
    for noun in (inventory, plan, receipt, verdict):
        assert str(noun)
        assert noun._repr_html_().startswith(("<iframe ", "<div><strong>"))
        assert noun.to_json().startswith("{")


def test_memory_of_the_twin_comes_back(state, twin):
    gc.collect()
    used = twin.bytes_in_use()
    tm.move(*state.objects, to="twin:0")
    tm.move(*state.objects, to="cpu")
    assert twin.bytes_in_use() == used
