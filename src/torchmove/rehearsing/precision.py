"""Mixed precision on the simulated device: autocast with CUDA's operation lists, and gradient scalers.

For torch's C++, stand-ins are CPU tensors, so CPU autocast applies to them. It lowers about the same operations as
CUDA's but lacks many that CUDA computes in float32, which changes the memory that a step uses. From the first autocast
region on, a rehearsal adds kernels for these.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NoReturn
from unittest.mock import patch

import torch
from torch import Tensor

from torchmove.internals.simulation import (
    GRAD_SCALER_STEP,
    destroy_library,
    has_autocast_kernel,
    schema_of,
    without_autocast_key,
)
from torchmove.rehearsing.captured import held
from torchmove.rehearsing.device import NotOnDevice, SimulatedDevice
from torchmove.rehearsing.tensors import mapped

aten = torch.ops.aten
# Operations that CUDA autocast computes in float32; those of the second list by their dtype argument.
_IN_FLOAT32 = (
    *("acos", "asin", "binary_cross_entropy_with_logits", "cosh", "cosine_embedding_loss", "cdist", "dist"),
    *("cosine_similarity", "erfinv", "exp", "expm1", "group_norm", "hinge_embedding_loss", "kl_div", "l1_loss"),
    *("layer_norm", "log", "log10", "log1p", "log2", "margin_ranking_loss", "mse_loss", "multilabel_margin_loss"),
    *("multi_margin_loss", "nll_loss", "nll_loss2d", "pdist", "poisson_nll_loss", "pow", "reciprocal", "renorm"),
    *("rsqrt", "sinh", "smooth_l1_loss", "huber_loss", "soft_margin_loss", "softplus", "tan", "triplet_margin_loss"),
    *("cross_entropy_loss", "rms_norm"),
)
_RESULT_IN_FLOAT32 = ("prod", "softmax", "log_softmax", "cumprod", "cumsum", "sum")
# Operations that CUDA autocast runs in lower precision and CPU autocast does not.
_LOWERED = ("gru", "rnn_relu", "rnn_tanh", "gru_cell", "lstm_cell", "rnn_relu_cell", "rnn_tanh_cell")
_LESSER = {torch.float16, torch.bfloat16}


@contextmanager
def mixed_precision(
    stage: SimulatedDevice, objects: Sequence[Any], is_off: Callable[[Any], bool], assumed: list[str]
) -> Iterator[None]:
    """Enable autocast and gradient scalers for the simulated device, also those that torch disabled for lack of it.

    Those that the user created as disabled stay disabled.
    """
    kind = stage.home.type
    autocast: Any = torch.autocast
    make, enter, leave = autocast.__init__, autocast.__enter__, autocast.__exit__
    step_taken = getattr(torch.amp.GradScaler, GRAD_SCALER_STEP)
    made: weakref.WeakSet[Any] = weakref.WeakSet()
    stay_off: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
    inner: dict[int, Any] = {}
    library: list[Any] = []

    def making(region: Any, *args: Any, **kwargs: Any) -> None:
        made.add(region)
        make(region, *args, **kwargs)

    def stays_off(region: Any) -> bool:
        if region not in stay_off:
            stay_off[region] = is_off(region)
        return stay_off[region]

    def entering(region: Any) -> Any:
        if region.device != kind or stage.over:
            return enter(region)
        if not region._enabled and region not in made and not _is_available(kind) and not stays_off(region):
            said = f"autocast({kind!r}), which torch disabled because this machine has no such device, is enabled"
            assumed.extend([said] if said not in assumed else [])
            region._enabled, before = True, False
        else:
            before = region._enabled
        if region._enabled and not library:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a warning that a CPU kernel is overridden
                library.append(_with_cudas_tables())
        on_cpu = autocast("cpu", dtype=region.fast_dtype, enabled=region._enabled)
        try:
            entered = enter(region)
        finally:
            region._enabled = before
        enter(on_cpu)
        inner.setdefault(id(region), []).append(on_cpu)
        return entered

    def leaving(region: Any, *error: Any) -> Any:
        if inner.get(id(region)):
            leave(inner[id(region)].pop(), *error)
        return leave(region, *error)

    def step_without_looking(scaler: Any, optimizer: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
        """Always step: finite gradients cannot be checked without values, and a real first step is often skipped."""
        return step_taken(scaler, optimizer, state, *args, **kwargs) if stage.over else optimizer.step(*args, **kwargs)

    with (
        patch.object(autocast, "__init__", making),
        patch.object(autocast, "__enter__", entering),
        patch.object(autocast, "__exit__", leaving),
        patch.object(torch.amp.GradScaler, GRAD_SCALER_STEP, step_without_looking),
        _enabled_scalers(kind, objects, is_off, assumed),
        _autocast_restored(kind),
    ):
        try:
            yield
        finally:
            for each in library:
                destroy_library(each)


@contextmanager
def _autocast_restored(kind: str) -> Iterator[None]:
    """Restore autocast settings on exit and clear the autocast cache, which refers to stand-ins."""
    kinds = [each for each in ("cpu", kind) if torch.amp.is_autocast_available(each)]
    before = [(each, torch.is_autocast_enabled(each), torch.get_autocast_dtype(each)) for each in kinds]
    caches, depth = torch.is_autocast_cache_enabled(), _depth()
    try:
        yield
    finally:
        for each, enabled, dtype in before:
            torch.set_autocast_enabled(each, enabled)
            torch.set_autocast_dtype(each, dtype)
        torch.set_autocast_cache_enabled(caches)
        while _depth() > depth:
            torch.autocast_decrement_nesting()
        torch.clear_autocast_cache()


def _depth() -> int:
    """The number of nested autocast regions."""
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


_real_answers = {"cuda": torch.cuda.is_available, "xpu": torch.xpu.is_available}


def _is_available(kind: str) -> bool:
    return bool(_real_answers.get(kind, lambda: True)())


@contextmanager
def _enabled_scalers(
    kind: str, objects: Sequence[Any], is_off: Callable[[Any], bool], assumed: list[str]
) -> Iterator[None]:
    """Enable the scalers that torch disabled because the device was missing."""
    changed: list[tuple[Any, dict[str, Any]]] = []
    if not _is_available(kind):
        for scaler in held(objects, torch.amp.GradScaler):
            if not scaler._enabled and scaler._device == kind and not is_off(scaler):
                changed.append((scaler, dict(scaler.__dict__)))
                assumed.append(
                    f"a GradScaler({kind!r}), which torch disabled because this machine has no such device, is enabled"
                )
    try:
        for scaler, _ in changed:
            with suppress(Exception):  # a subclass with another signature
                type(scaler).__init__(scaler, **({} if type(scaler) is not torch.amp.GradScaler else {"device": kind}))
        yield
    finally:
        for scaler, before in changed:
            scaler.__dict__.clear()
            scaler.__dict__.update(before)


def _with_cudas_tables() -> Any:
    make_library: Any = torch.library.Library
    library = make_library("aten", "IMPL", "AutocastCPU")
    for name in (*_IN_FLOAT32, *_RESULT_IN_FLOAT32, *_LOWERED):
        packet = getattr(aten, name, None)
        for overload in packet.overloads() if packet is not None else ():
            func = getattr(packet, overload)
            arguments = schema_of(func).arguments
            takes_tensors = any(str(each.type).startswith("Tensor") for each in arguments)
            if overload.endswith("out") or not takes_tensors or _has_autocast(func):
                continue
            change = _lowered if name in _LOWERED else _raised
            by_result = name in _RESULT_IN_FLOAT32 and any(each.name == "dtype" for each in schema_of(func).arguments)
            with suppress(RuntimeError):
                library.impl(func.name().removeprefix("aten::"), (_asked_for_float32 if by_result else change)(func))
    with suppress(RuntimeError):
        library.impl("binary_cross_entropy", _unsafe)
    return library


def _unsafe(*_: Any, **__: Any) -> NoReturn:
    why = "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast"
    raise NotOnDevice(
        why, "use torch.nn.functional.binary_cross_entropy_with_logits or nn.BCEWithLogitsLoss, without the sigmoid"
    )


def _has_autocast(func: Any) -> bool:
    try:
        return has_autocast_kernel(func)
    except RuntimeError:  # an operator of TorchScript only
        return True


def _raised(func: Any) -> Callable[..., Any]:
    def in_float32(*args: Any, **kwargs: Any) -> Any:
        with _outside_autocast():
            args, kwargs = mapped(_as_float32, (args, kwargs))
            return func(*args, **kwargs)

    return in_float32


def _lowered(func: Any) -> Callable[..., Any]:
    def in_lower_precision(*args: Any, **kwargs: Any) -> Any:
        dtype = torch.get_autocast_dtype("cpu")
        with _outside_autocast():
            args, kwargs = mapped(lambda each: each.to(dtype) if _is_float32(each) else each, (args, kwargs))
            return func(*args, **kwargs)

    return in_lower_precision


def _is_float32(each: Any) -> bool:
    return isinstance(each, Tensor) and each.dtype is torch.float32


def _asked_for_float32(func: Any) -> Callable[..., Any]:
    def with_dtype(*args: Any, **kwargs: Any) -> Any:
        with _outside_autocast():
            first = args[0] if args else kwargs.get("self")
            if isinstance(first, Tensor) and first.dtype in _LESSER and kwargs.get("dtype") is None:
                kwargs = {**kwargs, "dtype": torch.float32} if _takes_by_name(func, args) else kwargs
            return func(*args, **kwargs)

    return with_dtype


def _takes_by_name(func: Any, args: Sequence[Any]) -> bool:
    names = [each.name for each in schema_of(func).arguments]
    return names.index("dtype") >= len(args)


def _outside_autocast() -> Any:
    return without_autocast_key()


def _as_float32(each: Any) -> Any:
    return each.to(torch.float32) if isinstance(each, Tensor) and each.dtype in _LESSER else each
