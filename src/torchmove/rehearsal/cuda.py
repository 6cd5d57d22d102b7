"""torch.cuda, as harmless as it can be: there is a device, it is idle, and nothing is ever waited for."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from torchmove._interrupts import HeldInterrupts
from torchmove.rehearsal.standin import StandIn


@contextmanager
def harmless() -> Iterator[None]:
    # Optimizers import torch's compiler when they are first used, and it takes stock of torch.cuda: of the real one.
    with HeldInterrupts() as interrupts, interrupts:  # half imported it would be of no use to anybody any more
        importlib.import_module("torch._dynamo")
    with ExitStack() as patches:
        patches.enter_context(torch.compiler.set_stance("force_eager"))  # compiled code runs as it was written
        for name, value in _STANDS_IN.items():
            if hasattr(torch.cuda, name):
                patches.enter_context(patch.object(torch.cuda, name, value))
        patches.enter_context(patch.object(torch.autocast, "__init__", _autocast))
        optimizers = importlib.import_module("torch.optim.optimizer")
        patches.enter_context(patch.object(optimizers, "_foreach_supported_types", _MANY_AT_ONCE))
        patches.enter_context(patch.object(nn.RNNBase, "flatten_parameters", _nothing))
        yield


_real_autocast = torch.autocast.__init__


def _autocast(self: Any, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
    """The CPU's stands in for the device's: its table of operations is another, its idea is the same."""
    if device_type != "cpu":
        device_type, dtype = "cpu", dtype or torch.float16
    _real_autocast(self, device_type, dtype, *args, **kwargs)


# Optimizers update many tensors at once where all are of these types.
_MANY_AT_ONCE = [Tensor, nn.Parameter, StandIn]


class _Idle:
    """A stream, an event, a guard: takes everything, and does nothing."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __enter__(self) -> _Idle:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __getattr__(self, _: str) -> Callable[..., Any]:
        return _nothing


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _always(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


_ANSWERS: dict[str, Any] = {
    "is_available": True,
    "is_initialized": True,
    "is_bf16_supported": True,
    "is_current_stream_capturing": False,
    "device_count": 1,
    "current_device": 0,
    "get_device_name": "a simulated device",
    "get_device_capability": (9, 0),
    "mem_get_info": (1 << 40, 1 << 40),
    "memory_summary": "",
    "memory_stats": {},
    "initial_seed": 0,
    **dict.fromkeys(["memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"], 0),
    **dict.fromkeys(["init", "set_device", "synchronize", "empty_cache", "ipc_collect"]),
    **dict.fromkeys(["manual_seed", "manual_seed_all", "reset_peak_memory_stats"]),
}
_STANDS_IN: dict[str, Any] = {
    **{name: _always(answer) for name, answer in _ANSWERS.items()},
    **dict.fromkeys(["Stream", "Event", "stream", "device", "current_stream", "default_stream"], _Idle),
}
