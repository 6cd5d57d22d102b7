"""Averages of weights: ema-pytorch, torch-ema, timm's, and torch's own, beside the model that they follow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from lives import Life, goes_on, library, registered, trained
from torch import nn
from torch.optim import swa_utils

import torchmove as tm


def of_ema_pytorch(model: nn.Module) -> Any:
    return library("ema_pytorch").EMA(model, beta=0.9, update_every=1, update_after_step=0)


def of_ema_pytorch_outside(model: nn.Module) -> Any:
    return library("ema_pytorch").EMA(model, beta=0.9, update_every=1, include_online_model=False)


def of_torch_ema(model: nn.Module) -> Any:
    return library("torch_ema").ExponentialMovingAverage(model.parameters(), decay=0.9)


def of_timm(model: nn.Module) -> Any:
    return library("timm.utils").ModelEmaV3(model, decay=0.9, device="cpu")


def of_torch(model: nn.Module) -> Any:
    return swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9), use_buffers=True)


AVERAGES: dict[str, Callable[[nn.Module], Any]] = {
    "ema-pytorch": of_ema_pytorch,
    "ema-pytorch outside": of_ema_pytorch_outside,
    "torch-ema": of_torch_ema,
    "timm": of_timm,
    "torch": of_torch,
}


def update(average: Any, model: nn.Module) -> None:
    if isinstance(average, swa_utils.AveragedModel):
        average.update_parameters(model)
    elif hasattr(average, "shadow_params"):
        average.update()
        with average.average_parameters():  # as for a validation in between
            pass
    elif type(average).__name__ == "ModelEmaV3":
        average.update(model)
    else:
        average.update()


def weights(average: Any) -> dict[str, torch.Tensor]:
    if hasattr(average, "shadow_params"):
        return {f"average {index}": tensor for index, tensor in enumerate(average.shadow_params)}
    return {f"average {name}": tensor for name, tensor in registered(average).items() if not name.endswith(".grad")}


@pytest.mark.parametrize("kind", AVERAGES)
def test_an_average_follows_on(kind, route):
    def make() -> Life:
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        average = AVERAGES[kind](model)
        life = trained(
            model, optimizer, lambda device: model(torch.randn(6, 4).to(device)).square().mean(), None, average
        )
        train, tensors = life.live, life.tensors

        def live() -> Any:
            losses = train()
            update(average, model)
            return losses

        life.live = live
        life.tensors = lambda: {**tensors(), **weights(average)}
        return life

    goes_on(make, route)


def test_the_device_that_timms_average_remembers_follows(twin):
    model = nn.Linear(2, 2)
    average = of_timm(model)
    assert average.device == "cpu"
    tm.move(model, average, to="twin:0")
    assert average.device == "twin"


def test_weights_that_torch_ema_has_stored_can_be_restored_after_a_move(twin):
    model = nn.Linear(2, 2)
    average = of_torch_ema(model)
    before = model.weight.detach().clone()
    average.store()
    average.copy_to()
    with torch.no_grad():
        model.weight.zero_()
    tm.move(model, average, to="twin:0")
    average.restore()
    assert torch.equal(model.weight.cpu(), before)


def test_to_leaves_the_shadow_of_torch_ema_behind(twin):
    model = nn.Linear(2, 2)
    average = of_torch_ema(model)
    model.to("twin:0")
    assert {tensor.device.type for tensor in average.shadow_params} == {"cpu"}
    with pytest.raises((RuntimeError, ValueError)):
        average.update(model.parameters())
    average.to("twin:0")
    with pytest.raises(ValueError, match="garbage"):  # and the parameters it knew are gone, where they are replaced
        average.update()
