"""tensordict: it remembers a device, also in what is nested and cached; files and shared memory are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lives import Life, goes_on, library, registered, trained
from torch import nn

import torchmove as tm

tensordict = library("tensordict")
td_nn = library("tensordict.nn")
TensorDict = tensordict.TensorDict


def nested() -> Any:
    inner = {"b": torch.randn(2, 1), "deep": {"c": torch.arange(2)}}
    return TensorDict({"a": torch.randn(2, 3), "inner": inner}, batch_size=[2], device="cpu")


def stacked() -> Any:
    """Parts of different shapes, which cannot be one tensor."""
    parts = [TensorDict({"a": torch.randn(size), "b": torch.randn(2)}, [], device="cpu") for size in (2, 3)]
    return tensordict.lazy_stack(parts)


def locked() -> Any:
    made = nested().lock_()
    made.flatten_keys()  # it keeps what it has made
    return made


KINDS = {"nested": nested, "lazy stack": stacked, "locked": locked}


def leaves(made: Any, name: str = "") -> dict[str, torch.Tensor]:
    if isinstance(made, torch.Tensor):
        return {name: made}
    inside = enumerate(made.tensordicts) if hasattr(made, "tensordicts") else made.items()
    return {path: leaf for key, each in inside for path, leaf in leaves(each, f"{name} {key}").items()}


@pytest.mark.parametrize("kind", KINDS)
def test_it_moves_and_knows_where_it_is(kind, route):
    def make() -> Life:
        made = KINDS[kind]()

        def live() -> Any:
            doubled = made.apply(lambda tensor: tensor * 2)
            return [doubled.device == made.device, *leaves(doubled).values()]

        return Life((made,), lambda: leaves(made), live)

    def where(life: Life, device: torch.device) -> None:
        made = life.objects[0]
        assert made.device == device
        for inner in (made["inner"], made["inner", "deep"]) if kind != "lazy stack" else made.tensordicts:
            assert inner.device == device
        if kind == "nested":
            made["new"] = torch.zeros(2)  # it is sent to where the rest is
            assert made["new"].device == device
            del made["new"]

    goes_on(make, route, where)


def test_a_tensorclass_moves(route):
    @tensordict.tensorclass
    class Sample:
        image: torch.Tensor
        label: str

    def make() -> Life:
        sample = Sample(image=torch.randn(2, 3), label="x", batch_size=[2], device="cpu")
        return Life((sample,), lambda: {"image": sample.image}, lambda: sample.image * 2)

    def where(life: Life, device: torch.device) -> None:
        assert life.objects[0].device == device
        assert life.objects[0].label == "x"

    goes_on(make, route, where)


def test_modules_and_parameters_train_on(route):
    def make() -> Life:
        first = td_nn.TensorDictModule(nn.Linear(3, 4), in_keys=["x"], out_keys=["hidden"])
        last = td_nn.TensorDictModule(nn.Linear(4, 2), in_keys=["hidden"], out_keys=["y"])
        model = td_nn.TensorDictSequential(first, last)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

        def loss_of(device: torch.device) -> torch.Tensor:
            return model(TensorDict({"x": torch.randn(5, 3)}, [5], device=device))["y"].square().mean()

        return trained(model, optimizer, loss_of)

    goes_on(make, route)


def test_parameters_in_a_tensordict_stay_those_of_the_module(route):
    def make() -> Life:
        net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
        held = td_nn.TensorDictParams(TensorDict.from_module(net).to("cpu"))
        optimizer = torch.optim.AdamW(held.parameters(), lr=1e-2)
        life = trained(net, optimizer, lambda device: net(torch.randn(5, 3).to(device)).square().mean(), None, held)
        tensors = life.tensors
        life.tensors = lambda: {**tensors(), **registered(held)}
        return life

    def where(life: Life, device: torch.device) -> None:
        net, *_, held = life.objects
        assert held.device in (device, None)
        assert held["0", "weight"] is net[0].weight

    goes_on(make, route, where)


@pytest.mark.parametrize("how", ["memmap_", "share_memory_"])
def test_files_and_shared_memory_are_refused_and_the_remedy_works(how, twin):
    made = getattr(nested(), how)()
    with pytest.raises(tm.MoveRefused) as error:
        tm.move(made, to="twin:0")
    assert {refusal.code for refusal in error.value.refusals} == {"R035"}
    assert leaves(made)[" a"].device.type == "cpu"
    td = made.clone()
    tm.move(td, to="twin:0")
    assert td.device == torch.device("twin:0")
    module = nn.Linear(2, 2)
    module.replay = made
    tm.move(module, to="twin:0", keep=[made])
    assert module.weight.device.type == "twin"
    assert leaves(made)[" a"].device.type == "cpu"


def test_to_of_a_module_leaves_its_tensordicts_behind(twin):
    module = nn.Linear(2, 2)
    module.replay = nested()
    module.to("twin:0")
    assert module.replay["a"].device.type == "cpu"
