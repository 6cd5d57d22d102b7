"""Objects of libraries that keep something where the readers of their kind do not look, or that a move would break.

Each is named, so that no library is imported. A row of `TABLE` is the reader of a class; one of `BESIDES` speaks after
the reader that the class has by its bases.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch

from torchmove.internals.stored import attributes
from torchmove.surveying.children import Child, Diagnostic, Reader, attribute, item


def read_moving_average(average: Any) -> Iterator[Child]:
    """torch-ema stores parameters with the graph of their copying, and never lets go of them. Nobody runs it."""
    for name, value in attributes(average):
        yield attribute(name, value, "computed" if name == "collected_params" else None)


# ---------------------------------------------------------------- besides


def other_state_of_accelerate(_: Any) -> Iterator[Child]:
    """accelerate says twice where the process computes: what all of these share, and what all of another class do."""
    yield item("PartialState", vars(sys.modules["accelerate.state"].PartialState)["_shared_state"])


def memory_of_others(tensors: Any) -> Iterator[Diagnostic]:
    """A TensorDict on a file, or in shared memory."""
    for name, value in attributes(tensors):
        if name in _ELSEWHERE and value:
            yield Diagnostic("R035", _ELSEWHERE[name], "td = td.clone() has memory of its own; or keep it")


_ELSEWHERE = {
    "_is_memmap": "memory-mapped: what is written to it would no longer reach its file",
    "_is_shared": "in shared memory: what is written to it would no longer reach other processes",
}


def pages(optimizer: Any) -> Iterator[Diagnostic]:
    """Of bitsandbytes' paged optimizers. On the CPU, and for small parameters, they have none."""
    states = (value for state in optimizer.state.values() for value in state.values())
    if optimizer.is_paged and any(getattr(value, "is_paged", False) for value in states):
        yield Diagnostic(
            "R029",
            "a paged optimizer: its state is in memory that the driver takes to and fro by itself",
            "load its state_dict() into the optimizer of the same kind that is not paged, and move that",
        )


def form_of_weight(module: Any) -> Iterator[Diagnostic]:
    """bitsandbytes' weights have other forms than the one that every device reads."""
    weight = module._parameters["weight"]
    if not type(weight).__module__.startswith("bitsandbytes"):  # someone has put an ordinary one there
        return
    stored = vars(weight)
    if getattr(stored.get("quant_state"), "packing_format_for_cpu", False):
        yield Diagnostic(
            "R036",
            "packed for the CPU's kernels by a forward in eval mode: no other device reads it so",
            "model.state_dict() unpacks it, in place, as for saving",
        )
    small = stored.get("bnb_quantized", stored.get("has_fp16_weights") or weight.dtype is torch.int8)
    if not small:
        yield Diagnostic(
            "R037",
            "not quantised yet: bitsandbytes does that in the first .to() of a module, and a move is none",
            "model.to(device), once; from then on it can be moved",
        )


def placed_in_groups(_: Any) -> Iterator[Diagnostic]:
    """diffusers keeps copies of a group's weights, and takes them to and from the device on every call."""
    yield Diagnostic(
        "R024",
        "diffusers' group offloading takes these weights to and from the device on every call",
        'HookRegistry.check_if_exists_or_initialize(model).remove_hook("group_offloading"), from diffusers.hooks',
    )


TABLE: dict[type | str, Reader] = {"torch_ema.ema:ExponentialMovingAverage": read_moving_average}

BESIDES: dict[str, Reader] = {
    "accelerate.state:AcceleratorState": other_state_of_accelerate,
    "bitsandbytes.optim.optimizer:Optimizer8bit": pages,
    "diffusers.hooks.group_offloading:ModuleGroup": placed_in_groups,
    "bitsandbytes.nn.modules:Linear4bit": form_of_weight,
    "bitsandbytes.nn.modules:Embedding4bit": form_of_weight,
    "bitsandbytes.nn.modules:Linear8bitLt": form_of_weight,
    "bitsandbytes.nn.modules:Embedding8bit": form_of_weight,
    "tensordict._td:TensorDict": memory_of_others,
    "tensordict._lazy:LazyStackedTensorDict": memory_of_others,
}
