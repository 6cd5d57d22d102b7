"""Private names of torch used to simulate a device: dispatch, autograd, autocast, saving, data loaders."""

from __future__ import annotations

import multiprocessing.process
import os
import pathlib
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, serialization
from torch.utils import _pytree as pytree
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode, _push_mode, return_and_correct_aliasing
from torch.utils.data.dataloader import _BaseDataLoaderIter

__all__ = ["ThreadDispatchMode", "TorchDispatchMode", "pytree", "return_and_correct_aliasing"]

# ---------------------------------------------------------------- tensors and their implementation

disabled_torch_function: Any = torch._C._disabled_torch_function_impl
make_wrapper_subclass: Any = Tensor._make_wrapper_subclass
without_torch_dispatch: Any = torch._C._DisableTorchDispatch
without_torch_function: Any = torch._C.DisableTorchFunction
swap_implementation = torch._C._swap_tensor_impl
set_conjugated = torch._C._set_conj
set_negated = torch._C._set_neg
negated = torch._neg_view
unsafe_set: Any = torch._functionalize_unsafe_set
is_functorch_tensor = torch._C._functorch.is_functorch_wrapped_tensor
# Under a mode with this key, torch does not initialize the device that a new tensor is requested on.
FAKE_MODE = torch._C._TorchDispatchModeKey.FAKE


class ThreadDispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode for another thread than the one whose mode it joins.

    torch's flags that a mode is active belong to the process. A thread that ends after the other mode would leave them
    set, and torch.compile would compile nothing from then on.
    """

    def __enter__(self) -> ThreadDispatchMode:
        _push_mode(self)
        return self

    def __exit__(self, *_: object) -> None:
        _pop_mode(None)


def schema_of(operator: Any) -> Any:
    """The arguments and results that an operator declares."""
    return operator._schema


# ---------------------------------------------------------------- files

# Whose functions work on files: before Python 3.11 pathlib has its own references to those of os.
file_systems: tuple[Any, ...] = tuple(filter(None, (os, getattr(pathlib, "_normal_accessor", None))))

# ---------------------------------------------------------------- tensors from Python values

lifts_to_cpu_only = torch._C._only_lift_cpu_tensors
set_lifts_to_cpu_only = torch._C._set_only_lift_cpu_tensors
default_device_context: Any = torch._GLOBAL_DEVICE_CONTEXT
device_constructors = _device_constructors

# ---------------------------------------------------------------- autograd and autocast

current_autograd_node: Any = torch._C._current_autograd_node
run_backward: Any = torch.autograd._engine_run_backward  # type: ignore[attr-defined]
is_multithreaded: Any = torch._C._is_multithreading_enabled
print_options = torch._tensor_str.PRINT_OPTS
is_profiling = torch._C._autograd._profiler_enabled
record_functions = torch._C._autograd._enable_record_function
set_deterministic_algorithms = torch._C._set_deterministic_algorithms
GRAD_SCALER_STEP = "_maybe_opt_step"  # the GradScaler method that calls optimizer.step, if gradients are finite


def without_autocast_key() -> Any:
    """A guard under which operations bypass autocast for the CPU."""
    return torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU))


def has_autocast_kernel(operator: Any) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "AutocastCPU"))


def destroy_library(library: torch.library.Library) -> None:
    """Unregister the kernels of a library."""
    library._destroy()  # type: ignore[no-untyped-call]


# ---------------------------------------------------------------- functions under private names

parse_to: Any = torch._C._nn._parse_to
pad_packed_sequence: Any = torch._VF._pad_packed_sequence
unravel_index: Any = torch.functional._unravel_index
SOBOL_ENGINE: tuple[Any, ...] = (
    torch._sobol_engine_draw,
    torch._sobol_engine_ff_,
    torch._sobol_engine_initialize_state_,
    torch._sobol_engine_scramble_,
)

# ---------------------------------------------------------------- saving, loading and loaders

SAVING = ("_save", "_legacy_save")
LOADING = ("_load", "_legacy_load")
OPENING = ("_open_zipfile_writer", "_open_file_like")
zip_writer_of: Any = serialization._open_zipfile_writer_buffer
LoaderIterator: Any = _BaseDataLoaderIter
Process: Any = multiprocessing.process.BaseProcess
batches_yielded = attrgetter("_num_yielded")  # of such an iterator
RUN_PROCESS = "_bootstrap"  # the method of a Process that runs its work, in the new process
