"""accelerate: what it has prepared moves; what it has dispatched is refused, and the remedy works."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from lives import Life, goes_on, library, trained
from torch import nn

import torchmove as tm
from torchmove.testing import refresh

accelerate = library("accelerate")


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    yield
    forget()


def forget() -> None:
    """accelerate remembers for the whole process."""
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()


def model_of(width: int = 8) -> nn.Module:
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.BatchNorm1d(width), nn.Linear(width, 2))


def prepared() -> tuple[Any, Any, Any, Any, Any]:
    forget()
    accelerator = accelerate.Accelerator(cpu=True)
    model = model_of()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(8, 4)), batch_size=4)
    return accelerator, *accelerator.prepare(model, optimizer, scheduler, loader)


def test_what_was_prepared_trains_on(route):
    def make() -> Life:
        _, model, optimizer, scheduler, _ = prepared()
        return trained(model, optimizer, lambda device: model(torch.randn(3, 4).to(device)).square().mean(), scheduler)

    goes_on(make, route)


def test_the_accelerator_and_its_loaders_know_the_new_device(twin):
    accelerator, model, optimizer, scheduler, loader = prepared()
    tm.move(accelerator, to="twin:0")
    home = torch.device("twin:0")
    assert accelerator.device == home
    assert accelerate.state.AcceleratorState().device == accelerate.PartialState().device == home
    for (batch,) in loader:
        assert batch.device == home
        accelerator.backward(model(batch).square().mean())
        optimizer.step()
        scheduler.step()
    assert {value["exp_avg"].device for value in optimizer.optimizer.state.values()} == {home}
    tm.move(accelerator, to="cpu")
    assert accelerator.device == accelerate.PartialState().device == torch.device("cpu")
    assert {batch.device.type for (batch,) in loader} == {"cpu"}


def test_to_leaves_the_state_the_loaders_and_the_optimizer_behind(twin):
    accelerator, model, optimizer, _, loader = prepared()
    model(next(iter(loader))[0]).sum().backward()
    optimizer.step()
    model.to("twin:0")
    assert accelerator.device.type == "cpu"
    assert {batch.device.type for (batch,) in loader} == {"cpu"}
    assert {value["exp_avg"].device.type for value in optimizer.optimizer.state.values()} == {"cpu"}


def offloaded(model: nn.Module, tmp_path: Any) -> nn.Module:
    return accelerate.cpu_offload(model, execution_device=torch.device("cpu"))  # type: ignore[no-any-return]


def dispatched(model: nn.Module, tmp_path: Any) -> nn.Module:
    where = {"0": "cpu", "1": "cpu", "2": "cpu", "3": "disk"}
    return accelerate.dispatch_model(model, where, offload_dir=tmp_path)  # type: ignore[no-any-return]


@pytest.mark.parametrize("place", [offloaded, dispatched])
def test_what_accelerate_places_is_refused_and_the_remedy_works(place, tmp_path, twin):
    model = model_of()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model = place(model, tmp_path)
    with pytest.raises(tm.MoveRefused) as error:
        tm.move(model, to="twin:0")
    told = {refusal.code: refusal.remedy for refusal in error.value.refusals}
    assert "remove_hook_from_submodules(model)" in told["R024"]
    accelerate.hooks.remove_hook_from_submodules(model)
    tm.move(model, to="twin:0", verify="bytes")
    assert {parameter.device.type for parameter in model.parameters()} == {"twin"}
    tm.move(model, to="cpu")
    after = model.state_dict()
    assert [name for name in before if not torch.equal(before[name], after[name])] == []
    assert model(torch.ones(2, 4)).shape == (2, 2)


def test_a_model_dispatched_to_one_device_has_no_hooks_and_moves(twin):
    model = accelerate.dispatch_model(model_of(), {"": "cpu"})
    tm.move(model, to="twin:0")
    assert model.hf_device_map == {"": "twin"}
    refresh(model)


def test_a_model_in_mixed_precision_moves_with_its_wrapped_forward(twin):
    """Mixed precision wraps the model's forward in functions of accelerate's own: they hold the model, no tensor."""
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision="bf16")
    model = accelerator.prepare(model_of())
    tm.move(model, to="twin:0")
    assert model(torch.ones(2, 4, device="twin:0")).device.type == "twin"
