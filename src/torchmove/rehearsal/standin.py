"""A stand-in: a tensor with a shape and a place, and behind it either no bytes at all or real ones on the CPU.

To torch's C++ it is a tensor on the CPU, so no device and no backend has to be there; to Python it says that it is on
the device it stands for. What is behind it does the work: a meta tensor, which knows shapes alone, or a real one.
"""

from __future__ import annotations

import copy
import weakref
from typing import Any

import torch
from torch import Tensor

from torchmove.rehearsal.arguments import leaves
from torchmove.rehearsal.provenance import Provenance

CPU = torch.device("cpu")
_THROWN_AWAY = Provenance(
    "thrown-away", "the result of .to() was thrown away, and .to() changes nothing in place", "x = x.to(...)"
)


class StandIn(Tensor):
    _behind: Tensor
    _place: torch.device
    _stage: Any
    _provenance: Provenance | None
    _sent: weakref.ref[StandIn] | None  # what `.to(...)` made of it
    _fetched: bool  # it has just come from the device
    _part: str  # what it is counted as, of the memory

    @staticmethod
    def __new__(cls, behind: Tensor, place: torch.device, stage: Any, provenance: Provenance | None) -> StandIn:
        made: StandIn = Tensor._make_wrapper_subclass(
            cls,
            behind.size(),
            strides=behind.stride(),
            storage_offset=behind.storage_offset(),
            dtype=behind.dtype,
            layout=behind.layout,
            device=CPU,
            requires_grad=False,
        )
        made._behind, made._place, made._stage, made._provenance = behind, place, stage, provenance
        made._sent, made._fetched, made._part = None, False, ""
        return made

    def came_from(self) -> Provenance | None:
        """That somebody sent it on, and let go of what came of that, says more than all else."""
        return _THROWN_AWAY if self._sent is not None and self._sent() is None else self._provenance

    def __deepcopy__(self, memo: dict[int, Any]) -> StandIn:
        made: StandIn = self.detach().clone()  # type: ignore[assignment]
        memo[id(self)] = made
        own = {name: value for name, value in self.__dict__.items() if name not in made.__dict__}
        made.__dict__.update(copy.deepcopy(own, memo))
        made.requires_grad_(self.requires_grad)
        return made

    # What Python asks goes by the place; torch's C++ does not ask here.
    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self._place if self._place != CPU else self._stage.cpu_of(self)

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return self._place.type == "cuda"

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]
        return self._place.type == "cpu"

    @property
    def is_meta(self) -> bool:  # type: ignore[override]
        return False

    def get_device(self) -> int:
        return -1 if self._place.type == "cpu" else self._place.index

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        if self._place != CPU:
            self._stage.note("printing waits for the device and brings values to the CPU")
        return f"tensor(..., size={tuple(self.shape)}, device='{self._place}', dtype={self.dtype})"

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Reached where the stage is not entered, in a thread of torch's own."""
        stage = next(each._stage for each in leaves((args, kwargs)) if isinstance(each, StandIn))
        return stage.run(func, args, kwargs or {})


def swap(tensor: Tensor, other: Tensor) -> None:
    """Exchange two tensors under their Python objects: whoever holds one holds the other from now on."""
    tensor.__class__, other.__class__ = other.__class__, tensor.__class__
    tensor.__dict__, other.__dict__ = other.__dict__, tensor.__dict__
    torch._C._swap_tensor_impl(tensor, other)
