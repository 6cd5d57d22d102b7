"""Libraries of which torchmove knows nothing, beside `.to()` or a start on the target: schedules, noise, codebooks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from laws import bits
from lives import Life, goes_on, library, registered, state_of, told, trained
from torch import Tensor, nn

import torchmove as tm

MONAI = {"DDPMScheduler": {}, "DDIMScheduler": {}, "PNDMScheduler": {"skip_prk_steps": True}}


class Sampling:
    def __init__(self, name: str, device: torch.device) -> None:
        schedulers = library("monai.networks.schedulers")
        self.scheduler = getattr(schedulers, name)(num_train_timesteps=100, **MONAI[name])
        self.sample, self.step = torch.randn(2, 3, 4, 4).to(device), 0
        self.scheduler.set_timesteps(10, device=device)

    def go_on(self) -> Tensor:
        for _ in range(3):
            time = self.scheduler.timesteps[self.step]
            noise = torch.randn(2, 3, 4, 4).to(self.sample.device)
            self.sample = self.scheduler.step(noise, time, self.sample)[0]
            self.step += 1
        return self.sample


@pytest.mark.parametrize("name", MONAI)
def test_a_sampling_of_monai_goes_on(name, cpu_route):
    def make() -> Life:
        sampling = Sampling(name, cpu_route.home)

        def tensors() -> dict[str, Tensor]:
            plain = {key: each for key, each in vars(sampling.scheduler).items() if isinstance(each, Tensor)}
            return {**registered(sampling.scheduler), **plain, "sample": sampling.sample}

        return Life((sampling,), tensors, lambda: sampling.go_on().clone())

    goes_on(make, cpu_route)


@pytest.mark.parametrize("name", MONAI)
def test_a_sampling_of_monai_goes_on_where_it_moved(name, twin):
    native, moved = Sampling(name, torch.device("twin:0")), Sampling(name, torch.device("cpu"))
    moved.sample.copy_(native.sample.cpu())
    for each in (native, moved):
        torch.manual_seed(1)
        each.go_on()
    tm.move(moved, to="twin:0")
    for each in (native, moved):
        torch.manual_seed(1)
        assert each.go_on().device == torch.device("twin:0")
    assert moved.scheduler.timesteps.device == native.scheduler.timesteps.device


def test_noise_of_torchsde_goes_on_from_its_tree(route):
    torchsde = library("torchsde")

    def make() -> Life:
        noise = torchsde.BrownianInterval(0.0, 1.0, size=(2, 3), entropy=7, device=route.home)
        return Life((noise,), dict, lambda: [noise(0.0, 0.25), noise(0.25, 0.5), noise(0.1, 0.9)])

    def says_so(life: Life, device: torch.device) -> None:
        assert life.objects[0].device == device

    goes_on(make, route, says_so)


QUANTIZERS: dict[str, Any] = {
    "VectorQuantize": {"dim": 8, "codebook_size": 16, "kmeans_init": True, "threshold_ema_dead_code": 1},
    "ResidualVQ": {"dim": 8, "num_quantizers": 2, "codebook_size": 16},
    "FSQ": {"levels": [4, 4, 4], "dim": 8},
    "LFQ": {"dim": 8, "codebook_size": 16},
}


@pytest.mark.parametrize("name", QUANTIZERS)
def test_a_codebook_learns_on(name, route):
    def make() -> Life:
        quantizer = getattr(library("vector_quantize_pytorch"), name)(**QUANTIZERS[name])
        before = nn.Linear(8, 8)
        model = nn.ModuleList([before, quantizer])
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

        def loss_of(device: torch.device) -> Tensor:
            found = quantizer(before(torch.randn(2, 6, 8).to(device)))[0]
            return found.square().mean()

        return trained(model, optimizer, loss_of)

    goes_on(make, route)


SEGMENTED = ("Unet", "FPN", "Linknet", "PSPNet", "MAnet")


@pytest.mark.parametrize("name", SEGMENTED)
def test_a_segmentation_is_where_to_would_put_it_and_sees_the_same(name, twin):
    make = getattr(library("segmentation_models_pytorch"), name)
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(make(encoder_name="resnet18", encoder_weights=None, classes=2).eval())
    native, moved = models
    native.to("twin:0")
    tm.move(moved, to="twin:0")
    ours, theirs = registered(moved), registered(native)
    assert {path: (each.device, bits(each)) for path, each in ours.items()} == {
        path: (each.device, bits(each)) for path, each in theirs.items()
    }
    seen = torch.rand(1, 3, 64, 64).to("twin:0")
    with torch.no_grad():
        assert told(moved(seen)) == told(native(seen))


METRIC = {
    "ArcFaceLoss": {"num_classes": 3, "embedding_size": 8},
    "ProxyNCALoss": {"num_classes": 3, "embedding_size": 8},
    "SubCenterArcFaceLoss": {"num_classes": 3, "embedding_size": 8},
    "CrossBatchMemory": {"embedding_size": 8, "memory_size": 32},
    "TripletMarginLoss": {},
}


@pytest.mark.parametrize("name", METRIC)
def test_a_metric_loss_learns_on(name, cpu_route):
    losses = library("pytorch_metric_learning.losses")

    def make() -> Life:
        given = {"loss": losses.ContrastiveLoss()} if name == "CrossBatchMemory" else {}
        loss, model = getattr(losses, name)(**given, **METRIC[name]), nn.Linear(4, 8)
        optimizer = torch.optim.AdamW([*model.parameters(), *loss.parameters()], lr=1e-2)

        def live() -> Any:
            optimizer.zero_grad()
            device = model.weight.device
            value = loss(model(torch.randn(6, 4).to(device)), torch.randint(3, (6,)).to(device))
            value.backward()
            optimizer.step()
            return value.detach()

        return Life(
            (model, loss, optimizer),
            lambda: registered(model, loss) | state_of(optimizer),
            live,
            lambda: state_of(optimizer, steps=True),
        )

    goes_on(make, cpu_route)
