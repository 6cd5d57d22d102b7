"""Learn where an optimizer class without rules keeps its tensors, from a first step on a simulated device.

The step runs once for each class and its options, with an optimizer made for it over a few small parameters. It shows
the device of each tensor in the state, in the groups and in the attributes of the optimizer.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from torchmove.internals.stored import ATOMS, stored_dict
from torchmove.planning.learning.device import FirstStepMode, GivenUp, contained
from torchmove.planning.learning.making import Maker, Unmakable, distinct, named_options, set_gradients
from torchmove.planning.learning.places import (
    UNNAMED,
    EntryPlace,
    LearnedPlaces,
    flags_of,
    kind_of,
    options_in,
    tensors_in,
)

__all__ = [
    "is_torchs_own",
    "learned_places_of",
    "options_of",
]

_MOST_RESULTS = 32  # results kept for each class
_MOST_SECONDS = 0.5
_KNOWN: weakref.WeakKeyDictionary[type, OrderedDict[Hashable, LearnedPlaces]] = weakref.WeakKeyDictionary()
_one_at_a_time = threading.RLock()


def is_torchs_own(kind: type) -> bool:
    return kind.__module__.startswith("torch.optim.")


def learned_places_of(optimizer: Optimizer, target: torch.device) -> LearnedPlaces:
    """Where the optimizer would have made its tensors on the target."""
    try:
        likeness = _likeness(optimizer, target)
    except Exception as error:
        return LearnedPlaces(_text_of(error))
    with _one_at_a_time:
        known = _KNOWN.setdefault(type(optimizer), OrderedDict())
        learned = known.get(likeness)
        if learned is None:
            learned = known[likeness] = _learned(optimizer, target)
            if len(known) > _MOST_RESULTS:
                known.popitem(last=False)
    return learned


def options_of(optimizer: Optimizer, group: Any) -> Hashable:
    return flags_of(group, options_in(group, named_options(type(optimizer))))


def _likeness(optimizer: Optimizer, target: torch.device) -> Hashable:
    groups = distinct(optimizer.param_groups, named_options(type(optimizer)))
    kinds = [(options_of(optimizer, group), frozenset(map(kind_of, group["params"]))) for group in groups]
    stored = stored_dict(optimizer) or {}
    names = [name for name, value in stored.items() if type(value) in ATOMS]
    return target.type, tuple(kinds), flags_of(stored, names), flags_of(optimizer.defaults, optimizer.defaults)


def _learned(optimizer: Optimizer, target: torch.device) -> LearnedPlaces:
    names = {name for state in optimizer.state.values() if isinstance(state, dict) for name in state}
    why, until = "", time.perf_counter() + _MOST_SECONDS
    for how in (_with_flags, _without_flags, _as_copy):
        learned = _tried(optimizer, FirstStepMode(target, until), how, names)
        if not learned.why_not:
            return learned
        why = why or learned.why_not
    return LearnedPlaces(why)


def _tried(optimizer: Optimizer, simulation: FirstStepMode, how: Any, names: set[Any]) -> LearnedPlaces:
    try:
        with contained(), simulation:
            maker = Maker(optimizer, simulation)
            made = how(maker)
            learned = LearnedPlaces()
            for number in (1, 2):
                _step(maker, made, number)
                for place, tensor in _made_by_step(maker, made):
                    learned.add(place, tensor)
                if all(learned.has("state", name) for name in names):
                    break
    except KeyboardInterrupt:
        raise
    except (Exception, GivenUp, SystemExit) as error:
        return LearnedPlaces(_text_of(error))
    return learned


def _with_flags(maker: Maker) -> Optimizer:
    return maker.constructed(with_flags=True)


def _without_flags(maker: Maker) -> Optimizer:
    return maker.constructed(with_flags=False)


def _as_copy(maker: Maker) -> Optimizer:
    return maker.copy()


def _step(maker: Maker, made: Optimizer, number: int) -> None:
    """Call `step()` as usual; if that fails, with a closure; if that fails, with sparse gradients."""
    train = getattr(made, "train", None)
    if number == 1 and callable(train):
        train()

    def closure() -> Any:
        set_gradients(maker, number, sparse=False)
        return torch.ones((), device=maker.simulation.device)

    first: Exception | None = None
    for sparse, given in ((False, ()), (False, (closure,)), (True, ())):
        set_gradients(maker, number, sparse=sparse)
        try:
            made.step(*given)
        except Exception as error:
            first = first or error
        else:
            return
    if first is not None:
        raise first


def _made_by_step(maker: Maker, made: Optimizer) -> Iterator[tuple[EntryPlace, Tensor]]:
    for place, tensor in _entries(maker, made):
        if id(tensor) not in maker.given:
            yield place, tensor


def _entries(maker: Maker, made: Optimizer) -> Iterator[tuple[EntryPlace, Tensor]]:
    stored = stored_dict(made) or {}
    flags = {id(p): _flags(maker, group) for group in made.param_groups for p in group["params"]}
    for parameter, state in stored.get("state", {}).items():
        kind = kind_of(parameter) if isinstance(parameter, Tensor) else None
        for steps, tensor in tensors_in(state, ()):
            yield EntryPlace("state", steps or UNNAMED, flags.get(id(parameter)), kind), tensor
    for group in stored.get("param_groups", ()):
        inside = {name: value for name, value in group.items() if name != "params"}
        for steps, tensor in tensors_in(inside, ()):
            yield EntryPlace("group", steps, _flags(maker, group)), tensor
    for name, value in stored.items():
        if name not in ("state", "param_groups", "defaults"):
            for steps, tensor in tensors_in(value, (name,)):
                yield EntryPlace("attribute", steps), tensor


def _flags(maker: Maker, group: Any) -> Hashable:
    return flags_of(group, options_in(group, maker.named))


def _text_of(error: BaseException) -> str:
    if isinstance(error, (GivenUp, Unmakable)):
        return str(error)
    return ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])
