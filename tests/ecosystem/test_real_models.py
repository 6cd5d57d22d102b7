"""Real models from real libraries, in mid-training: moved away and back, they train on as if nothing had been.

They need torchvision and transformers, and are skipped by name where those are not installed.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import torchmove as tm

STEPS_BEFORE, STEPS_AFTER = 3, 5


class Training(NamedTuple):
    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss_of: Callable[[nn.Module, Tensor], Tensor]

    def steps(self, batches: list[Tensor]) -> list[float]:
        losses = []
        for batch in batches:
            self.optimizer.zero_grad()
            loss = self.loss_of(self.model, batch)
            loss.backward()
            self.optimizer.step()
            losses.append(loss.item())
        return losses

    def bits(self) -> dict[str, Tensor]:
        named = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        for index, values in enumerate(self.optimizer.state.values()):
            named |= {f"{index} {key}": value for key, value in values.items()}
        return {name: value.detach().cpu().reshape(-1).view(torch.uint8).clone() for name, value in named.items()}


def resnet(size: str) -> tuple[Training, Callable[[], Tensor]]:
    torchvision = pytest.importorskip("torchvision")
    model = torchvision.models.resnet50() if size == "full" else torchvision.models.resnet18()
    optimizer = torch.optim.AdamW(model.parameters())
    edge = 224 if size == "full" else 32
    return Training(model, optimizer, lambda net, batch: net(batch).square().mean()), lambda: torch.randn(
        2, 3, edge, edge
    )


def gpt2(size: str) -> tuple[Training, Callable[[], Tensor]]:
    transformers = pytest.importorskip("transformers")
    small = (
        {}
        if size == "full"
        else {
            "bos_token_id": 0,
            "eos_token_id": 0,
            "n_layer": 2,
            "n_embd": 48,
            "n_head": 4,
            "vocab_size": 200,
            "n_positions": 64,
        }
    )
    config = transformers.GPT2Config(
        **small, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, attn_implementation="eager"
    )
    model = transformers.GPT2LMHeadModel(config)
    assert model.lm_head.weight is model.transformer.wte.weight

    def loss_of(net: Any, batch: Tensor) -> Tensor:
        return net(batch, labels=batch).loss  # type: ignore[no-any-return]

    training = Training(model, torch.optim.AdamW(model.parameters()), loss_of)
    return training, lambda: torch.randint(config.vocab_size, (2, 32))


@pytest.fixture(autouse=True)
def _the_same_every_time(monkeypatch) -> Iterator[None]:
    """Two runs of one training on a GPU differ in the last bits, unless asked not to."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", os.environ.get("CUBLAS_WORKSPACE_CONFIG", ":4096:8"))
    torch.use_deterministic_algorithms(True)
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True):
        yield
    torch.use_deterministic_algorithms(False)


def goes_on(make: Callable[[str], Any], size: str, home: str, away: str, mover: str) -> None:
    torch.manual_seed(0)
    training, batch = make(size)
    before, after = ([batch().to(home) for _ in range(count)] for count in (STEPS_BEFORE, STEPS_AFTER))
    tm.move(training.model, training.optimizer, to=home)
    training.steps(before)
    unmoved = copy.deepcopy(training)
    objects = [id(parameter) for parameter in training.model.parameters()]
    for device in (away, home):
        tm.move(training.model, training.optimizer, to=device, mover=mover, verify="bytes")
    assert [id(parameter) for parameter in training.model.parameters()] == objects
    assert training.steps(after) == unmoved.steps(after)
    ours, theirs = training.bits(), unmoved.bits()
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []


@pytest.mark.parametrize("make", [resnet, gpt2])
def test_on_the_cpu(make):
    goes_on(make, "small", "cpu", "twin:0", "auto")


@pytest.mark.cuda
@pytest.mark.parametrize("mover", ["plain", "staged"])
@pytest.mark.parametrize("make", [resnet, gpt2])
def test_on_a_gpu(make, mover):
    goes_on(make, "full", "cuda:0", "cpu", mover)
