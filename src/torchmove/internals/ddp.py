"""What DistributedDataParallel keeps for itself."""

from __future__ import annotations

import datetime
from typing import Any

import torch


def remove_autograd_hooks(model: Any) -> None:
    """The wrapper reduces no gradients any more."""
    model._remove_autograd_hooks()


def timeout_of(group: Any, kind: str) -> datetime.timedelta | None:
    """How long a process group waits for its ranks, by its backend for a kind of device."""
    found = group._get_backend(torch.device(kind)).options._timeout
    return found if isinstance(found, datetime.timedelta) else None
