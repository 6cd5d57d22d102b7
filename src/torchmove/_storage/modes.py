"""torch's modes, switched off."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def plain_torch() -> Iterator[None]:
    """No autograd, no inference mode, no tensor subclass in between, whatever the caller has switched on."""
    with torch.inference_mode(mode=False), torch.no_grad(), torch._C.DisableTorchFunction():
        yield
