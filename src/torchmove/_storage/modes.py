"""torch's modes, switched off."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import _disable_current_modes

without_modes = _disable_current_modes  # those that look at every operation


@contextmanager
def plain_torch() -> Iterator[None]:
    """No autograd, no inference mode, no tensor subclass in between, whatever the caller has switched on.

    Modes that look at every operation stay on: a rehearsal is one.
    """
    with torch.inference_mode(mode=False), torch.no_grad(), torch._C.DisableTorchFunction():
        yield


def makes_fakes() -> bool:
    """Has the caller switched on that new tensors are fakes, without bytes?"""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None
