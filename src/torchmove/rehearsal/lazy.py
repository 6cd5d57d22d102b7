"""Parameters and buffers of lazy modules, which wait for their shape: until they have one, they play themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.nn import parameter

from torchmove.internals.undo import Undo
from torchmove.rehearsal.scene import dress
from torchmove.rehearsal.stage import Stage, off_stage
from torchmove.rehearsal.standin import Itself, StandIn, place_of

_KINDS = (parameter.UninitializedParameter, parameter.UninitializedBuffer)


@contextmanager
def lazy_tensors(stage: Stage, undo: Undo) -> Iterator[None]:
    """Those that the step makes are on the device it says, and get a stand-in when they have a shape."""

    def materialize(tensor: Any, shape: Any, device: Any = None, dtype: Any = None) -> None:
        with off_stage():
            behind = torch.empty(shape, dtype=dtype or tensor.data.dtype, device="cpu" if stage.real else "meta")
        waited = stage.itself(tensor)
        place = waited._place if device is None else place_of(torch.device(device))
        origin = None if place is stage.home else waited._origin
        dress(tensor, stage.wrap(behind, place, origin), undo)

    mixin: Any = parameter.UninitializedTensorMixin  # type: ignore[attr-defined]
    with patch.object(mixin, "materialize", materialize), ExitStack() as stack:
        for kind in _KINDS:
            stack.enter_context(patch.object(kind, "__new__", _making(kind, stage)))
        yield


def _making(kind: Any, stage: Stage) -> Callable[..., Any]:
    make = kind.__new__
    by_default = kind is parameter.UninitializedParameter  # torch's own defaults

    def made(cls: Any, requires_grad: bool = by_default, device: Any = None, dtype: Any = None, **kwargs: Any) -> Any:
        if stage.over:
            return make(cls, requires_grad, device, dtype, **kwargs)
        like = torch.empty(0, device=device, dtype=dtype)
        with off_stage():
            tensor = make(cls, requires_grad, None, dtype, **kwargs)
        place, origin = (like._place, like._origin) if isinstance(like, StandIn) else (stage.home, None)
        stage.themselves[id(tensor)] = Itself(tensor, place, origin)
        return tensor

    return made
