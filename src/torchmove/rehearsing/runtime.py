"""What torch and libraries say of the simulated device: patches of torch, and the process-wide state of libraries.

The patches: torch.cuda, torch.accelerator, legacy tensor types, and no compilation. Tracing and forward-mode
differentiation, which a rehearsal cannot follow, raise. Of libraries: the cached answers about the device, and the
device they chose. They are cleared first, so that libraries query the simulated device, and restored or cleared again
afterwards.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from operator import attrgetter
from typing import Any, NoReturn
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from torchmove.internals.guards import HeldInterrupts, Undo
from torchmove.internals.simulation import pytree
from torchmove.internals.stored import LruCache, contents, refill
from torchmove.rehearsing.device import NotFollowed, SimulatedDevice
from torchmove.rehearsing.origins import argument_of, users_name
from torchmove.rehearsing.provenance import users_line
from torchmove.rehearsing.sources import ASKS
from torchmove.rehearsing.tensors import CPU, StandIn


@contextmanager
def nothing_traced() -> Iterator[None]:
    with (
        patch.object(torch.export, "export", _refuse),
        patch.object(torch.jit, "trace", _refuse),
        patch.object(forward_ad, "make_dual", _refuse_duals),
    ):
        yield


def _refuse_duals(*_: Any, **__: Any) -> NoReturn:
    raise NotFollowed("a rehearsal does not support forward-mode differentiation: torch keeps the tangents in C++")


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise NotFollowed("a rehearsal does not support code that torch traces or exports")


@contextmanager
def simulated(stage: SimulatedDevice) -> Iterator[None]:
    home = stage.home
    with ExitStack() as patches:
        patches.enter_context(_without_compiler())
        for module, name, value in _answers(stage):
            if hasattr(module, name):
                patches.enter_context(patch.object(module, name, value))
        optimizers = importlib.import_module("torch.optim.optimizer")
        patches.enter_context(patch.object(optimizers, "_foreach_supported_types", _MANY_AT_ONCE))
        checkpoints: Any = importlib.import_module("torch.utils.checkpoint")
        checks = getattr(checkpoints, "_allowed_determinism_checks_to_fns", {})
        patches.enter_context(patch.dict(checks, default=_shape_and_dtype))
        patches.enter_context(patch.object(nn.RNNBase, "flatten_parameters", _nothing))
        # torch's C++ checks the type of the stream before it dispatches.
        patches.enter_context(patch.object(Tensor, "record_stream", _nothing))
        patches.enter_context(patch.object(nn.DataParallel, "scatter", _to_the_one_device(home)))
        for module in (torch, torch.random):
            restore = partial(_restored, stage, module.set_rng_state)
            patches.enter_context(patch.object(module, "set_rng_state", restore))
        for module in (torch, torch.utils.dlpack):
            patches.enter_context(patch.object(module, "from_dlpack", _from_dlpack(torch.utils.dlpack.from_dlpack)))
        if home.type == "mps":
            for name in ("is_available", "is_built", "is_macos_or_newer"):
                patches.enter_context(patch.object(torch.backends.mps, name, _always(True)))
        yield


@contextmanager
def _without_compiler() -> Iterator[None]:
    """Run compiled functions eagerly."""
    if "torch._dynamo" not in sys.modules and "torch._dynamo.eval_frame" not in sys.modules:
        # Optimizers import torch's compiler on first use; the import has to see the real torch.cuda.
        with HeldInterrupts() as interrupts, interrupts:  # a partial import would break it for good
            importlib.import_module("torch._dynamo")
    with torch.compiler.set_stance("force_eager"):
        yield


def _answers(stage: SimulatedDevice) -> Iterator[tuple[Any, str, Any]]:
    """Yield (module, name, replacement) for the device's module, torch.accelerator and others."""
    kind = stage.home.type
    own = getattr(torch, kind, None)
    for name, answer in _ANSWERS.items():
        for module in (own, getattr(own, "random", None), getattr(own, "memory", None)):
            yield module, name, _always(answer)
    for name in _IDLE:
        yield own, name, _Idle
    for name, answer in _ANSWERS.items():
        yield torch.accelerator, name, _always(answer)
    yield torch.accelerator, "current_accelerator", lambda check_available=False: torch.device(kind)
    for name in ("current_device_index", "current_device_idx"):
        yield torch.accelerator, name, _always(stage.home.index)
    for name in ("set_device_index", "set_device_idx", "set_stream"):
        yield torch.accelerator, name, _nothing
    yield torch.accelerator, "current_stream", _Idle
    yield torch.accelerator, "device_index", _Idle
    for name in ("Stream", "Event"):
        yield torch, name, _Idle
    for module in (own, getattr(own, "profiler", None)):
        yield module, "cudart", _Idle
        yield module, "check_error", _nothing
    yield own, "graph_pool_handle", _always((0, 0))
    yield own, "make_graphed_callables", _as_it_is
    yield getattr(own, "nvtx", None), "_nvtx", _Idle()
    yield torch.autograd.profiler, "emit_nvtx", _Idle
    for name in ("nested_tensor", "as_nested_tensor"):
        yield torch.nested, name, _made_and_sent(getattr(torch.nested, name))
    for kind_of_type, dtype in _TYPES.items():
        name = f"{kind_of_type}Tensor"
        yield own, name, tensor_type(name, dtype, stage.home)
        yield torch, name, tensor_type(name, dtype, CPU)
    yield torch, "set_default_tensor_type", _default_type(stage)


def _to_the_one_device(home: torch.device) -> Callable[..., Any]:
    def scatter(_: Any, inputs: Any, kwargs: Any, __: Any) -> Any:
        args, named = pytree.tree_map(
            lambda each: each.to(home) if isinstance(each, Tensor) else each, (inputs, kwargs or {})
        )
        return (args,), (named,)

    return scatter


def _shape_and_dtype(tensor: Tensor) -> dict[str, Any]:
    """The metadata that checkpointing compares between forward and recomputation.

    Without the device: a tensor on the wrong device is corrected in between.
    """
    return {"shape": tensor.shape, "dtype": tensor.dtype}


def _restored(stage: SimulatedDevice, restore: Callable[[Any], None], state: Any) -> None:
    restore(stage.state_of_generator(state))


def _from_dlpack(really: Callable[..., Any]) -> Callable[..., Any]:
    def from_dlpack(each: Any, **options: Any) -> Any:
        """`from_dlpack` for stand-ins: shares memory, without the address that torch's C++ would read."""
        return each.detach() if isinstance(each, StandIn) else really(each, **options)

    return from_dlpack


# The types of tensors for which optimizers use foreach kernels.
_MANY_AT_ONCE = [Tensor, nn.Parameter, StandIn]


class _Idle:
    """A stream, event or context manager that accepts any call and does nothing."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __enter__(self) -> _Idle:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def elapsed_time(self, _: object) -> float:
        return 1.0

    def query(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        return _nothing


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _as_it_is(callables: Any, *_: Any, **__: Any) -> Any:
    """`make_graphed_callables`: the functions run as written, without a graph."""
    return callables


def _made_and_sent(make: Callable[..., Any]) -> Callable[..., Any]:
    """Create with `make` on the CPU, then move: torch's C++ would allocate on the device."""

    def made_and_sent(*args: Any, device: Any = None, **kwargs: Any) -> Any:
        made = make(*args, **kwargs)
        return made if device is None else made.to(device)

    return made_and_sent


def _always(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


class _Properties:
    """The properties of the simulated device, as torch.cuda.get_device_properties returns them."""

    name = "a simulated device"
    major, minor = 9, 0
    total_memory = 1 << 40
    multi_processor_count = 132
    warp_size = 32
    gcnArchName = ""  # noqa: N815 (torch's name)
    max_threads_per_multi_processor, regs_per_multiprocessor = 2048, 65536
    shared_memory_per_block, L2_cache_size = 48 << 10, 50 << 20
    is_integrated = is_multi_gpu_board = 0
    uuid = "00000000-0000-0000-0000-000000000000"


class _Counts(dict[str, Any]):
    """Memory statistics: zero for every name."""

    def __missing__(self, _: str) -> int:
        return 0


_ANSWERS: dict[str, Any] = {
    "is_available": True,
    "is_initialized": True,
    "is_bf16_supported": True,
    "is_current_stream_capturing": False,
    "is_tf32_supported": True,
    "device_count": 1,
    "current_device": 0,
    "get_device_name": _Properties.name,
    "get_device_capability": (9, 0),
    "get_device_properties": _Properties,
    "get_arch_list": ["sm_90"],
    "mem_get_info": (1 << 40, 1 << 40),
    "get_memory_info": (1 << 40, 1 << 40),
    "memory_summary": "",
    **dict.fromkeys(["memory_stats", "host_memory_stats", "memory_stats_as_nested_dict"], _Counts()),
    "memory_snapshot": [],
    "initial_seed": 0,
    "recommended_max_memory": 1 << 40,
    **dict.fromkeys(["memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"], 0),
    **dict.fromkeys(["current_allocated_memory", "driver_allocated_memory", "utilization"], 0),
    **dict.fromkeys(["init", "set_device", "synchronize", "empty_cache", "ipc_collect", "set_stream"]),
    **dict.fromkeys(["manual_seed", "manual_seed_all", "seed", "seed_all"]),
    **dict.fromkeys(["set_rng_state", "set_rng_state_all", "set_per_process_memory_fraction"]),
    **dict.fromkeys(["reset_peak_memory_stats", "reset_accumulated_memory_stats", "reset_max_memory_allocated"]),
    **dict.fromkeys(["reset_peak_host_memory_stats", "reset_accumulated_host_memory_stats"]),
    **dict.fromkeys(["_record_memory_history", "_dump_snapshot", "_sleep", "set_sync_debug_mode"]),
    **dict.fromkeys(["get_sync_debug_mode", "device_memory_used", "memory_usage"], 0),
    **dict.fromkeys(["temperature", "power_draw", "clock_rate"], 0),
    "can_device_access_peer": False,
    "get_allocator_backend": "native",
    "get_per_process_memory_fraction": 1.0,
    "get_rng_state": torch.zeros(16, dtype=torch.uint8),
    "get_rng_state_all": [torch.zeros(16, dtype=torch.uint8)],
}
_IDLE = (
    "Stream",
    "Event",
    "stream",
    "device",
    "device_of",
    "current_stream",
    "default_stream",
    "StreamContext",
    "CUDAGraph",
    "graph",
)

# ---------------------------------------------------------------- torch.cuda.FloatTensor

_TYPES = {
    "Float": torch.float32,
    "Double": torch.float64,
    "Half": torch.float16,
    "BFloat16": torch.bfloat16,
    "Byte": torch.uint8,
    "Char": torch.int8,
    "Short": torch.int16,
    "Int": torch.int32,
    "Long": torch.int64,
    "Bool": torch.bool,
}


class _TensorType(type):
    """The class of legacy tensor types such as torch.cuda.FloatTensor, which name a dtype and a device."""

    dtype: torch.dtype
    simulated_on: torch.device
    real: Any  # torch's own CPU type

    def __instancecheck__(cls, tensor: object) -> bool:
        if not isinstance(tensor, Tensor) or tensor.layout is not torch.strided:
            return False
        return tensor.dtype == cls.dtype and tensor.device == cls.simulated_on

    def __call__(cls, *values: Any, **named: Any) -> Any:
        other = values[0] if len(values) == 1 else None
        if isinstance(other, StandIn) and other._place is not cls.simulated_on:
            return _of_another_device(other, cls)
        if cls.simulated_on is CPU:
            return cls.real(*values, **named)
        if len(values) == 1 and not isinstance(values[0], (int, torch.Size)):
            return torch.as_tensor(values[0], dtype=cls.dtype, device=cls.simulated_on)
        return torch.empty(*values, dtype=cls.dtype, device=cls.simulated_on)


def _of_another_device(tensor: StandIn, kind: _TensorType) -> Tensor:
    """Report a legacy constructor called with a tensor on another device, and continue with the converted tensor."""
    stage = tensor._stage
    if kind.simulated_on is not CPU:
        stage.tell(tensor, f"torch.{kind.simulated_on.type}.{kind.__name__}", users_line())
        return torch.as_tensor(tensor, dtype=kind.dtype, device=kind.simulated_on)
    name = argument_of(users_line(), kind.__name__) or users_name(tensor) or "x"
    why = f"torch.{kind.__name__} takes tensors on the CPU, but this one is on {tensor._place}"
    stage.find(users_line(), "host", why, f"{name}.to({kind.dtype})")
    return tensor.to(kind.dtype)


def tensor_type(name: str, dtype: torch.dtype, home: torch.device) -> Any:
    return _TensorType(name, (), {"dtype": dtype, "simulated_on": home, "real": getattr(torch, name, None)})


def _default_type(stage: SimulatedDevice) -> Callable[..., None]:
    """`torch.set_default_tensor_type`, which sets a default dtype and a default device."""
    really = torch.set_default_tensor_type

    def set_default_tensor_type(kind: Any, /) -> None:
        if isinstance(kind, str) and kind.startswith("torch."):
            kind = attrgetter(kind.removeprefix("torch."))(torch)
        if not isinstance(kind, _TensorType) or not kind.dtype.is_floating_point:
            really(getattr(kind, "real", kind))
            return
        torch.set_default_dtype(kind.dtype)
        stage.default_type = None if kind.simulated_on is CPU else kind.simulated_on

    return set_default_tensor_type


def simulated_type(real: Any, home: torch.device) -> Any:
    """The legacy type on the simulated device for a CPU type; None if it is not such a type."""
    name = "Float" if real is Tensor else getattr(real, "__name__", "").removesuffix("Tensor")
    return tensor_type(f"{name}Tensor", _TYPES[name], home) if name in _TYPES else None


# ---------------------------------------------------------------- what libraries keep of the device

# Dicts shared by all objects of a library class, by module.
_SHARED = {
    "accelerate.state": ("PartialState._shared_state", "AcceleratorState._shared_state", "GradientState._shared_state"),
    "pyro.poutine.runtime": ("_PYRO_PARAM_STORE._params", "_PYRO_PARAM_STORE._param_to_name"),
}
_looked_at: set[str] = set()
_caches: dict[str, Any] = {}  # by module and name


def forget_answers(undo: Undo) -> None:
    """Clear the caches of functions that ask for the device, directly or through other cached functions."""
    _look_for_caches()
    asking = {*ASKS}
    found: list[Any] = []
    while True:
        more = [
            each for each in _caches.values() if each not in found and asking & {*each.__wrapped__.__code__.co_names}
        ]
        if not more:
            break
        found += more
        asking |= {each.__wrapped__.__name__ for each in more}
    for each in found:
        if each.cache_info().currsize:
            each.cache_clear()
        undo.append(each.cache_clear)


def _look_for_caches() -> None:
    for name, module in list(sys.modules.items()):
        if name in _looked_at or name.partition(".")[0] == "torch" or not isinstance(module, types.ModuleType):
            continue
        _looked_at.add(name)
        for own, value in list(vars(module).items()):
            is_cache = isinstance(value, LruCache)
            if is_cache and isinstance(getattr(value, "__wrapped__", None), types.FunctionType):
                _caches[f"{name}.{own}"] = value


def remember_shared(undo: Undo) -> None:
    for holder, name, shared in _shared():
        undo += [partial(refill, shared, contents(shared)), partial(setattr, holder, name, shared)]


def take_chosen(objects: Iterable[Any], home: torch.device, undo: Undo) -> list[str]:
    """Replace the CPU chosen by accelerate with the simulated device, and return a note about this assumption."""
    own = [vars(each) for each in objects if type(each).__module__.startswith("accelerate.")]
    taken = False
    for holder in (*(shared for _, _, shared in _shared()), *own):
        if holder.get("device") == CPU and not holder.get("_cpu"):
            undo.append(partial(holder.__setitem__, "device", holder["device"]))
            holder["device"] = home
            taken = True
    said = f"accelerate chose cpu on this machine; the rehearsal uses {home}. Accelerator(cpu=True) keeps the CPU"
    return [said] if taken else []


def _shared() -> Iterator[tuple[Any, str, dict[Any, Any]]]:
    """Yield each shared dict after its holder and attribute name."""
    for name, paths in _SHARED.items():
        for path in paths if name in sys.modules else ():
            first, last = path.split(".")
            holder = getattr(sys.modules[name], first, None)
            shared = getattr(holder, last, None)
            if isinstance(shared, dict):
                yield holder, last, shared


def take_accelerators(objects: Iterable[Any], home: torch.device, undo: Undo) -> None:
    """Turn the CPU accelerator of a Lightning `Trainer` or `Fabric` into the CUDA accelerator."""
    for each in objects if home.type == "cuda" else ():
        module, own = type(each).__module__, type(each)
        if own.__name__ == "CPUAccelerator" and module.endswith(".accelerators.cpu"):
            undo.append(partial(setattr, each, "__class__", own))
            each.__class__ = sys.modules[f"{module.removesuffix('cpu')}cuda"].CUDAAccelerator
