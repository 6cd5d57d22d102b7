"""Autocast regions and gradient scalers made before the rehearsal: are they off on purpose, or for want of a device?

Without a GPU torch switches all of them off. The call that made one tells: it says `enabled=False`, or asks for
something that is false.
"""

from __future__ import annotations

import ast
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

import torch

from torchmove.rehearsal.again import Again
from torchmove.rehearsal.decisions import contents_of
from torchmove.rehearsal.provenance import users_frames
from torchmove.rehearsal.sources import Assigned, Reasons, Source, called
from torchmove.rehearsal.surroundings import Surroundings
from torchmove.surveying.inventory import Inventory

SwitchedOff = Callable[[Any], bool]
_POSITION = {"autocast": 2, "GradScaler": 5}  # of `enabled` among the arguments, by the name of what is called
_WITHOUT_DEVICE = {"autocast": 0, "GradScaler": 4}  # of torch.cuda.amp's


def switched_off_by(around: Surroundings, inventory: Inventory, caller: str, home: torch.device) -> SwitchedOff:
    """Tells of an autocast region or a scaler whether the call that made it switched it off."""
    reasons = Reasons()
    again = Again(reasons, home)
    files = dict.fromkeys([*(each.__code__.co_filename for each in around.functions), *([caller] if caller else ())])

    def is_off(made: Any) -> bool:
        positions = _WITHOUT_DEVICE if type(made).__module__.startswith("torch.cuda") else _POSITION
        answers: list[bool | None] = []
        for source in map(reasons.source, files):
            for name, space in _variables(made, around):
                for assigned in _assigned(source, name):
                    answers += _answers(again, assigned.value, positions, source, assigned.scope, space)
            for name, holder in _attributes(made, inventory):
                for assigned in source.attributes.get(name, ()):
                    answers += _answers(again, assigned.value, positions, source, assigned.scope, {"self": holder})
        for function in _decorated_by(made):
            source, space = reasons.source(function.__code__.co_filename), function.__globals__
            written = source.functions.get(function.__qualname__)
            for decorator in written.decorator_list if written is not None else ():
                answers += _answers(again, decorator, positions, source, "", space)
        return bool(answers) and all(each is False for each in answers)

    return is_off


def _variables(made: Any, around: Surroundings) -> Iterator[tuple[str, dict[str, Any]]]:
    """The variables that have it, each with the values of those beside it."""
    for function in around.functions:
        own = dict(zip(function.__code__.co_freevars, contents_of(function), strict=True))
        space = {**function.__globals__, **own}
        yield from ((name, space) for name, value in space.items() if value is made)
    for frame in users_frames():
        space = {**frame.f_globals, **frame.f_locals}
        yield from ((name, space) for name, value in space.items() if value is made)


def _attributes(made: Any, inventory: Inventory) -> Iterator[tuple[str, Any]]:
    """The attributes that have it, each with their object."""
    for holder, _ in inventory.holders.values():
        own = getattr(holder, "__dict__", None)
        yield from ((name, holder) for name, value in own.items() if value is made) if type(own) is dict else ()


def _assigned(source: Source, name: str) -> Iterator[Assigned]:
    """What is assigned to a variable of this name, in any scope."""
    for (_, each), given in source.names.items():
        yield from given if each == name else ()


def _answers(
    again: Again, expression: ast.expr, positions: dict[str, int], source: Source, scope: str, space: dict[str, Any]
) -> Iterator[bool | None]:
    """For each call in an expression that makes such an object: is it on? None: that cannot be told."""
    for call in ast.walk(expression):
        if isinstance(call, ast.Call) and called(call) in positions:
            position = positions[called(call)]
            given = [each.value for each in call.keywords if each.arg == "enabled"] or call.args[
                position : position + 1
            ]
            yield again.truth(given[0], source, scope, space) if given else True


def _decorated_by(region: Any) -> Sequence[types.FunctionType]:
    """The function that `@torch.autocast(...)` stands above, and that is about to run."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "decorate_autocast":
            function = frame.f_locals.get("func")
            is_its = frame.f_locals.get("autocast_instance") is region
            return [function] if is_its and isinstance(function, types.FunctionType) else []
        frame = frame.f_back
    return []
