"""Switch off torch's modes: dispatch modes, autograd, inference mode, `__torch_function__`."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from torchmove.internals.switch import Switch, under

without_modes = _disable_current_modes  # the dispatch modes


class _PlainTorch(Switch):
    def __init__(self) -> None:
        self._autograd: Any = None
        self._overrides = torch._C._get_torch_function_state()  # type: ignore[attr-defined]

    def switch(self) -> None:
        # The guard records the autograd settings when it is made, and restores them on exit, or when it is freed.
        self._autograd = torch._C._InferenceMode(False)
        torch._C._set_grad_enabled(False)
        torch._C._set_torch_function_state(torch._C._TorchFunctionState.SUBCLASSES_DISABLED)  # type: ignore[attr-defined]

    def restore(self) -> None:
        torch._C._set_torch_function_state(self._overrides)  # type: ignore[attr-defined]
        if self._autograd is not None:
            self._autograd.__exit__(None, None, None)


plain_torch = under(_PlainTorch)
"""A decorator: no autograd, no inference mode, no `__torch_function__`, whatever the caller has switched on.

Dispatch modes stay on: a rehearsal is one.
"""


def makes_fakes() -> bool:
    """Whether a `FakeTensorMode` is active, under which new tensors have no bytes."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None
