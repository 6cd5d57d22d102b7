"""Answers to calls that mean another one: a TypeError of one line, which ends with the call that was meant.

A public function that `answers_wrong_calls` keeps its signature, for type checkers and for `help`.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
from torch import nn

from torchmove.internals.frames import callers_frame, variables_of
from torchmove.surveying.paths import names_of

P = ParamSpec("P")
T = TypeVar("T")

# Arguments of other functions of torch for a device.
_FOR_DEVICE = ("to", "on", "device", "target")
_WHY_NOT = {
    "non_blocking": "it returns when everything is on the device",
    "copy": "it moves the objects themselves",
    "inplace": "it always moves the objects themselves",
    "strict": "it moves everything or nothing",
}


_OPTION_OF = {torch.dtype: "dtype", torch.memory_format: "memory_format"}


_WRONG = {*_OPTION_OF, str, torch.device, types.GeneratorType}


class _Call(NamedTuple):
    """A call of a public function: its name, its objects and options, and its argument for a device (None: none)."""

    name: str
    objects: Sequence[Any]
    options: Mapping[str, Any]
    device: str | None
    is_missing: bool  # the device is required, and was not given by that name


def answers_wrong_calls(device: str | None = None, *others: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """A decorator for a function of objects.

    `device`: its argument for a device, which is required unless one of `others` is given; None: it has none.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        code = function.__code__
        known = frozenset(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
        name = f"tm.{function.__qualname__.partition('.')[0]}"
        before, enough = code.co_argcount, {device, *others}  # `self`, of a class

        @wraps(function)
        def call(*args: P.args, **options: P.kwargs) -> T:
            objects = args[before:]
            is_missing = device is not None and enough.isdisjoint(options)
            if is_missing or not objects or not options.keys() <= known or any(map(_is_wrong, objects)):
                _answer(_Call(name, objects, options, device, is_missing), known)
            return function(*args, **options)

        return call

    return decorate


def _is_wrong(each: Any) -> bool:
    kind = type(each)
    return kind in _WRONG or issubclass(kind, type)


def _answer(call: _Call, known: Container[str]) -> None:
    """Raise a TypeError, unless the function itself has a better answer."""
    stray = next((each for each in call.objects if type(each) in _OPTION_OF), None)
    if stray is not None:
        option = _OPTION_OF[type(stray)]
        takes = f"takes it as {option}=" if option in known else "takes none"
        rest = [each for each in call.objects if type(each) not in _OPTION_OF]
        given = [f"{name}={value!r}" for name, value in call.options.items() if name in known]
        fix = _call_of(call.name, rest, *([f"{option}={stray}"] if option in known else []), *given)
        raise TypeError(f"{stray} is no object to move: {call.name} {takes}. Fix: {fix}")
    problem = next(_problems(call, known), None)
    if problem is None:
        return
    objects, place = [each for each in call.objects if not _is_place(each)], _place_in(call)
    if call.device is not None:
        option = f"{call.device}={place or 'auto'!r}"
        raise TypeError(f"{problem}. Fix: {_call_of(call.name, objects, option)}")
    other = f"; or, to move it, {_call_of('tm.move', objects, f'to={place!r}')}" if place else ""
    raise TypeError(f"{problem}. Fix: {_call_of(call.name, objects)}{other}")


def _problems(call: _Call, known: Container[str]) -> Iterator[str]:
    takes = f"{call.name} takes the device as {call.device}=" if call.device else f"{call.name} takes no device"
    # A device by itself is an object that may be surveyed.
    names_one = any(_is_place(each) and (call.is_missing or isinstance(each, str)) for each in call.objects)
    if names_one and (call.is_missing or call.device is None):
        yield takes
    for each in call.objects:
        if isinstance(each, type):
            yield f"cannot search {type(each).__name__} for tensors: {each.__name__} is a class, not an object of it"
        if type(each) is types.GeneratorType and _module_of(each) is not None:
            yield f"cannot search generator for tensors: {call.name} takes the module, not its {each.__name__}()"
    for option in call.options:
        if option not in known:
            why = _WHY_NOT.get(option, "")
            yield takes if option in _FOR_DEVICE else f"{call.name} takes no {option}=" + (f": {why}" if why else "")
    if not call.objects:
        yield "no objects were given"
    if call.is_missing:
        yield takes


def _place_in(call: _Call) -> str:
    named = [call.options[name] for name in _FOR_DEVICE if name in call.options]
    place = next((each for each in (*named, *filter(_is_place, call.objects)) if each is not None), "")
    return "auto" if place == "gpu" else str(place)


def _is_place(each: Any) -> bool:
    if not isinstance(each, str):
        return isinstance(each, torch.device)
    try:
        torch.device(each)
    except RuntimeError:
        return each in ("auto", "gpu")
    return True


def _module_of(generator: types.GeneratorType[Any, Any, Any]) -> nn.Module | None:
    """The module of `module.parameters()` and the like."""
    frame = generator.gi_frame
    owner = None if frame is None else variables_of(frame).get("self")
    return owner if isinstance(owner, nn.Module) else None


def _call_of(name: str, objects: Sequence[Any], *options: str) -> str:
    """The call as one can paste it, with the names that the caller has for the objects."""
    meant = [_module_of(each) if type(each) is types.GeneratorType else each for each in objects]
    found = [each for each in meant if each is not None and not isinstance(each, (type, str))]
    named = [*names_of(found, callers_frame()), *(f"{each.__name__}()" for each in meant if isinstance(each, type))]
    return f"{name}({', '.join([*(named or ['model', 'optimizer']), *options])})"


# ---------------------------------------------------------------- what takes something else


def no_plan(given: Any) -> TypeError:
    """The answer to `tm.apply(model)`."""
    planned = _call_of("tm.plan", [given], "to='auto'")
    return TypeError(f"tm.apply takes a Plan, not {type(given).__name__}. Fix: tm.apply({planned})")


def no_step(step: Any) -> TypeError:
    """The answer to `tm.rehearse(model)` and `tm.rehearse(step(batch))`."""
    if isinstance(step, nn.Module):
        (name,) = names_of([step], callers_frame())
        fix = f"tm.rehearse(lambda {name}, batch: {name}(batch).sum().backward(), {name}, batch)"
        return TypeError(f"the step must be a function, not {type(step).__name__}. Fix: {fix}")
    kind = type(step).__name__
    return TypeError(
        f"the step must be a function, not {kind}: tm.rehearse calls it itself. "
        "Fix: tm.rehearse(step, model, batch), not tm.rehearse(step(model, batch))"
    )
