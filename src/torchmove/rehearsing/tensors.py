"""The stand-in: a tensor with a shape and a device, and behind it real values on the CPU, or none; and generators.

To torch's C++ it is a tensor on the CPU, so no device and no backend is needed; in Python it reports the simulated
device. The tensor behind it does the work: a meta tensor, which has only a shape, or a real one.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from torchmove.internals.simulation import (
    disabled_torch_function,
    make_wrapper_subclass,
    swap_implementation,
    without_torch_dispatch,
    without_torch_function,
)
from torchmove.rehearsing.provenance import Line, Origin


def mapped(change: Callable[[Any], Any], given: Any) -> Any:
    kind = type(given)
    if kind is tuple:
        return tuple([mapped(change, each) for each in given])
    if kind is list:
        return [mapped(change, each) for each in given]
    if kind is dict:
        return {key: mapped(change, each) for key, each in given.items()}
    return change(given)


def leaves(given: Any) -> Iterator[Any]:
    kind = type(given)
    if kind is tuple or kind is list:
        for each in given:
            yield from leaves(each)
    elif kind is dict:
        for each in given.values():
            yield from leaves(each)
    else:
        yield given


CPU = torch.device("cpu")
_places: dict[torch.device, torch.device] = {CPU: CPU}


def place_of(device: torch.device) -> torch.device:
    """Each place is one object, so that places are compared by `is`; a device without a number is the first."""
    found = _places.get(device)
    if found is None:
        named = CPU if device.type == "cpu" else torch.device(device.type, device.index or 0)
        found = _places[device] = _places.setdefault(named, named)
    return found


class Sent:
    """What `.to(...)` has made of a tensor: still there, ever used, and the user's lines that led there?"""

    __slots__ = ("lines", "tensor", "used")

    def __init__(self, tensor: StandIn, lines: list[Line]) -> None:
        self.tensor, self.used, self.lines = weakref.ref(tensor), False, lines


class StandIn(Tensor):
    __module__ = "torch"  # libraries choose how to compute by the module of a tensor's class

    _behind: Tensor
    _place: torch.device
    _stage: Any
    _origin: Origin | None
    # In the class, so that only what differs is set on each.
    _sent: Sent | None = None  # what `.to(...)` made of it
    _result_of_sending: Sent | None = None
    _fetched: bool = False  # it has just come from the device
    _left: Line | None = None  # of a weight that was moved off the device: where
    _part: str = ""  # what it is counted as, of the memory

    @staticmethod
    def __new__(cls, behind: Tensor, place: torch.device, stage: Any, origin: Origin | None) -> StandIn:
        made: StandIn = make_wrapper_subclass(
            cls,
            behind.size(),
            strides=behind.stride(),
            storage_offset=behind.storage_offset(),
            dtype=behind.dtype,
            layout=behind.layout,
            device=CPU,
        )
        made._behind, made._place, made._stage, made._origin = behind, place, stage, origin
        return made

    def thrown_away(self) -> list[Line] | None:
        """Where it was sent, if what came of that was let go without being used."""
        thrown = self._sent is not None and not self._sent.used and self._sent.tensor() is None
        return self._sent.lines if thrown and self._sent is not None else None

    def __deepcopy__(self, memo: dict[int, Any]) -> StandIn:
        made: StandIn = self.detach().clone()  # type: ignore[assignment]
        memo[id(self)] = made
        own = {name: value for name, value in self.__dict__.items() if name not in made.__dict__}
        made.__dict__.update(copy.deepcopy({name: own[name] for name in own.keys() - _OWN}, memo))
        made.requires_grad_(self.requires_grad)
        return made

    def __copy__(self) -> Tensor:
        return self.detach().requires_grad_(self.requires_grad)

    def __reduce_ex__(self, protocol: Any) -> Any:
        value = self._stage.value_of(self)
        with without_torch_dispatch(), without_torch_function():
            return value.__reduce_ex__(protocol)

    # What Python asks goes by the place; torch's C++ does not ask here.
    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self._place if self._place is not CPU else self._stage.cpu_of(self)

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return self._place.type == "cuda"

    @property
    def is_mps(self) -> bool:  # type: ignore[override]
        return self._place.type == "mps"

    @property
    def is_xpu(self) -> bool:  # type: ignore[override]
        return self._place.type == "xpu"

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]
        return self._place is CPU

    @property
    def is_meta(self) -> bool:  # type: ignore[override]
        return False

    def get_device(self) -> int:
        return -1 if self._place is CPU else self._place.index

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        self._stage.check_open()
        return super().numpy(*args, **kwargs)

    def tolist(self) -> Any:
        self._stage.check_open()
        return super().tolist()

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        if self._stage.closed:
            return (
                f"tensor(..., size={tuple(self.shape)}, dtype={self.dtype}), a stand-in of a rehearsal that has ended"
            )
        if self._place is not CPU:
            self._stage.note("printing waits for the device and brings values to the CPU")
        return f"tensor(..., size={tuple(self.shape)}, device='{self._place}', dtype={self.dtype})"

    __torch_function__ = disabled_torch_function

    @classmethod
    def __torch_dispatch__(cls, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Reached where the stage is not entered, in a thread of torch's own."""
        stage = next(each._stage for each in leaves((args, kwargs)) if isinstance(each, StandIn))
        stage.check_open()
        return stage.run(func, args, kwargs or {})


class Itself:
    """A tensor that no stand-in can play, a sparse one, and where it is."""

    __slots__ = ("_origin", "_place", "tensor")

    def __init__(self, tensor: Tensor, place: torch.device, origin: Origin | None) -> None:
        self.tensor, self._place, self._origin = tensor, place, origin

    def dim(self) -> int:
        return self.tensor.dim()

    def thrown_away(self) -> None:
        return None


_OWN = {"_behind", "_place", "_stage", "_origin", "_sent", "_result_of_sending", "_fetched", "_part"}


def swap(tensor: Tensor, other: Tensor) -> None:
    """Exchange two tensors under their Python objects: whoever holds one holds the other from now on."""
    tensor.__class__, other.__class__ = other.__class__, tensor.__class__
    tensor.__dict__, other.__dict__ = other.__dict__, tensor.__dict__
    swap_implementation(tensor, other)


_Real = torch.Generator
_seen: dict[
    int, tuple[torch.Generator, torch.device]
] = {}  # those that were made before, and are taken for the device's
_drawing: dict[int, tuple[torch.Generator, torch.Generator]] = {}


class _AnyGenerator(type(_Real)):  # type: ignore[misc]
    def __instancecheck__(cls, each: object) -> bool:
        return isinstance(each, _Real)


class SimulatedGenerator(_Real, metaclass=_AnyGenerator):
    """Draws on the CPU, and says that it is on its device."""

    _place: torch.device

    def __new__(cls, device: Any = "cpu") -> SimulatedGenerator:
        made = _Real.__new__(cls)
        made._place = place_of(torch.device(device))
        return made

    def __init__(self, device: Any = "cpu") -> None:
        pass

    def set_state(self, state: Any) -> Any:
        return super().set_state(state._stage.state_of_generator(state) if isinstance(state, StandIn) else state)

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self._place


def place_of_generator(each: torch.Generator) -> torch.device:
    taken = _seen.get(id(each))
    if taken is not None:
        return taken[1]
    place: torch.device | None = getattr(each, "_place", None)
    return place or (CPU if each.device.type == "cpu" else place_of(each.device))


def on_the_cpu(each: torch.Generator) -> torch.Generator:
    """What draws in the place of a real device's generator: stand-ins have their bytes on the CPU."""
    if _Real.device.__get__(each).type == "cpu":
        return each
    return _drawing.setdefault(id(each), (each, _Real()))[1]


@contextmanager
def generators(of_the_device: Iterable[torch.Generator], home: torch.device) -> Iterator[None]:
    """`of_the_device`: those that were made for a device that was decided where there is none."""
    _seen.update({id(each): (each, home) for each in of_the_device})
    try:
        with patch.object(torch, "Generator", SimulatedGenerator):
            yield
    finally:
        _seen.clear()
        _drawing.clear()
