"""What `.to()` misses in a model and its optimizer: found by calling it, and looking."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import torchmove as tm

PLAIN = "tensors in plain attributes"
SPLIT = "shared buffers split"
UNTIED = "tied weights untied"
REMEMBERED = "devices remembered"
STATE = "the optimizer's state"
KINDS = (PLAIN, SPLIT, UNTIED, REMEMBERED, STATE)


def missed(model: nn.Module, optimizer: Optimizer, device: torch.device) -> dict[str, list[str]]:
    """Of each kind, the paths. Leaves the model where `.to()` has left it."""
    tied, shared = _groups(_parameters(model)), _groups(_buffers(model))
    model.to(device)
    inventory = tm.survey(model)
    found = {
        PLAIN: [str(slot.path) for slot in inventory.tensors if slot.role == "tensor" and slot.device != device],
        SPLIT: [" = ".join(names) for names in shared if _apart(names, _buffers(model))],
        UNTIED: [" = ".join(names) for names in tied if _apart(names, _parameters(model))],
        REMEMBERED: [str(value.path) for value in inventory.device_values if value.device.type != device.type],
        STATE: sorted({key for key, value in _state(optimizer) if value.device != device}),
    }
    return {kind: paths for kind, paths in found.items() if paths}


def _parameters(model: nn.Module) -> dict[str, Tensor]:
    return dict(model.named_parameters(remove_duplicate=False))


def _buffers(model: nn.Module) -> dict[str, Tensor]:
    return dict(model.named_buffers(remove_duplicate=False))


def _state(optimizer: Optimizer) -> Iterator[tuple[str, Tensor]]:
    """Without the counters, which belong on the CPU."""
    for state in optimizer.state.values():
        yield from ((key, value) for key, value in state.items() if isinstance(value, Tensor) and key != "step")


def storage_of(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _groups(tensors: dict[str, Tensor]) -> Iterable[list[str]]:
    """The names that share a storage."""
    by_storage = defaultdict(list)
    for name, tensor in tensors.items():
        if tensor.numel():
            by_storage[storage_of(tensor)].append(name)
    return [names for names in by_storage.values() if len(names) > 1]


def _apart(names: list[str], tensors: dict[str, Tensor]) -> bool:
    return len({storage_of(tensors[name]) for name in names}) > 1
