"""Data loaders in a step. Worker processes run outside the simulation, and their batches are inputs on the CPU."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import reduction
from types import FunctionType
from typing import Any
from unittest.mock import patch

from torch import Tensor, nn
from torch.multiprocessing import reductions
from torch.utils.data import DataLoader

from torchmove.internals.simulation import RUN_PROCESS, LoaderIterator, Process, pytree
from torchmove.rehearsing.device import SimulatedDevice, outside_simulation
from torchmove.rehearsing.origins import delivered as delivered_by_loader
from torchmove.rehearsing.tensors import CPU, StandIn


@contextmanager
def delivered(stage: SimulatedDevice) -> Iterator[list[Any]]:
    """Patch loaders and processes; yields the step's loaders with persistent workers, which `dismiss` ends."""
    begin, following = DataLoader.__iter__, LoaderIterator.__next__
    bootstrap = getattr(Process, RUN_PROCESS)
    born: list[Any] = []

    def begun(loader: Any) -> Any:
        if loader.persistent_workers and loader._iterator is None:
            born.append(loader)
        return begin(loader)

    def in_child(*args: Any, **kwargs: Any) -> Any:
        stage.over, stage.now.task, stage.now.making = True, None, None
        stage.one_at_a_time = threading.RLock()  # a thread of the parent process may have held the old lock
        return bootstrap(*args, **kwargs)

    def deliver(loading: Any) -> Any:
        return pytree.tree_map(lambda each: _delivered(stage, each), following(loading))

    with ExitStack() as patches:
        for holder, name, value in [
            (DataLoader, "__iter__", begun),
            (LoaderIterator, "__next__", deliver),
            (Process, RUN_PROCESS, in_child),
            (reduction, "dump", _behind_the_scene(reduction.dump)),  # arguments of a new process
            (reductions, "rebuild_tensor", _behind_the_scene(reductions.rebuild_tensor)),
        ]:
            patches.enter_context(patch.object(holder, name, value))
        try:
            yield born
        finally:
            dismiss(born)


def dismiss(born: list[Any]) -> None:
    for loader in born:
        loader._iterator = None  # drops the last reference, which ends the workers


def _delivered(stage: SimulatedDevice, each: Any) -> Any:
    if isinstance(each, Tensor):
        return _delivered_tensor(stage, each)
    for holder in _holders(each, _DEEP):  # a batch of a user or library class
        for name, value in list(holder.items()):
            if isinstance(value, Tensor):
                holder[name] = _delivered_tensor(stage, value, each)
    return each


def _holders(batch: Any, deep: int) -> Iterator[dict[Any, Any]]:
    """The dicts of an object and of its values, to a depth: a graph batch keeps its tensors in nested objects."""
    is_closed = isinstance(batch, (Tensor, nn.Module, FunctionType, type))
    inside = batch if type(batch) is dict else getattr(batch, "__dict__", None)
    if type(inside) is dict and not is_closed:
        yield inside
        for value in list(inside.values()) if deep else ():
            yield from _holders(value, deep - 1)


def _delivered_tensor(stage: SimulatedDevice, tensor: Tensor, batch: Any = None) -> Tensor:
    standin = tensor if isinstance(tensor, StandIn) else stage.stand_in(tensor, CPU, None)
    if standin._place is CPU:
        standin._origin = delivered_by_loader(stage, standin, batch)
    return standin


_DEEP = 3


def _behind_the_scene(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)  # pickled by this name
    def done(*args: Any, **kwargs: Any) -> Any:
        with outside_simulation():
            return function(*args, **kwargs)

    return done
