"""e3nn and MACE, with their code generated as TorchScript; and whole models of them as one program."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from lives import goes_on, library, trained
from torch import Tensor, nn

e3nn = library("e3nn")
jit = library("e3nn.util.jit")
o3 = library("e3nn.o3")
layers = library("e3nn.nn")


@pytest.fixture(autouse=True)
def _as_programs() -> Iterator[None]:
    before = e3nn.get_optimization_defaults()
    e3nn.set_optimization_defaults(jit_mode="script")
    yield
    e3nn.set_optimization_defaults(**before)


def programs_in(model: nn.Module) -> int:
    return sum(isinstance(module, torch.jit.ScriptModule) for module in model.modules())


class Equivariant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.product = o3.FullyConnectedTensorProduct("2x0e+1x1o", "1x0e+1x1o", "3x0e+1x1o")
        self.gate = layers.Gate("2x0e", [torch.relu], "1x0e", [torch.sigmoid], "1x1o")
        self.linear = o3.Linear(self.gate.irreps_out, "1x0e")

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.gate(self.product(x[:, :5], x[:, 5:])))


def atoms(device: Any) -> dict[str, Tensor]:
    molecule = {
        "positions": torch.tensor([[0.0, 0.0, 0.0], [0.9, 0.0, 0.0], [0.0, 0.9, 0.1]]),
        "node_attrs": torch.tensor([[0.0, 1.0], [1.0, 0.0], [1.0, 0.0]]),
        "edge_index": torch.tensor([[0, 0, 1, 1, 2, 2], [1, 2, 0, 2, 0, 1]]),
        "shifts": torch.zeros(6, 3),
        "unit_shifts": torch.zeros(6, 3),
        "cell": torch.zeros(3, 3),
        "batch": torch.zeros(3, dtype=torch.long),
        "ptr": torch.tensor([0, 3]),
        "head": torch.zeros(1, dtype=torch.long),
    }
    return {name: tensor.to(device) for name, tensor in molecule.items()}


def mace() -> nn.Module:
    modules = library("mace.modules")
    block = modules.interaction_classes["RealAgnosticResidualInteractionBlock"]
    made: nn.Module = modules.ScaleShiftMACE(
        r_max=5.0,
        num_bessel=4,
        num_polynomial_cutoff=3,
        max_ell=2,
        interaction_cls=block,
        interaction_cls_first=block,
        num_interactions=2,
        num_elements=2,
        hidden_irreps=o3.Irreps("4x0e + 4x1o"),
        MLP_irreps=o3.Irreps("4x0e"),
        gate=torch.nn.functional.silu,
        atomic_energies=torch.tensor([1.0, 2.0]).numpy(),
        avg_num_neighbors=3,
        atomic_numbers=[1, 8],
        correlation=2,
        radial_type="bessel",
        atomic_inter_scale=1.0,
        atomic_inter_shift=0.0,
    )
    return made


def equivariant(model: nn.Module, device: Any) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return model(torch.randn(3, 9, generator=generator).to(device)).square().mean()


def energy(model: nn.Module, device: Any) -> Tensor:
    return model(atoms(device), training=True)["energy"].square().mean()


MODELS = {"e3nn": (Equivariant, equivariant), "MACE": (mace, energy)}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_with_programs_in_it_trains_on(name, route):
    make, loss = MODELS[name]

    def life() -> Any:
        model = make()
        assert programs_in(model) > 3
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        return trained(model, optimizer, lambda device: loss(model, device), None)

    goes_on(life, route)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_that_is_a_program_trains_on(name, cpu_route):  # torch indexes in no program on the twin
    make, loss = MODELS[name]

    def life() -> Any:
        model = jit.script(make())
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        return trained(model, optimizer, lambda device: loss(model, device), None)

    goes_on(life, cpu_route)
