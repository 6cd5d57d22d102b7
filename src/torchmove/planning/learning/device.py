"""A simulated device: tensors that report it as their device, with real bytes on the CPU, so that values can be read.

In torch's C++ such a tensor is on `meta`, the one device type without a runtime that every build of torch has; Python
sees the simulated device. The CPU's kernels run every operation, and torch never initializes the real device.
"""

from __future__ import annotations

import random
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.optim import optimizer as optimizers

from torchmove.internals.guards import without_modes
from torchmove.internals.simulation import (
    FAKE_MODE,
    TorchDispatchMode,
    disabled_torch_function,
    is_profiling,
    lifts_to_cpu_only,
    make_wrapper_subclass,
    negated,
    record_functions,
    set_conjugated,
    set_lifts_to_cpu_only,
    set_negated,
    without_torch_function,
)

CPU = torch.device("cpu")
_BETWEEN_DEVICES = {"copy_", "_to_copy", "index", "index_put", "index_put_", "_index_put_impl_"}
_OTHER_PROCESSES = {"c10d", "_c10d_functional", "_dtensor", "symm_mem"}


class GivenUp(BaseException):
    """The optimizer does something that is not simulated. Not an Exception, so that its own code does not catch it."""


class FirstStepTensor(Tensor):
    """A tensor on the simulated device."""

    _simulation: FirstStepMode

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self._simulation.device

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return self.device.type == "cuda"

    @property
    def is_meta(self) -> bool:  # type: ignore[override]
        return False

    def get_device(self) -> int:
        return self.device.index or 0

    def new_tensor(self, data: Any, dtype: Any = None, device: Any = None, **options: Any) -> Tensor:  # type: ignore[override]
        # torch's own method would make it on the device that C++ knows.
        return torch.tensor(data, dtype=dtype or self.dtype, device=device or self.device, **options)

    def new(self, *given: Any, **options: Any) -> Tensor:  # type: ignore[override]
        if self.is_sparse:
            return torch.sparse_coo_tensor(*given, dtype=self.dtype, device=self.device)
        if given and not isinstance(given[0], (int, torch.Size)):
            return self.new_tensor(*given, **options)
        return torch.empty(*given or (0,), dtype=self.dtype, device=self.device)

    def type(self, dtype: Any = None, *_: Any, **__: Any) -> Any:
        name = f"torch.{self.device.type}."
        if dtype is None:
            return self._simulation.real(self).type().replace("torch.", name)
        asked = dtype.replace(name, "torch.") if isinstance(dtype, str) else dtype
        return self.to(torch.empty(0, device=CPU).type(asked).dtype)

    def __format__(self, how: str) -> str:
        return format(self.item(), how) if self.dim() == 0 else repr(self)

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"tensor(..., size={tuple(self.shape)}, device='{self.device}')"

    __torch_function__ = disabled_torch_function

    @classmethod
    def __torch_dispatch__(cls, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Called where torch disables modes, as it does when it makes a parameter."""
        simulation = next(each._simulation for each in _tensors((args, kwargs)) if type(each) is cls)
        return simulation.run(func, args, kwargs or {})


class FirstStepMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs every operation on real CPU tensors, and wraps its results for the simulated device."""

    def __init__(self, device: torch.device, until: float) -> None:
        """`until`: the time at which it gives up."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.device, self.until = device, until
        self.bytes: dict[int, tuple[Any, Any]] = {}  # real storages, by the simulated ones, which are kept alive
        # Under a mode with this key, torch does not initialize the device that a new tensor is requested on ...
        self._mode_key = FAKE_MODE

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __enter__(self) -> FirstStepMode:
        # ... and makes tensors from Python values on the CPU, before it asks this mode to move them.
        self._lifted_before = lifts_to_cpu_only()
        set_lifts_to_cpu_only(True)
        return super().__enter__()  # type: ignore[no-any-return, no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        set_lifts_to_cpu_only(self._lifted_before)

    def put(self, real: Tensor) -> FirstStepTensor:
        """A simulated tensor over the bytes of a real one."""
        strided = real.layout is torch.strided
        made: FirstStepTensor = make_wrapper_subclass(
            FirstStepTensor,
            real.size(),
            strides=real.stride() if strided else None,
            storage_offset=real.storage_offset() if strided else None,
            dtype=real.dtype,
            layout=real.layout,
            device=torch.device("meta"),
        )
        made._simulation = self
        if strided:
            # By the storage, not by the tensor: after `tensor.data = other` the tensor has another storage.
            storage = made.untyped_storage()
            self.bytes[storage._cdata] = (real.untyped_storage(), storage)
            if real.is_conj():
                set_conjugated(made, True)
            if real.is_neg():
                set_negated(made, True)
        else:
            made._whole = real  # type: ignore[attr-defined]
        return made

    def real(self, tensor: Tensor) -> Tensor:
        if type(tensor) is not FirstStepTensor:
            # torch made it from a Python value, on the device that C++ knows, and has dropped the value.
            return torch.ones(tensor.size(), dtype=tensor.dtype, device=CPU)
        whole: Tensor | None = tensor.__dict__.get("_whole")
        if whole is not None:
            return whole
        storage, _ = self.bytes[tensor.untyped_storage()._cdata]
        real = torch.empty(0, dtype=tensor.dtype, device=CPU)
        real.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())
        real = real.conj() if tensor.is_conj() else real
        return negated(real) if tensor.is_neg() else real

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.run(func, args, kwargs or {})

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if func.namespace in _OTHER_PROCESSES:
            raise GivenUp("it communicates with other processes")
        if time.perf_counter() > self.until:
            raise GivenUp("its first step takes too long")
        given: list[Tensor] = []
        known: dict[int, tuple[Tensor, Tensor]] = {}

        def real(tensor: Any) -> Any:
            if not isinstance(tensor, Tensor):
                return tensor
            given.append(tensor)
            if not _is_simulated(tensor):
                return tensor
            found = self.real(tensor)
            known[id(found)] = (found, tensor)
            return found

        real_args, real_kwargs = _mapped(real, args), _mapped(real, kwargs)
        if any(map(_dispatches, given)):
            return NotImplemented  # another subclass handles the operation, and calls this mode again
        _check_devices(func.overloadpacket.__name__, args, given)
        asked = kwargs.get("device")
        if asked is not None:
            real_kwargs = {**real_kwargs, "device": CPU}
        out = func(*real_args, **real_kwargs)
        there = bool(known) if asked is None else torch.device(asked).type != "cpu"
        return self.wrapped(out, there, known, _columns(func, args))

    def wrapped(self, out: Any, there: bool, known: dict[int, tuple[Tensor, Tensor]], columns: list[bool]) -> Any:
        def wrap(real: Any, here: bool) -> Any:
            if not isinstance(real, Tensor) or _dispatches(real):
                return real
            if id(real) not in known:
                return self.put(real) if here else real
            simulated = known[id(real)][1]
            if simulated.shape != real.shape:
                simulated.data = self.put(real)
            return simulated

        if isinstance(out, (list, tuple)):
            places = columns if len(columns) == len(out) else [there] * len(out)
            return type(out)([wrap(*each) for each in zip(out, places, strict=True)])
        return wrap(out, there)


def _check_devices(name: str, args: Any, given: list[Tensor]) -> None:
    """Raise as torch's kernels do: of CPU tensors, only a zero-dimensional one may be read with other devices."""
    if name in _BETWEEN_DEVICES or name.startswith("_foreach") or len({*map(_is_simulated, given)}) < 2:
        return
    written = args[0] if args and name.endswith("_") else None
    if any(not _is_simulated(each) and (each.dim() or each is written) for each in given):
        raise RuntimeError(f"Expected all tensors to be on the same device ({name})")


def _columns(func: Any, args: Any) -> list[bool]:
    """For a foreach operation: which of its results are on the simulated device."""
    lists = [each for each in args if isinstance(each, (list, tuple))]
    if not lists or not func.overloadpacket.__name__.startswith("_foreach"):
        return []
    return [
        any(isinstance(each, Tensor) and _is_simulated(each) for each in column) for column in zip(*lists, strict=False)
    ]


def _is_simulated(tensor: Tensor) -> bool:
    return type(tensor) is FirstStepTensor or tensor.device.type == "meta"


def _dispatches(tensor: Tensor) -> bool:
    """Whether it is of another subclass with a `__torch_dispatch__` of its own."""
    kind = type(tensor)
    return kind is not FirstStepTensor and kind.__torch_dispatch__ is not Tensor.__torch_dispatch__


def _tensors(tree: Any) -> list[Tensor]:
    found: list[Tensor] = []
    _mapped(lambda each: found.append(each) if isinstance(each, Tensor) else None, tree)
    return found


def _mapped(change: Callable[[Any], Any], tree: Any) -> Any:
    if type(tree) in (list, tuple):
        return type(tree)([_mapped(change, each) for each in tree])
    if type(tree) is dict:
        return {key: _mapped(change, each) for key, each in tree.items()} if tree else tree
    return change(tree)


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
