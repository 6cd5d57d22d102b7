"""torchao: quantised weights and optimizer states are tensors made of tensors, and move with what is inside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from lives import Life, goes_on, library, registered, state_of, trained
from torch import nn

quantization = library("torchao.quantization")
optimizers = library("torchao.optim")

# int4 needs kernels of their own on every device, and those for the CPU are not in PyPI's wheel.
WEIGHTS: dict[str, Callable[[], Any]] = {
    "int8": quantization.Int8WeightOnlyConfig,
    "int8 dynamic": quantization.Int8DynamicActivationInt8WeightConfig,
    "int4": lambda: quantization.IntxWeightOnlyConfig(weight_dtype=torch.int4),
    "float8": quantization.Float8WeightOnlyConfig,
}


def inside(model: nn.Module) -> dict[str, torch.Tensor]:
    found = registered(model)
    for name, parameter in model.named_parameters():
        if hasattr(parameter, "__tensor_flatten__"):
            names, _ = parameter.__tensor_flatten__()
            found |= {f"{name}.{part}": getattr(parameter, part) for part in names}
    return found


@pytest.mark.parametrize("kind", WEIGHTS)
def test_a_quantized_model_predicts_on(kind, route):
    def make() -> Life:
        model = nn.Sequential(*(nn.Linear(64, 64, dtype=torch.bfloat16) for _ in range(2))).requires_grad_(False)
        quantization.quantize_(model, WEIGHTS[kind]())
        assert "0.weight.qdata" in inside(model)

        def live() -> torch.Tensor:
            return model(torch.randn(3, 64, dtype=torch.bfloat16).to(model[0].weight.device))  # type: ignore[no-any-return]

        return Life((model,), lambda: inside(model), live)

    goes_on(make, route)


@pytest.mark.parametrize("name", ["AdamW8bit", "AdamW4bit", "AdamWFp8"])
def test_an_optimizer_of_few_bits_trains_on(name, cpu_route):
    def make() -> Life:
        model = nn.Sequential(nn.Linear(128, 64), nn.Linear(64, 4))
        optimizer = getattr(optimizers, name)(model.parameters(), lr=1e-2)
        assert optimizer.param_groups[0]["lr"].device.type == "cpu"
        life = trained(model, optimizer, lambda device: model(torch.randn(3, 128).to(device)).square().mean())
        life.tensors = lambda: registered(model) | state_of(optimizer) | coded(optimizer)
        return life

    goes_on(make, cpu_route)


def coded(optimizer: Any) -> dict[str, torch.Tensor]:
    states = {name: value for name, value in state_of(optimizer).items() if hasattr(value, "codes")}
    return {f"{name}.{part}": getattr(value, part) for name, value in states.items() for part in ("codes", "scale")}


def test_to_leaves_the_state_of_the_optimizer_behind(twin):
    model = nn.Linear(128, 64)
    optimizer = optimizers.AdamW8bit(model.parameters())
    model(torch.ones(2, 128)).sum().backward()
    optimizer.step()
    model.to("twin:0")
    assert {tensor.device.type for tensor in state_of(optimizer).values()} == {"cpu"}
