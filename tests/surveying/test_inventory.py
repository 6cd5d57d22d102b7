"""An inventory as a collection: rows by number, by path in both spellings, and selections of them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torchmove as tm


@pytest.fixture
def inventory() -> tm.Inventory:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    model[1].weight = model[0].weight
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return tm.survey(model, optimizer)


def test_it_is_iterated_over_its_tensors(inventory):
    assert [*inventory] == [*inventory.tensors]
    assert len(inventory) == len(inventory.tensors)
    assert bool(tm.survey([1]))
    assert [*tm.survey([1])] == []


def test_a_tensor_is_found_by_the_path_that_it_prints(inventory):
    for index, entry in enumerate(inventory):
        assert inventory[str(entry.path)] == inventory[entry.path] == inventory[index] == entry
        assert str(entry.path) in inventory
        assert entry.path in inventory
    assert inventory[-1] == inventory[len(inventory) - 1]
    assert inventory[:2] == [inventory[0], inventory[1]]


def test_a_tensor_is_found_by_its_name_in_a_state_dict(inventory):
    model = inventory.objects[0]
    for name, tensor in model.state_dict(keep_vars=True).items():
        assert inventory[f"model.{name}"].tensor is tensor
        assert inventory[name].tensor is tensor


def test_a_name_of_several_tensors_finds_none():
    student, teacher = nn.Linear(2, 2), nn.Linear(2, 2)
    inventory = tm.survey(student, teacher)
    assert "weight" not in inventory
    with pytest.raises(KeyError, match=r"Did you mean 'teacher\.weight' or 'student\.weight'"):
        inventory["weight"]


def test_a_tensor_is_found_by_its_other_paths(inventory):
    assert inventory["model[1].weight"] is not None
    assert inventory["model[1].weight"].tensor is inventory["model[0].weight"].tensor
    assert str(inventory["optimizer.param_groups[0]['params'][0]"].path) == "model[0].weight"


def test_a_tensor_itself_is_in_it_or_not(inventory):
    model = inventory.objects[0]
    assert model[0].weight in inventory
    assert torch.ones(4, 4) not in inventory
    assert 7 not in inventory


def test_an_unknown_path_is_an_error_with_close_matches(inventory):
    assert "model[0].wieght" not in inventory
    with pytest.raises(KeyError, match=r"no tensor at 'model\.0\.wieght'\. Did you mean .*'model.0.weight'"):
        inventory["model.0.wieght"]
    with pytest.raises(KeyError, match=r"no tensor at 'xyzzy'\"$"):
        inventory["xyzzy"]
    with pytest.raises(IndexError):
        inventory[len(inventory)]


def test_an_unknown_path_of_a_large_state_is_an_error_too():
    model = nn.Module()
    model.table = {f"row {index}": torch.zeros(1) for index in range(6000)}
    with pytest.raises(KeyError, match=r"no tensor at 'model\.missing'"):
        tm.survey(model)["model.missing"]
    large = tm.survey(nn.Sequential(*(nn.Linear(1, 1) for _ in range(2000))))
    with pytest.raises(KeyError, match=r"Did you mean 'model\.1999\.weight'"):
        large["model.1999.wieght"]


@pytest.mark.parametrize(
    ("pattern", "count"),
    [
        ("", 15),
        ("model", 10),
        ("model.0", 4),
        ("model[1].weight", 1),
        ("*.weight", 4),
        ("model.0.w", 0),
        ("*'momentum_buffer'*", 5),
    ],
)
def test_a_pattern_selects_as_keep_does(inventory, pattern, count):
    assert len(inventory.select(pattern)) == count


def test_a_selection_is_sorted(inventory):
    sizes = [entry.nbytes for entry in inventory.select(sort="bytes")]
    assert sizes == sorted(sizes, reverse=True)
    paths = [str(entry.path) for entry in inventory.select("model", sort="path")]
    assert paths == sorted(paths)
    first = inventory.select(sort="parameters")[0]
    assert (str(first.path), first.role) == ("model[0].weight", "parameter")


def test_a_selection_prints_what_it_holds_and_what_it_shares(inventory):
    text = str(inventory.select("model.0.weight"))
    assert text.splitlines()[0] == "model, optimizer: 2 tensors of 15 match 'model.0.weight', in storages of 128 B"
    assert "is model[1].weight" in text
    assert "model[2]" not in text
    assert str(inventory.select("nothing")) == "model, optimizer: 0 tensors of 15 match 'nothing'"
