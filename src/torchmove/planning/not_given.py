"""What belongs to the state and was not given: optimizers, moving averages and gradient scalers of its parameters.

A model does not lead to its optimizer. An object to which the variables of the program lead (`surveying.variables`) is
noted if it belongs to parameters of the state, was not reached from the given objects, and has tensors that are left
behind. One without tensors, such as an optimizer before its first step, needs no move.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from torchmove.formatting import counted, listed
from torchmove.internals.guards import plain_torch
from torchmove.internals.storages import shape_of
from torchmove.internals.stored import attributes, children_of, registered_in, stored_dict
from torchmove.planning.placement import KEPT
from torchmove.planning.plan import Note, Plan
from torchmove.surveying.inventory import Inventory
from torchmove.surveying.variables import Variable, find_variables


class Place(NamedTuple):
    """The device of a tensor before a move (None: unknown), and after it; and the dtype that a cast gives it."""

    before: torch.device | None
    after: torch.device
    cast_to: torch.dtype | None = None

    def leaves(self, tensor: Tensor) -> bool:
        """Whether a tensor that belongs to this one is where this one was, and should be where this one is."""
        if tensor.device.type == "cpu" and tensor.numel() == 1:
            return False  # optimizers keep scalars on the CPU
        if self.cast_to is not None and tensor.is_floating_point() and tensor.dtype != self.cast_to and tensor.dim():
            return True
        return tensor.device != self.after and self.before in (None, tensor.device)


class Case(NamedTuple):
    """A state, the places of its tensors by their ids, and the other arguments of the call, as they are written."""

    inventory: Inventory
    places: Mapping[int, Place]
    arguments: str


def with_notes(plan: Plan) -> Plan:
    """The plan, with the notes about what was not given; the same plan if it moves nothing."""
    notes = _notes_before(plan) if plan.moves else ()
    return replace(plan, notes=(*plan.notes, *notes)) if notes else plan


def _notes_before(plan: Plan) -> tuple[Note, ...]:
    tensors, devices = plan.inventory.tensors.objects, plan.inventory.tensors.metadata.devices
    kept, casts = KEPT in plan.reasons.values(), plan.moves.converted
    places = {}
    for index in plan.moves.indices():
        cast_to = casts[index].dtype if index in casts and casts[index].dtype != tensors[index].dtype else None
        places[id(tensors[index])] = Place(devices[index], plan.placement[index], cast_to)
    is_plain = len(plan.devices) < 2 and not kept and not plan.converts
    return _notes(Case(plan.inventory, places, f"to={str(plan.target)!r}" if is_plain else _as_before(plan)))


def notes_now(inventory: Inventory, target: torch.device) -> tuple[Note, ...]:
    """The notes about a state where it is."""
    devices = inventory.tensors.metadata.devices
    places = {tensor: Place(None, devices[index]) for tensor, index in inventory.number.items()}
    return _notes(Case(inventory, places, f"to={str(target)!r}"))


@plain_torch
def _notes(case: Case) -> tuple[Note, ...]:
    with suppress(Exception):  # the notes are only information
        if any(case.inventory.tensors.metadata.requires_grads):
            case = case._replace(places={**case.places, **dict(_of_composites(case))})
            return tuple(_noted(case, [each for each in _belonging(case) if each.tensors]))
    return ()


def _of_composites(case: Case) -> Iterator[tuple[int, Place]]:
    for composite in case.inventory.composites:
        for part in composite.parts:
            if id(part) in case.places:
                yield id(composite.tensor), case.places[id(part)]


def _as_before(plan: Plan) -> str:
    """The other arguments of a call that has more than a target, such as keep=: they stay."""
    return "..." if plan.dtype is None else "..., cast_optimizer=True"


class Belonging(NamedTuple):
    """An object that belongs to the state and was not given, and its tensors that are left behind."""

    variable: Variable
    does: str
    tensors: Sequence[Tensor]


def _noted(case: Case, left: Sequence[Belonging]) -> Iterator[Note]:
    names = dict.fromkeys(_given_as(each.variable) for each in left)
    call = f"tm.move({', '.join([*case.inventory.roots, *names])}, {case.arguments})"
    is_cast = any(place.cast_to is not None for place in case.places.values())

    def as_dtype(tensor: Tensor) -> str:
        return f" as {str(tensor.dtype).removeprefix('torch.')}" if is_cast else ""

    for variable, does, tensors in left:
        count = counted(len(tensors), "tensor")
        left_on = listed(sorted({f"{as_dtype(tensor)} on {tensor.device}" for tensor in tensors}))
        why = f"this {type(variable.value).__name__} {does} and was not given: {count} of it left{left_on}"
        yield Note("N070", str(variable), f"{why}. Fix: {call}")


def _given_as(variable: Variable) -> str:
    """What to pass to a move: the scheduler or wrapper, where only that leads to the optimizer."""
    around = issubclass(type(variable.holder), (LRScheduler, Optimizer))
    return str(variable.path.before if around else variable.path)


# ---------------------------------------------------------------- what belongs to the state


def _belonging(case: Case) -> Iterator[Belonging]:
    found = _found(case)
    optimizers = [each for each in found if issubclass(type(each.value), Optimizer)]
    trained = [each for each in optimizers if _trains(each.value, case)]
    for each in trained:
        yield Belonging(each, "trains the state", _listed(_left_by_optimizer(each.value, case)))
    for each in found:
        if issubclass(type(each.value), GradScaler):
            if _scales(each.value, [each.value for each in optimizers], case):
                yield Belonging(each, "scales the loss", _listed(_left_by_scaler(each.value, case)))
        elif _is_average(type(each.value)):
            yield Belonging(each, "averages the state", _listed(_left_by_average(each.value, found, case)))


def _listed(tensors: Iterator[Tensor]) -> list[Tensor]:
    """The tensors; those before the first error, of an object that is not what its class says."""
    some: list[Tensor] = []
    with suppress(Exception):
        some += tensors
    return some


def _found(case: Case) -> list[Variable]:
    """The objects that may belong to the state, and all other modules, each by its first name."""
    given = case.inventory.holders
    found: dict[int, Variable] = {}
    for each in find_variables(_may_belong, lambda value: id(value) not in given, besides=given):
        found.setdefault(id(each.value), each)
    return list(found.values())


def _may_belong(kind: type) -> bool:
    return issubclass(kind, (Optimizer, GradScaler, nn.Module)) or _is_average(kind)


# ---------------------------------------------------------------- optimizers


def _groups(optimizer: Optimizer) -> list[Mapping[str, Any]]:
    """Its groups. A wrapper of an optimizer, or one that is not initialized, has none of its own."""
    groups = (stored_dict(optimizer) or {}).get("param_groups") or ()
    return [each for each in groups if isinstance(each, dict) and isinstance(each.get("params"), list)]


def _trains(optimizer: Optimizer, case: Case) -> bool:
    return any(id(each) in case.places for group in _groups(optimizer) for each in group["params"])


def _left_by_optimizer(optimizer: Optimizer, case: Case) -> Iterator[Tensor]:
    places = case.places
    state = (stored_dict(optimizer) or {}).get("state", {})
    for parameter, entries in dict.items(state):
        if id(parameter) in places:
            yield from filter(places[id(parameter)].leaves, _tensors_in(entries))
    for group in _groups(optimizer):
        own = [places[id(each)] for each in group["params"] if id(each) in places]
        values = [value for key, value in group.items() if key != "params"]
        yield from filter(own[0].leaves, _tensors_in(values)) if own else ()


def _tensors_in(value: Any, depth: int = 4) -> Iterator[Tensor]:
    kind = type(value)
    if issubclass(kind, Tensor):
        yield value
    elif depth and issubclass(kind, (dict, list, tuple)):
        for each in dict.values(value) if issubclass(kind, dict) else value:
            yield from _tensors_in(each, depth - 1)


# ---------------------------------------------------------------- gradient scalers


def _scales(scaler: GradScaler, others: Iterable[Optimizer], case: Case) -> bool:
    """Whether it scales for an optimizer of the state: it remembers which only from a step to the next update.

    Between steps it can belong to any optimizer: then all that are alive have to be of the state.
    """
    steps = (stored_dict(scaler) or {}).get("_per_optimizer_states", {})  # a disabled scaler has none
    given = [each for each, _ in case.inventory.holders.values() if issubclass(type(each), Optimizer)]
    optimizers = [*given, *others]
    known = [each for each in optimizers if id(each) in steps]
    trains = [_trains(each, case) for each in known or optimizers]
    return bool(trains) and all(trains)


def _left_by_scaler(scaler: GradScaler, case: Case) -> Iterator[Tensor]:
    place = next(iter(case.places.values()))
    for tensor in _tensors_in([value for _, value in attributes(scaler)]):
        if tensor.device != place.after and place.before in (None, tensor.device):
            yield tensor


# ---------------------------------------------------------------- moving averages

# torch's AveragedModel, and the like of ema-pytorch, timm, torch-ema and diffusers.
_AVERAGE = re.compile("EMA|Ema(?![a-z])|Averag")


def _is_average(kind: type) -> bool:
    return not issubclass(kind, (Optimizer, type)) and _AVERAGE.search(kind.__name__) is not None


def _left_by_average(average: Any, found: Sequence[Variable], case: Case) -> Iterator[Tensor]:
    """The tensors of its copies of modules of the state, or of its list of parameters like those of a given module."""
    inside = [*_parts(average)]
    copies = [each for each in inside if issubclass(type(each), nn.Module) and id(each) not in case.inventory.holders]
    for copy in copies:
        model = _model_of(copy, case)
        if model is not None and not any(_is_rival(each, copy) for each in found if each.value is not average):
            yield from _left_by_copies(_tensors_of(copy), _tensors_of(model), case)
    for shadows in inside:
        if issubclass(type(shadows), (list, tuple)) and all(issubclass(type(each), Tensor) for each in shadows):
            for model in case.inventory.objects:
                originals = [each for each in _tensors_of(model) if each.requires_grad]
                if shadows and [*map(shape_of, shadows)] == [*map(shape_of, originals)]:
                    yield from _left_by_copies(shadows, originals, case)


def _left_by_copies(copies: Sequence[Tensor], originals: Sequence[Tensor], case: Case) -> Iterator[Tensor]:
    for copy, original in zip(copies, originals, strict=True):
        place = case.places.get(id(original))
        if place is not None and copy.device != place.after and place.before in (None, copy.device):
            yield copy


def _parts(average: Any) -> Iterator[Any]:
    values = [value for name, value in attributes(average) if name != "_modules"]
    yield from values
    for value in values:
        if type(value) in (list, tuple):
            yield from islice(value, _FEW)
    if issubclass(type(average), nn.Module):
        yield from children_of(average).values()


_FEW = 8


def _model_of(copy: nn.Module, case: Case) -> nn.Module | None:
    """The module of the state that this one is a copy of: it has its class and the shapes of its tensors."""
    likes = (each for each, _ in case.inventory.holders.values() if type(each) is type(copy))
    return next((each for each in likes if _is_like(each, copy)), None)


def _is_like(one: nn.Module, other: nn.Module) -> bool:
    return type(one) is type(other) and [*map(shape_of, _tensors_of(one))] == [*map(shape_of, _tensors_of(other))]


def _is_rival(variable: Variable, copy: nn.Module) -> bool:
    """Whether this is another module that the average may be of: then it is not known of which it is."""
    value, *_, holder = variable
    if value is copy or not issubclass(type(value), nn.Module) or _is_average(type(holder)):
        return False
    return _is_like(value, copy)


def _tensors_of(module: Any) -> list[Tensor]:
    """The parameters and buffers of a module and its children."""
    if not issubclass(type(module), nn.Module):
        return []
    own = [each for each in registered_in(module).values() if each is not None]
    children = {id(each): each for each in children_of(module).values() if each is not None}
    return own + [tensor for child in children.values() for tensor in _tensors_of(child)]
