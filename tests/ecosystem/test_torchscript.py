"""Models of libraries as TorchScript, scripted or traced, alone and in a trainer's model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lives import goes_on, library, trained
from torch import nn

import torchmove as tm

torchvision = library("torchvision")
timm = library("timm")

IMAGES = torch.linspace(-1, 1, 2 * 3 * 32 * 32).view(2, 3, 32, 32)


def scripted_resnet() -> nn.Module:
    return torch.jit.script(torchvision.models.resnet18(num_classes=3))


def traced_transformer() -> nn.Module:
    model = timm.create_model("vit_tiny_patch16_224", num_classes=3, img_size=32, depth=2)
    return torch.jit.trace(model, IMAGES, check_trace=False)


def scripted_transformer() -> nn.Module:
    return torch.jit.script(timm.create_model("convnext_atto", num_classes=3, scriptable=True, depths=(1, 1, 1, 1)))


def segmentation() -> nn.Module:
    smp = library("segmentation_models_pytorch")
    return torch.jit.script(smp.Unet("resnet18", encoder_weights=None, classes=2))


MODELS = {
    "torchvision": scripted_resnet,
    "timm, traced": traced_transformer,
    "timm, scripted": scripted_transformer,
    "segmentation_models_pytorch": segmentation,
}


@pytest.mark.parametrize("name", MODELS)
def test_a_program_trains_on(name, cpu_route):
    def life() -> Any:
        model = MODELS[name]()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        return trained(model, optimizer, lambda device: model(IMAGES.to(device)).square().mean())

    goes_on(life, cpu_route)


def test_a_traced_language_model_is_refused_for_what_is_baked_in(twin):
    """Positions and masks are made on the device that the example was on."""
    transformers = library("transformers")
    sizes = {"n_embd": 8, "n_layer": 1, "n_head": 1, "vocab_size": 10, "n_positions": 8}
    config = transformers.GPT2Config(**sizes, use_cache=False, return_dict=False)
    model = transformers.GPT2Model(config).eval()
    program = torch.jit.trace(model, torch.ones(1, 4, dtype=torch.long), check_trace=False)
    refusals = tm.plan(program, to="twin:0").refusals
    assert {refusal.code for refusal in refusals} == {"R022"}
    assert "on cpu" in refusals[0].why or "device='cpu'" in refusals[0].why
    assert "modeling_gpt2.py:" in refusals[0].why or "masking_utils.py:" in refusals[0].why
