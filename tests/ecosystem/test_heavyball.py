"""heavyball: optimizers that look their state up by the address of a parameter."""

from __future__ import annotations

import pytest
import torch
from lives import Life, goes_on, library, trained

import torchmove as tm

heavyball = library("heavyball")


@pytest.fixture(autouse=True)
def _not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heavyball.utils, "compile_mode", None)


def life_of(name: str) -> Life:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 3))
    optimizer = getattr(heavyball, name)(model.parameters(), lr=1e-2)
    life = trained(model, optimizer, lambda device: model(torch.ones(2, 4, device=device)).square().mean())
    life.tensors, life.stays = lambda: dict(model.named_parameters()), dict
    return life


@pytest.mark.parametrize("name", ["AdamW", "Muon"])
def test_an_optimizer_trains_on(name, cpu_route):
    goes_on(lambda: life_of(name), cpu_route)


def test_the_devices_in_its_keys_are_one_note(twin):
    life = life_of("AdamW")
    life.live()
    (note,) = tm.move(*life.objects, to="twin:0").plan.notes
    assert note.code == "N040"
    assert note.path.endswith(".mapping_inverse)[0][3] ... and 3 more")
