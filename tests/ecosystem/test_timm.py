"""timm: vision models, with relative positions, rotary tables and optimizers of timm's own."""

from __future__ import annotations

import pytest
import torch
from lives import Life, goes_on, library, trained

timm = library("timm")
optim = library("timm.optim")

MODELS = {
    "resnet10t": {},
    "vit_tiny_patch16_224": {"img_size": 32, "depth": 2},
    "swin_tiny_patch4_window7_224": {"img_size": 32, "depths": (1, 1, 1, 1), "embed_dim": 24, "window_size": 4},
    "eva02_tiny_patch14_224": {"img_size": 28, "depth": 2},
    "vit_small_patch16_dinov3": {"img_size": 32, "depth": 2},
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_trains_on(name, route):
    def make() -> Life:
        model = timm.create_model(name, num_classes=3, **MODELS[name])
        edge = MODELS[name].get("img_size", 32)
        optimizer = optim.create_optimizer_v2(model, opt="adamw", lr=1e-3, layer_decay=0.8)
        return trained(model, optimizer, lambda device: model(torch.randn(2, 3, edge, edge).to(device)).square().mean())

    goes_on(make, route)


@pytest.mark.parametrize("name", ["lookahead_adamw", "lamb", "adafactorbv", "muon"])
def test_an_optimizer_of_timm_trains_on(name, route):
    def make() -> Life:
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 4))
        optimizer = optim.create_optimizer_v2(model, opt=name, lr=1e-2)
        return trained(model, optimizer, lambda device: model(torch.randn(3, 8).to(device)).square().mean())

    goes_on(make, route)
