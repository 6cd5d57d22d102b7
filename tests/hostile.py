"""One state with everything in it: a model in the middle of its training, and the whole zoo hanging on it."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from laws import addresses, bits, form
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor
from zoo import ZOO, numbers


class OwnApply(nn.Linear):
    """Does work of its own when it is moved, as nn.RNN does."""

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        result = super()._apply(fn, recurse)
        self.settled = getattr(self, "settled", 0) + 1
        return result


class Core(nn.Module):
    """The part that trains. Nearly all it holds has a say in its output."""

    def __init__(self) -> None:
        super().__init__()
        self.device, self.places = torch.device("cpu"), {"device": "cpu"}
        self.first, self.own, self.last = nn.Linear(4, 4), OwnApply(4, 4), nn.Linear(4, 4)
        self.last.weight = self.first.weight
        self.flat = numbers(24) / 24
        self.flat_one, self.flat_two = nn.Parameter(self.flat[:16].view(4, 4)), nn.Parameter(self.flat[16:20])
        self.register_buffer("expanded", numbers(4, 1).expand(4, 4))
        self.register_buffer("conj", torch.tensor([1 + 2j, 3 - 4j, 5j, 6]).conj())
        self.norm = nn.BatchNorm1d(4)
        self.found = {torch.device("cpu"): numbers(1)}
        self.table = _cached_table()
        self._hang_hooks(numbers(4) / 4, numbers(4) / 8, numbers(4) / 2, numbers(1) / 2)

    def _hang_hooks(self, scale: Tensor, shift: Tensor, bound: Tensor, factor: Tensor) -> None:
        self.first.weight.register_hook(lambda gradient: gradient * scale)
        self.flat_two.register_post_accumulate_grad_hook(functools.partial(_scale_gradient, scale))
        self.first.weight.quant_state = {"absmax": scale[1:]}
        self.own.register_forward_hook(lambda module, args, output: output + shift)
        self.own.register_forward_pre_hook(functools.partial(_shifted, bound))
        self.own.register_full_backward_hook(lambda module, grad_in, grad_out: (grad_in[0] * factor,))
        self.hooked = {"scale": scale, "shift": shift, "bound": bound, "factor": factor}

    def forward(self, x: Tensor) -> Tensor:
        x = self.last(self.own(self.norm(self.first(x)))) @ self.flat_one + self.flat_two
        return (x + self.table(4) + self.conj.imag) * self.expanded / self.found[self.device]


def _shifted(shift: Tensor, module: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
    return (args[0] + shift,)


def _scale_gradient(scale: Tensor, parameter: Tensor) -> None:
    parameter.grad.mul_(scale)


def _cached_table() -> Any:
    @functools.lru_cache
    def table(size: int) -> Tensor:
        return numbers(size)

    table(4)
    return table


class Snapshot(NamedTuple):
    """What a move that failed must leave as it was: windows at the same addresses share what they shared before."""

    identity: dict[str, int]
    bits: dict[str, bytes]
    forms: dict[str, tuple[Any, ...]]
    devices: dict[str, torch.device]
    addresses: dict[str, int]
    remembered: tuple[Any, ...]


@dataclass
class Hostile:
    core: Core
    optimizer: torch.optim.Optimizer
    tensors: dict[str, Tensor]

    @property
    def objects(self) -> tuple[Any, ...]:
        return self.core, self.optimizer

    def train(self) -> None:
        self.optimizer.zero_grad(set_to_none=False)
        device = self.core.first.weight.device
        self.core((numbers(4, 4) / 16).to(device)).square().mean().backward()
        self.optimizer.step()

    def snapshot(self) -> Snapshot:
        return Snapshot(
            {name: id(tensor) for name, tensor in self.tensors.items()},
            self.bits(),
            {name: form(tensor) for name, tensor in self.tensors.items()},
            {name: tensor.device for name, tensor in self.tensors.items()},
            addresses(self.tensors),
            (self.core.device, dict(self.core.places), list(self.core.found), list(self.core.scaler["found_inf"])),
        )

    def bits(self) -> dict[str, bytes]:
        return {name: bits(tensor) for name, tensor in self.tensors.items()}


# Its graph is alive until it moves for the first time; a survey then looks at every object of the process.
ANIMALS = tuple(name for name in ZOO if name != "old_weight_norm")


def hostile(animals: Iterable[str] = ANIMALS, *, special: bool = True) -> Hostile:
    """The same bits every time. `animals`: which of the zoo hang on it; `special`: with tensors made of tensors."""
    torch.manual_seed(0)
    core = Core()
    optimizer = torch.optim.AdamW(core.parameters(), lr=0.01)
    state = Hostile(core, optimizer, {})
    for _ in range(2):
        state.train()
    _bucket_gradients(core.flat_one, core.flat_two)
    core.scaler = {"scale": numbers(1), "found_inf": {torch.device("cpu"): numbers(1)}, "device": "cpu"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch announces that some of these are in beta
        special_tensors = _add_special_tensors(core) if special else {}
        zoo = {name: ZOO[name]() for name in animals}
    core.zoo = {name: each.objects for name, each in zoo.items()}
    state.tensors = _named_tensors(core, optimizer) | special_tensors
    for name, each in zoo.items():
        state.tensors |= {f"{name}.{inner}": tensor for inner, tensor in {**each.moves, **each.stays}.items()}
    return state


def _bucket_gradients(*parameters: nn.Parameter) -> None:
    bucket, begin = torch.cat([parameter.grad.flatten() for parameter in parameters]), 0
    for parameter in parameters:
        parameter.grad = bucket[begin : begin + parameter.numel()].view_as(parameter)
        begin += parameter.numel()


def _add_special_tensors(core: Core) -> dict[str, Tensor]:
    dense = torch.tensor([[0.0, 1.0, 0.0, 2.0], [3.0, 0.0, 4.0, 0.0]])
    for name, layout in {"coo": torch.sparse_coo, "csr": torch.sparse_csr}.items():
        parameter = nn.Parameter(dense.to_sparse(layout=layout))
        parameter.grad = (dense * 3).to_sparse(layout=layout)
        core.register_parameter(name, parameter)
    core.ragged = torch.nested.nested_tensor([numbers(2, 3), numbers(4, 3)], layout=torch.jagged)
    core.pair = nn.Parameter(TwoTensor(numbers(3), core.flat[:3]))
    return {"ragged": core.ragged, "pair.a": core.pair.a, "pair.b": core.pair.b}


def _named_tensors(core: Core, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    tensors = {**dict(core.named_parameters(remove_duplicate=False)), **dict(core.named_buffers())}
    tensors |= {f"{name}.grad": each.grad for name, each in core.named_parameters() if each.grad is not None}
    for name, parameter in core.named_parameters():
        tensors |= {f"{name}.{key}": value for key, value in optimizer.state.get(parameter, {}).items()}
    tensors |= {"flat": core.flat, **core.hooked, "in cache": core.table(4), "scale of scaler": core.scaler["scale"]}
    tensors |= {"absmax": core.first.weight.quant_state["absmax"]}
    tensors |= {"found": core.found[core.device], "found_inf": core.scaler["found_inf"][core.device]}
    return tensors
