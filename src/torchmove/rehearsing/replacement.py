"""Replace the tensors of a state under the same Python objects, so that all references see their replacements.

For the simulation these are stand-ins; for a run without it, copies on the CPU, with the device read as the CPU. Every
change is on an undo list before it is made; the list, run backwards, restores everything.
"""

from __future__ import annotations

import contextvars
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn import parameter
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from torchmove.internals.guards import Undo, plain_torch
from torchmove.internals.storages import is_view_of_storage
from torchmove.rehearsing.captured import Captured
from torchmove.rehearsing.device import SimulatedDevice, outside_simulation
from torchmove.rehearsing.provenance import Origin
from torchmove.rehearsing.restore import remember, remember_generators, remember_globals, remember_names
from torchmove.rehearsing.tensors import CPU, Itself, StandIn, place_of, swap
from torchmove.surveying.inventory import Inventory, StateStorage
from torchmove.surveying.paths import Path
from torchmove.surveying.survey import survey_objects

_PARTS = {"parameter": "parameters", "buffer": "parameters", "gradient": "gradients", "state": "optimizer"}


def set_up(
    inventory: Inventory,
    stage: SimulatedDevice,
    places: Mapping[int, torch.device],
    origin_of: Callable[[Path, str, Tensor], Origin | None],
    undo: Undo,
) -> None:
    """Replace all tensors of an inventory by stand-ins, keeping shared storages. `places`: devices by tensor id."""
    tensors, roles = inventory.tensors.objects, inventory.tensors.roles()
    gradients = [(tensor, tensor.grad) for tensor in tensors if tensor.is_leaf and tensor.grad is not None]

    def origin_at(index: int) -> Origin | None:
        if places[id(tensors[index])] is stage.home:
            return None
        entry = inventory.tensors[index]
        return origin_of(entry.path, entry.role, entry.tensor)

    for storage in inventory.storages:
        if _can_be_stood_in(storage, tensors):
            weighs = any(roles[index] in ("parameter", "gradient") for index in storage.indices)
            base = stage.storage_for(tensors[storage.indices[0]], weighs=weighs)
            for index in storage.indices:
                tensor = tensors[index]
                standin = stage.wrap(stage.window(base, tensor), places[id(tensor)], origin_at(index))
                standin._part = _PARTS.get(roles[index], "other tensors")
                stage.meter.mark(standin._behind, standin._part)
                put_in_place(tensor, standin, undo)
        for index in storage.indices:
            if is_lazy(tensors[index]):
                stage.itself(tensors[index], places[id(tensors[index])], origin_at(index))
    for composite in inventory.composites:  # such as a sparse tensor: it is where its parts are
        place = next((places[id(part)] for part in composite.parts if id(part) in places), CPU)
        origin = None if place is stage.home else origin_of(composite.path, composite.role, composite.tensor)
        stage.itself(composite.tensor, place, origin)
    for tensor, gradient in gradients:
        if isinstance(tensor, StandIn):
            tensor.grad = gradient


def _can_be_stood_in(storage: StateStorage, tensors: Any) -> bool:
    """Whether stand-ins can replace its tensors; sparse and uninitialized ones stay real."""
    return not storage.opaque and all(
        not is_lazy(tensors[index]) and is_view_of_storage(tensors[index]) for index in storage.indices
    )


def put_in_place(tensor: Tensor, standin: Tensor, undo: Undo) -> None:
    """Put a stand-in under the Python object of a tensor."""
    before = type(tensor)
    standin.__dict__.update(tensor.__dict__)
    if isinstance(standin, StandIn):
        if standin._origin is not None:
            standin._origin.tensor = weakref.ref(tensor)
        if isinstance(tensor, nn.Parameter):
            standin._is_param = True
    else:
        standin.__class__ = before
    standin.requires_grad_(tensor.requires_grad)
    hooks = (tensor._backward_hooks, tensor._post_accumulate_grad_hooks)
    if any(hooks):
        remember(filter(None, hooks), undo)
    there = [standin]  # emptied by `back`, which may be called twice

    def back() -> None:
        if there:
            _swap(tensor, standin, hooks)
            there.clear()

    undo.append(back)
    _swap(tensor, standin, hooks)


def _swap(tensor: Any, other: Tensor, hooks: Any) -> None:
    swap(tensor, other)
    # The dicts of hooks stay with the Python object; assign them again to register them with the other implementation.
    if tensor._backward_hooks is not None or hooks[0] is not None:
        tensor._backward_hooks = hooks[0]
    if tensor._post_accumulate_grad_hooks is not None or hooks[1] is not None:
        tensor._post_accumulate_grad_hooks = hooks[1]


def copies(inventory: Inventory, undo: Undo) -> None:
    """Replace all tensors by real copies on the CPU that share storages as they do."""
    tensors = inventory.tensors.objects
    gradients = [(tensor, tensor.grad) for tensor in tensors if tensor.is_leaf and tensor.grad is not None]
    for storage in (each for each in inventory.storages if _can_be_stood_in(each, tensors)):
        memory = tensors[storage.indices[0]].untyped_storage().cpu().clone()  # type: ignore[no-untyped-call]
        for tensor in (tensors[index] for index in storage.indices):
            data = tensor.data
            copy = torch.empty(0, dtype=data.dtype).set_(memory, data.storage_offset(), data.size(), data.stride())
            put_in_place(tensor, copy, undo)
    for tensor, gradient in gradients:
        tensor.grad = gradient


_KINDS = (parameter.UninitializedParameter, parameter.UninitializedBuffer)


@contextmanager
def lazy_tensors(stage: SimulatedDevice, undo: Undo) -> Iterator[None]:
    """Track the device of lazy tensors that the step creates, and replace them by stand-ins when they get a shape."""

    def materialize(tensor: Any, shape: Any, device: Any = None, dtype: Any = None) -> None:
        with outside_simulation():
            behind = torch.empty(shape, dtype=dtype or tensor.data.dtype, device="cpu" if stage.real else "meta")
        waited = stage.itself(tensor)
        place = waited._place if device is None else place_of(torch.device(device))
        origin = None if place is stage.home else waited._origin
        put_in_place(tensor, stage.wrap(behind, place, origin), undo)

    mixin: Any = parameter.UninitializedTensorMixin  # type: ignore[attr-defined]
    with patch.object(mixin, "materialize", materialize), ExitStack() as stack:
        for kind in _KINDS:
            stack.enter_context(patch.object(kind, "__new__", _making(kind, stage)))
        yield


def _making(kind: Any, stage: SimulatedDevice) -> Callable[..., Any]:
    make = kind.__new__
    by_default = kind is parameter.UninitializedParameter  # torch's own defaults

    def made(cls: Any, requires_grad: bool = by_default, device: Any = None, dtype: Any = None, **kwargs: Any) -> Any:
        if stage.over:
            return make(cls, requires_grad, device, dtype, **kwargs)
        like = torch.empty(0, device=device, dtype=dtype)
        with outside_simulation():
            tensor = make(cls, requires_grad, None, dtype, **kwargs)
        place, origin = (like._place, like._origin) if isinstance(like, StandIn) else (stage.home, None)
        stage.themselves[id(tensor)] = Itself(tensor, place, origin)
        return tensor

    return made


# ---------------------------------------------------------------- a run without the simulation


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
