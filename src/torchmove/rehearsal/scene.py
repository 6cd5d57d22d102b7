"""The scene: stand-ins in the place of tensors, under the same objects. Whoever holds one holds the other.

Every change is on an undo list before it is made; run backwards, it leaves all as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from torchmove._records import Block, Inventory
from torchmove._shells import is_window
from torchmove._undo import Undo
from torchmove.rehearsal.memento import remember
from torchmove.rehearsal.provenance import Provenance
from torchmove.rehearsal.stage import Stage
from torchmove.rehearsal.standin import StandIn, swap

_PARTS = {"parameter": "parameters", "buffer": "parameters", "gradient": "gradients", "state": "optimizer"}


def set_up(
    inventory: Inventory,
    stage: Stage,
    places: Mapping[int, torch.device],
    came_from: Callable[[int], Provenance | None],
    undo: Undo,
) -> None:
    """Stand-ins for all tensors of an inventory, sharing memory as they do. `places`: by the tensor's id."""
    tensors = inventory.slots.tensors
    gradients = [(tensor, tensor.grad) for tensor in tensors if tensor.is_leaf and tensor.grad is not None]
    for block in inventory.blocks:
        if _can_be_stood_in(block, tensors):
            weighs = any(inventory.slots[index].role in ("parameter", "gradient") for index in block.slots)
            base = stage.storage_for(tensors[block.slots[0]], weighs=weighs)
            for index in block.slots:
                tensor = tensors[index]
                standin = stage.wrap(stage.window(base, tensor), places[id(tensor)], came_from(index))
                standin._part = _PARTS.get(inventory.slots[index].role, "other tensors")
                stage.meter.mark(standin._behind, standin._part)
                dress(tensor, standin, undo)
    for tensor, gradient in gradients:
        if isinstance(tensor, StandIn):
            tensor.grad = gradient


def _can_be_stood_in(block: Block, tensors: Any) -> bool:
    """A sparse tensor, or one that waits for its shape, plays itself."""
    return not block.opaque and all(not is_lazy(tensors[index]) and is_window(tensors[index]) for index in block.slots)


def dress(tensor: Tensor, standin: StandIn, undo: Undo) -> None:
    """Put a stand-in under the object of a tensor."""
    standin.__dict__.update(tensor.__dict__)
    if isinstance(tensor, nn.Parameter):
        standin._is_param = True
    standin.requires_grad_(tensor.requires_grad)
    hooks = (tensor._backward_hooks, tensor._post_accumulate_grad_hooks)
    remember(filter(None, hooks), undo)
    undo.append(lambda: _swap(tensor, standin, hooks) if isinstance(tensor, StandIn) else None)
    _swap(tensor, standin, hooks)


def _swap(tensor: Any, other: Tensor, hooks: Any) -> None:
    swap(tensor, other)
    # The dicts of hooks stay with the object; the other implementation has to be told of them.
    if tensor._backward_hooks is not None or hooks[0] is not None:
        tensor._backward_hooks = hooks[0]
    if tensor._post_accumulate_grad_hooks is not None or hooks[1] is not None:
        tensor._post_accumulate_grad_hooks = hooks[1]
