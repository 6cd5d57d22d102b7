"""Stand-ins, the tensor subclass of rehearsals, and simulated random generators.

To torch's C++ a stand-in is a tensor on the CPU, so no device and no backend is needed; in Python it reports the
simulated device. Operations compute with the tensor behind it: a meta tensor, which has only a shape, or a real one on
the CPU.
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
    """The one object for a device, so that devices are compared by `is`; a device without an index is index 0."""
    found = _places.get(device)
    if found is None:
        named = CPU if device.type == "cpu" else torch.device(device.type, device.index or 0)
        found = _places[device] = _places.setdefault(named, named)
    return found


class Sent:
    """The result of `.to(...)` on a tensor: a weak reference, whether it was used, and the user's lines of the call."""

    __slots__ = ("lines", "tensor", "used")

    def __init__(self, tensor: StandIn, lines: list[Line]) -> None:
        self.tensor, self.used, self.lines = weakref.ref(tensor), False, lines


class StandIn(Tensor):
    __module__ = "torch"  # libraries dispatch on the module of a tensor's class

    _behind: Tensor
    _place: torch.device
    _stage: Any
    _origin: Origin | None
    # Defaults in the class: instances set only what differs.
    _sent: Sent | None = None  # the result of `.to(...)` on it
    _result_of_sending: Sent | None = None
    _fetched: bool = False  # it was just copied from the device
    _left: Line | None = None  # the line that moved a weight off the device
    _part: str = ""  # the part of the memory that it counts as

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
        """The lines of `.to(...)`, if its result was discarded without being used."""
        thrown = self._sent is not None and not self._sent.used and self._sent.tensor() is None
        return self._sent.lines if thrown and self._sent is not None else None

    def __deepcopy__(self, memo: dict[int, Any]) -> StandIn:
        made: StandIn = self.detach().clone()  # type: ignore[assignment]
        memo[id(self)] = made
        own = {name: value for name, value in self.__dict__.items() if name not in made.__dict__}
        made.__dict__.update(copy.deepcopy({name: own[name] for name in own.keys() - _OWN}, memo))
        made.requires_grad_(self.requires_grad)
        if made._place is CPU and isinstance(self, torch.nn.Parameter):
            made._origin = self._stage.origin_of_copy(made)
        return made

    def __copy__(self) -> Tensor:
        return self.detach().requires_grad_(self.requires_grad)

    def __reduce_ex__(self, protocol: Any) -> Any:
        value = self._stage.value_of(self)
        with without_torch_dispatch(), without_torch_function():
            return value.__reduce_ex__(protocol)

    # Python code sees the simulated device; torch's C++ does not use these properties.
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
            self._stage.note("printing waits for the device and copies values to the CPU")
        return f"tensor(..., size={tuple(self.shape)}, device='{self._place}', dtype={self.dtype})"

    __torch_function__ = disabled_torch_function

    @classmethod
    def __torch_dispatch__(cls, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Run an operation in a thread of torch's own, where the dispatch mode is not active."""
        stage = next(each._stage for each in leaves((args, kwargs)) if isinstance(each, StandIn))
        stage.check_open()
        return stage.run(func, args, kwargs or {})


class Itself:
    """A tensor that stays real because no stand-in can replace it, such as a sparse one; with its device and origin."""

    __slots__ = ("_origin", "_place", "tensor")

    def __init__(self, tensor: Tensor, place: torch.device, origin: Origin | None) -> None:
        self.tensor, self._place, self._origin = tensor, place, origin

    def dim(self) -> int:
        return self.tensor.dim()

    def thrown_away(self) -> None:
        return None


_OWN = {"_behind", "_place", "_stage", "_origin", "_sent", "_result_of_sending", "_fetched", "_part"}


def swap(tensor: Tensor, other: Tensor) -> None:
    """Exchange the implementations of two Python tensor objects; all references see the other tensor from now on."""
    tensor.__class__, other.__class__ = other.__class__, tensor.__class__
    tensor.__dict__, other.__dict__ = other.__dict__, tensor.__dict__
    swap_implementation(tensor, other)


_Real = torch.Generator
_seen: dict[
    int, tuple[torch.Generator, torch.device]
] = {}  # generators made before the step that count as the device's
_drawing: dict[int, tuple[torch.Generator, torch.Generator]] = {}


class _AnyGenerator(type(_Real)):  # type: ignore[misc]
    def __instancecheck__(cls, each: object) -> bool:
        return isinstance(each, _Real)


class SimulatedGenerator(_Real, metaclass=_AnyGenerator):
    """A generator that draws on the CPU and reports the simulated device."""

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
    """The CPU generator that replaces one of a real device: the tensors behind stand-ins are on the CPU."""
    if _Real.device.__get__(each).type == "cpu":
        return each
    return _drawing.setdefault(id(each), (each, _Real()))[1]


@contextmanager
def generators(of_the_device: Iterable[torch.Generator], home: torch.device) -> Iterator[None]:
    """Simulate `torch.Generator`. `of_the_device`: existing generators that the code would create on the device."""
    _seen.update({id(each): (each, home) for each in of_the_device})
    try:
        with patch.object(torch, "Generator", SimulatedGenerator):
            yield
    finally:
        _seen.clear()
        _drawing.clear()
