"""Runs a step without the simulation: on copies of its tensors on the CPU, with the device read as the CPU."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Mapping
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from torchmove.internals.guards import Undo, plain_torch
from torchmove.rehearsing.captured import Captured
from torchmove.rehearsing.restore import remember, remember_generators, remember_globals, remember_names
from torchmove.rehearsing.setup import copies
from torchmove.rehearsing.tensors import CPU
from torchmove.surveying.survey import survey_objects


def plainly(
    step: Callable[..., Any],
    objects: tuple[Any, ...],
    named: Mapping[str, Any],
    around: Captured,
    home: torch.device,
) -> BaseException | None:
    """Run the step and return the error it raises, if any; restores all state afterwards."""
    undo = Undo(always=True)
    raised: BaseException | None = None
    with undo, undo:
        remember_globals(undo)
        remember_generators([*named.values(), *around.sources], undo)
        remember_names(around.names, around.classes, undo)
        _copied(dict(named), undo)
        with patch.object(nn.Module, home.type, lambda module, *_: module), ReadAsCpu(home):
            try:
                contextvars.copy_context().run(step, *objects)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                raised = error
    return raised


@plain_torch
def _copied(named: dict[str, Any], undo: Undo) -> None:
    inventory = survey_objects(named)
    remember([*named.values(), *(holder for holder, _ in inventory.holders.values())], undo)
    copies(inventory, undo)


class ReadAsCpu(TorchFunctionMode):
    def __init__(self, home: torch.device) -> None:
        super().__init__()
        self.home = home

    def __torch_function__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in _MOVES:
            return args[0]
        if "device" in kwargs:
            kwargs["device"] = self._read(kwargs["device"])
        if func is Tensor.to:
            args = (args[0], *(CPU if type(each) is int else self._read(each) for each in args[1:]))
        return func(*args, **kwargs)

    def _read(self, each: Any) -> Any:
        named = isinstance(each, torch.device) or (isinstance(each, str) and each.split(":")[0] == self.home.type)
        return CPU if named else each


_MOVES = {Tensor.cuda}
