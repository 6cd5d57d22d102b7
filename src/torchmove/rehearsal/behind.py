"""What is behind a stand-in: bytes that are known, or a shape alone.

Weights are shapes; a batch, its masks and what is computed from them alone are known, as long as they are small: that
is mostly what a step looks at. What comes of known and unknown together is unknown.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchmove.rehearsal.arguments import leaves, mapped

MOST_BYTES = 16 << 20


def is_known(behind: Tensor) -> bool:
    return behind.device.type != "meta"


def as_shape(behind: Tensor) -> Tensor:
    return torch.empty_strided(behind.size(), behind.stride(), dtype=behind.dtype, device="meta")


def fits(func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    """Are the results of an operation small enough to be computed? Its shapes tell, if it has any before it is done."""
    shapes, named = mapped(lambda each: as_shape(each) if isinstance(each, Tensor) else each, (args, kwargs))
    if named.get("device") is not None:
        named = {**named, "device": "meta"}
    try:
        results = leaves(func(*shapes, **named))
    except (NotImplementedError, RuntimeError):
        return True
    return sum(each.untyped_storage().nbytes() for each in results if isinstance(each, Tensor)) <= MOST_BYTES
