"""Loaders, and the other processes that they work in: these are not on the stage, and what they deliver is an input."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import process, reduction
from typing import Any
from unittest.mock import patch

from torch import Tensor
from torch.multiprocessing import reductions
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from torchmove.rehearsal.provenance import Provenance
from torchmove.rehearsal.stage import Stage, off_stage
from torchmove.rehearsal.standin import CPU, StandIn

_DELIVERED = Provenance("input", "the loader delivers it on cpu", "x = x.to(device), before it is used")


@contextmanager
def delivered(stage: Stage) -> Iterator[None]:
    begin, following = DataLoader.__iter__, _BaseDataLoaderIter.__next__
    bootstrap = process.BaseProcess._bootstrap  # type: ignore[attr-defined]
    born: list[Any] = []  # loaders whose workers would outlive the step

    def begun(loader: Any) -> Any:
        if loader.persistent_workers and loader._iterator is None:
            born.append(loader)
        return begin(loader)

    def in_child(*args: Any, **kwargs: Any) -> Any:
        stage.over, stage.now.task = True, None
        stage.one_at_a_time = threading.RLock()  # a thread that is not here may have held the other
        return bootstrap(*args, **kwargs)

    def deliver(loading: Any) -> Any:
        return pytree.tree_map_only(Tensor, lambda each: _delivered(stage, each), following(loading))

    with ExitStack() as patches:
        for holder, name, value in [
            (DataLoader, "__iter__", begun),
            (_BaseDataLoaderIter, "__next__", deliver),
            (process.BaseProcess, "_bootstrap", in_child),
            (reduction, "dump", _behind_the_scene(reduction.dump)),  # what a process is started with
            (reductions, "rebuild_tensor", _behind_the_scene(reductions.rebuild_tensor)),
        ]:
            patches.enter_context(patch.object(holder, name, value))
        try:
            yield
        finally:
            for loader in born:
                loader._iterator = None  # the last who holds it: it ends them


def _delivered(stage: Stage, tensor: Tensor) -> Tensor:
    standin = tensor if isinstance(tensor, StandIn) else stage.stand_in(tensor, CPU, None)
    if standin._place == CPU:
        standin._provenance = _DELIVERED
    return standin


def _behind_the_scene(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)  # pickled by this name
    def done(*args: Any, **kwargs: Any) -> Any:
        with off_stage():
            return function(*args, **kwargs)

    return done
