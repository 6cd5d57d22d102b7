"""Objects of libraries that store tensors where the reader of their base does not look, or that a move would break.

Classes are named by strings, so that no library is imported. A row of `TABLE` is the reader of a class; a row of
`BESIDES` runs after the reader that the class inherits.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch

from torchmove.internals.stored import attributes
from torchmove.surveying.children import Child, Diagnostic, Reader, attribute, item


def read_moving_average(average: Any) -> Iterator[Child]:
    """torch-ema stores parameters with the graph of their copying and never releases it; nothing runs it backward."""
    for name, value in attributes(average):
        yield attribute(name, value, "computed" if name == "collected_params" else None)


# ---------------------------------------------------------------- additional readers


def other_state_of_accelerate(_: Any) -> Iterator[Child]:
    """The second place where accelerate stores the device: the shared state of PartialState."""
    yield item("PartialState", vars(sys.modules["accelerate.state"].PartialState)["_shared_state"])


def memory_elsewhere(tensors: Any) -> Iterator[Diagnostic]:
    """A memory-mapped TensorDict, or one in shared memory."""
    for name, value in attributes(tensors):
        if name in _ELSEWHERE and value:
            yield Diagnostic("R035", _ELSEWHERE[name], "td = td.clone(), or keep= it")


_ELSEWHERE = {
    "_is_memmap": "memory-mapped: after a move, writes to it would no longer reach its file",
    "_is_shared": "in shared memory: after a move, writes to it would no longer reach other processes",
}


def paged_state(optimizer: Any) -> Iterator[Diagnostic]:
    """The paged state of bitsandbytes' paged optimizers. On the CPU, and for small parameters, it is not paged."""
    states = (value for state in optimizer.state.values() for value in state.values())
    if optimizer.is_paged and any(getattr(value, "is_paged", False) for value in states):
        yield Diagnostic(
            "R029",
            "a paged optimizer: the CUDA driver moves the paged_state of its state between host and device",
            "make the optimizer of the same kind that is not paged, load_state_dict(paged.state_dict()), move that",
        )


def weight_format(module: Any) -> Iterator[Diagnostic]:
    """The forms of bitsandbytes' weights that only one device can read, or that are not quantized yet."""
    weight = module._parameters["weight"]
    if not type(weight).__module__.startswith("bitsandbytes"):  # replaced by an ordinary parameter
        return
    stored = vars(weight)
    if getattr(stored.get("quant_state"), "packing_format_for_cpu", False):
        yield Diagnostic(
            "R036",
            "packed for the CPU kernels by a forward in eval mode: other devices cannot read this format",
            "call model.state_dict(), which unpacks it in place",
        )
    small = stored.get("bnb_quantized", stored.get("has_fp16_weights") or weight.dtype is torch.int8)
    if not small:
        yield Diagnostic(
            "R037",
            "not quantized yet: the first .to() of its module quantizes it, which tm.move does not call",
            "call model.to(device) once; after that tm.move can move it",
        )


def offloaded_groups(_: Any) -> Iterator[Diagnostic]:
    """diffusers' group offloading keeps copies of the weights, and copies them to and from the device on every call."""
    yield Diagnostic(
        "R024",
        "diffusers' group offloading copies these weights to and from the device on every call",
        'HookRegistry.check_if_exists_or_initialize(model).remove_hook("group_offloading"), from diffusers.hooks',
    )


TABLE: dict[type | str, Reader] = {"torch_ema.ema:ExponentialMovingAverage": read_moving_average}

BESIDES: dict[str, Reader] = {
    "accelerate.state:AcceleratorState": other_state_of_accelerate,
    "bitsandbytes.optim.optimizer:Optimizer8bit": paged_state,
    "diffusers.hooks.group_offloading:ModuleGroup": offloaded_groups,
    "bitsandbytes.nn.modules:Linear4bit": weight_format,
    "bitsandbytes.nn.modules:Embedding4bit": weight_format,
    "bitsandbytes.nn.modules:Linear8bitLt": weight_format,
    "bitsandbytes.nn.modules:Embedding8bit": weight_format,
    "tensordict._td:TensorDict": memory_elsewhere,
    "tensordict._lazy:LazyStackedTensorDict": memory_elsewhere,
}
