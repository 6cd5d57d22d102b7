"""Run an optimizer's own code without side effects: no output, no warnings, no change of random states."""

from __future__ import annotations

import random
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.optim import optimizer as optimizers

from torchmove.internals.modes import without_modes
from torchmove.internals.simulation import is_profiling, record_functions, without_torch_function
from torchmove.planning.learning.device import FirstStepTensor


@contextmanager
def contained() -> Iterator[None]:
    with ExitStack() as stack:
        for each in (without_modes(), torch.inference_mode(False), torch.no_grad(), without_torch_function()):
            stack.enter_context(each)
        for more in (_same_random_numbers(), _unprofiled(), warnings.catch_warnings()):
            stack.enter_context(more)
        warnings.simplefilter("ignore")
        stack.enter_context(redirect_stdout(_Muted(sys.stdout)))
        stack.enter_context(redirect_stderr(_Muted(sys.stderr)))
        # Optimizers use foreach kernels only if all tensors are of these types.
        kinds = [Tensor, nn.Parameter, FirstStepTensor]
        stack.enter_context(patch.object(optimizers, "_foreach_supported_types", kinds))
        for hooks in ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks"):
            if getattr(optimizers, hooks):
                stack.enter_context(patch.object(optimizers, hooks, {}))
        if "torch._dynamo" in sys.modules:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield


class _Muted:
    """A stream that drops what this thread writes to it; writes of other threads pass through."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._thread = stream, threading.get_ident()

    def write(self, text: str) -> int:
        if threading.get_ident() != self._thread:
            self._stream.write(text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def _same_random_numbers() -> Iterator[None]:
    numpy = sys.modules.get("numpy")
    python_state, torch_state = random.getstate(), torch.get_rng_state()
    numpy_state = numpy and numpy.random.get_state()
    try:
        yield
    finally:
        random.setstate(python_state)
        torch.set_rng_state(torch_state)
        if numpy is not None and numpy_state is not None:
            numpy.random.set_state(numpy_state)


@contextmanager
def _unprofiled() -> Iterator[None]:
    profiled = is_profiling()
    if profiled:
        record_functions(False)
    try:
        yield
    finally:
        if profiled:
            record_functions(True)
