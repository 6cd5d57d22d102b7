"""Private methods and attributes of DistributedDataParallel."""

from __future__ import annotations

import datetime
from typing import Any

import torch


def remove_autograd_hooks(model: Any) -> None:
    """Stop the wrapper from reducing gradients."""
    model._remove_autograd_hooks()


def timeout_of(group: Any, kind: str) -> datetime.timedelta | None:
    """The timeout of a process group's backend for a device type."""
    found = group._get_backend(torch.device(kind)).options._timeout
    return found if isinstance(found, datetime.timedelta) else None
