"""Random number generators of the simulated device. torch refuses one that is on another device than the tensor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

from torchmove.rehearsing.tensors import CPU, StandIn, place_of

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
