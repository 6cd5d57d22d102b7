"""The summary by module: what counts where, that everything counts once, and that the parts add up."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from zoo import ZOO

import torchmove as tm


class Block(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
        self.linear = nn.Linear(width, width)
        self.cache = {"seen": [torch.ones(3)]}  # not registered

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.norm(x))


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(5, 4)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.act = nn.ReLU()
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.act(x))


def in_mid_training() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = Language()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.arange(5)).sum().backward()
    optimizer.step()
    return model, optimizer


def rows(summary: tm.Summary) -> dict[str, object]:
    return {str(row.path): row for row in summary.modules}


def test_a_row_has_what_the_module_itself_says():
    model, optimizer = in_mid_training()
    found = rows(tm.survey(model, optimizer).summary(depth=3))
    for path, module in [
        ("model", model),
        ("model.blocks", model.blocks),
        ("model.blocks[1]", model.blocks[1]),
        ("model.blocks[1].norm", model.blocks[1].norm),
    ]:
        row, parameters = found[path], [*module.parameters()]
        states = [optimizer.state[each] for each in parameters]
        assert row.type == type(module).__name__
        assert row.parameters == row.trainable == sum(each.numel() for each in parameters)
        assert row.parameter_bytes == sum(each.nbytes for each in parameters)
        assert row.buffer_bytes == sum(each.nbytes for each in module.buffers())
        assert row.gradient_bytes == sum(each.grad.nbytes for each in parameters)
        assert row.state_bytes == sum(each.nbytes for state in states for each in state.values())


def test_a_plain_attribute_counts_in_the_module_that_holds_it():
    model, _ = in_mid_training()
    found = rows(tm.survey(model).summary(depth=2))
    assert found["model.blocks[0]"].other_bytes == model.blocks[0].cache["seen"][0].nbytes == 12
    assert found["model.blocks"].other_bytes == found["model"].other_bytes == 24
    assert "model.blocks[0].cache" not in rows(tm.survey(model).summary(depth=9))


@pytest.mark.parametrize(
    ("depth", "paths"), [(0, ["model"]), (1, ["model", "model.words", "model.blocks", "model.head"])]
)
def test_the_depth_limits_the_rows_and_not_the_bytes(depth, paths):
    model, optimizer = in_mid_training()
    shallow = tm.survey(model, optimizer).summary(depth)
    assert [str(row.path) for row in shallow.modules] == paths  # model.act holds no tensors
    assert shallow.nbytes == tm.survey(model, optimizer).summary(9).nbytes


def test_a_tied_weight_counts_once_and_the_summary_says_so():
    model, _ = in_mid_training()
    summary = tm.survey(model).summary()
    assert summary.parameters == sum(each.numel() for each in model.parameters())
    assert [(str(path), str(at)) for path, at in summary.counted_once] == [("model.head.weight", "model.words.weight")]
    assert "counted once: model.head.weight is model.words.weight" in str(summary)
    assert rows(summary)["model.head"].nbytes == 0


def test_parameters_that_share_a_storage_count_once():
    model = nn.ModuleList([nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)])
    model[1].weight = nn.Parameter(model[0].weight.detach())
    summary = tm.survey(model).summary()
    assert (summary.parameters, summary.nbytes) == (9, 36)
    assert "counted once: model[1].weight is model[0].weight" in str(summary)


def test_views_of_one_buffer_count_where_each_is():
    whole = torch.zeros(10)
    model = nn.ModuleList([nn.Module(), nn.Module()])
    for index, module in enumerate(model):
        module.weight = nn.Parameter(whole[5 * index : 5 * index + 5])
    summary = tm.survey(model).summary()
    assert [rows(summary)[f"model[{index}]"].nbytes for index in range(2)] == [20, 20]
    assert (summary.parameters, summary.counted_once) == (10, ())


def test_frozen_parameters_are_not_trainable():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].requires_grad_(requires_grad=False)
    summary = tm.survey(model).summary()
    assert (summary.parameters, summary.trainable) == (12, 6)
    assert "12 parameters, 6 of them trainable" in str(summary)
    assert [row.trainable for row in summary.modules] == [6, 0, 6]


def test_state_of_parameters_that_were_not_given_counts_in_the_optimizer():
    model, optimizer = in_mid_training()
    summary = tm.survey(optimizer).summary(0)
    (row,) = summary.modules
    states = [each for state in optimizer.state.values() for each in state.values()]
    assert row.state_bytes == sum(each.nbytes for each in states)
    assert row.parameters == sum(each.numel() for each in model.parameters())


def test_devices_and_dtypes_are_those_of_everything_below():
    model = nn.Sequential(nn.Linear(2, 2).half(), nn.Linear(2, 2, device="meta"))
    summary = tm.survey(model).summary()
    assert [row.devices for row in summary.modules] == [("cpu", "meta"), ("cpu",), ("meta",)]
    assert [row.dtypes for row in summary.modules] == [("float16", "float32"), ("float16",), ("float32",)]
    assert summary.parameters == 12


def test_an_uninitialized_parameter_has_no_elements():
    assert tm.survey(nn.LazyLinear(3)).summary().parameters == 0


def test_modules_of_one_level_are_sorted():
    model = nn.Sequential(*(nn.Linear(size, 1) for size in (3, 9, 5, *[1] * 8)))
    by_size = [str(row.path) for row in tm.survey(model).summary(sort="bytes").modules]
    assert by_size[:4] == ["model", "model[1]", "model[2]", "model[0]"]
    assert by_size == [str(row.path) for row in tm.survey(model).summary(sort="parameters").modules]
    by_path = [str(row.path) for row in tm.survey(model).summary(sort="path").modules]
    assert by_path == ["model", *(f"model[{index}]" for index in range(11))]


def test_a_pattern_counts_modules_with_the_gradients_and_state_of_their_parameters():
    model, optimizer = in_mid_training()
    whole, part = (tm.survey(model, optimizer).summary(3, pattern=pattern) for pattern in ("", "model.blocks.0"))
    assert rows(part)["model.blocks[0]"] == rows(whole)["model.blocks[0]"]
    assert part.nbytes == rows(whole)["model.blocks[0]"].nbytes
    assert "model.blocks[1]" not in rows(part)


@pytest.mark.parametrize(("given", "says"), [({"depth": -1}, "depth must be"), ({"sort": "size"}, "sort must be")])
def test_a_wrong_argument_is_an_error(given, says):
    with pytest.raises(ValueError, match=says):
        tm.survey(nn.Linear(1, 1)).summary(**given)


@pytest.mark.parametrize("name", ZOO)
def test_the_parts_add_up_to_the_inventory(name):
    inventory = tm.survey(*ZOO[name]().objects)
    for of in (inventory, inventory.archived()):
        summary = of.summary(9)
        roots = [row for row in summary.modules if not row.depth]
        assert summary.nbytes == sum(row.nbytes for row in roots) == inventory.nbytes
        assert sum(row.tensors for row in roots) == len(inventory)
        assert of.summary(0).modules == tuple(roots)
