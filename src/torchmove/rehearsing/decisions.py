"""Devices that the program chose before the rehearsal, on a machine without the device.

`DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")` is "cuda" on a GPU machine and "cpu" elsewhere.
The rehearsal replaces values chosen this way by the simulated device, and keeps a plain `torch.device("cpu")`.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import re
import sys
import types
from collections import ChainMap, UserDict, UserList, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch.utils.data import TensorDataset

from torchmove.internals.frames import frame as frame_at
from torchmove.internals.guards import Undo
from torchmove.internals.stored import ATOMS, apply_of, children_of, registered_in
from torchmove.moving.apply import repoint_all
from torchmove.planning.plan import Repoint
from torchmove.rehearsing.captured import (
    Captured,
    Name,
    closure_of,
    function_of,
    held,
    is_of_library,
    modules_in,
    parameters_in,
    parted,
    tensors_in,
)
from torchmove.rehearsing.evaluation import (
    Again,
    Placements,
    Where,
    assigned_to,
    end_of,
    is_candidate,
    is_count,
    is_for_the_cpu,
    is_made_on_cpu,
    on_device,
    sent_itself,
)
from torchmove.rehearsing.origins import moves_itself, readable
from torchmove.rehearsing.provenance import Line, users_frames
from torchmove.rehearsing.replacement import ReadAsCpu
from torchmove.rehearsing.sources import (
    ANY,
    ITSELF,
    Assigned,
    Reasons,
    Source,
    called,
    default_of,
    is_mover,
    names_of,
    parameters_of,
    scope_around,
)
from torchmove.surveying.inventory import Inventory, RememberedDevice
from torchmove.surveying.paths import ATTRIBUTE, ITEM

_MOST_HOLDERS = 4  # levels of nested objects to follow
_CONTAINERS = (list, tuple, dict, set, deque)  # whose elements are checked one by one
_DISTRIBUTIONS = (torch.distributions.Distribution, torch.distributions.Transform)  # they hold their argument tensors


_FILLED_BY_LIBRARY = (UserDict, UserList)  # base classes that assign attributes of their own

_Moment = tuple[int, ...]  # when a statement ran: its position, preceded by the position of the call that led to it


class Decided:
    """Finds the values chosen on a machine without the device, and replaces them."""

    def __init__(self, around: Captured, home: torch.device, caller: str = "") -> None:
        """`caller`: the file that starts the rehearsal."""
        self.around, self.home, self.reasons, self.caller = around, home, Reasons(), caller
        self.again = Again(self.reasons, home, self._space_of)
        self.placements = Placements(self.reasons, self.again)
        files = (each.__code__.co_filename for each in around.functions)
        self._sources = [*self.reasons.with_imported(dict.fromkeys((*files, *filter(None, [caller]))))]
        self._spaces: dict[str, dict[str, Any]] = {}
        self._bound: dict[int, tuple[Any, list[Assigned]]] = {}  # by object id: its holder, and what binds it
        self.sent_names: set[str] = set()
        self.generators: list[torch.Generator] = []  # created for a chosen device
        self.of_libraries: dict[int, Any] = {}  # contents of objects that libraries created without a mention of cpu
        self.replaced: set[int] = set()  # ids of tensors assigned to a module after the module was moved
        self.there: set[int] = set()  # ids of the tensors on the device
        self.sent_modules: dict[int, torch.nn.Module] = {}
        self.made: list[Any] = []  # autocast regions and gradient scalers that would exist on a machine with the device
        self.assumed: list[str] = []
        self._changes: list[tuple[Callable[[], object], Callable[[], object]]] = []  # apply, and undo
        self._repoints: list[Repoint] = []
        self._lines: defaultdict[Line, list[str]] = defaultdict(list)
        self._globals()
        for function in around.functions:
            self._closure(function)
            self._defaults(function)
        for kind in around.classes:
            self._class_attributes(kind)

    def lines(self) -> Iterator[tuple[Line, str]]:
        """Yield each line that chose a device, with the names of the values it chose."""
        return ((line, ", ".join(dict.fromkeys(names))) for line, names in self._lines.items())

    def apply(self, undo: Undo) -> None:
        for do, back in self._changes:
            undo.append(back)
            do()
        repoint_all(self._repoints, undo)

    def decides(self, value: RememberedDevice) -> bool:
        """Whether this value was chosen on a machine without the device."""
        return any(value.holder is each.value.holder and value.what == each.value.what for each in self._repoints)

    def values_in(self, inventory: Inventory, roots: Mapping[str, Any]) -> None:
        """Collect the devices stored in objects, and the boolean switches of the program's classes."""
        self._index_objects(inventory)
        for value in inventory.device_values:
            if value.device.type == self.home.type or value.how not in (ATTRIBUTE, ITEM):
                continue
            owners = tuple(each.__name__ for each in type(value.holder).__mro__[:-1])
            is_mapping = isinstance(value.holder, (dict, list, argparse.Namespace, types.SimpleNamespace))
            line = self._of_attribute(str(value.what), value.holder, () if is_mapping else owners)
            if line is None and isinstance(value.holder, list):  # `devices[0]`
                line = self._of_list(value.holder)
            if line is not None:
                self._repoints.append(Repoint(value, self._new(value.value)))
                self._lines[line].append(readable(value.path, roots))
        seen = {(id(value.holder), value.what) for value in inventory.device_values}
        for holder, path in inventory.holders.values():
            if type(holder) in self.around.classes:
                self._attributes(holder, readable(path, roots), seen)

    def _index_objects(self, inventory: Inventory) -> None:
        """Index the statements that bind instances of the program's classes, in modules and in other objects."""
        for name, value in self._variables():
            if type(value) in self.around.classes:
                given = [each for source in self._sources for each in source.names.get(("", name), ())]
                self._bound.setdefault(id(value), (None, given))
        for holder, _ in inventory.holders.values():
            own = _owners(holder) if type(holder) in self.around.classes else set()
            for name, value in _attributes_of(holder) if own else ():
                if type(value) in self.around.classes:
                    given = [each for source in self._sources for each in self._own(source, name, own)]
                    self._bound.setdefault(id(value), (holder, given))

    def _made_by(self, holder: Any) -> dict[str, ast.Call]:
        """The calls that created an object and its holders, for classes that the files call more than once."""
        holders, made = [holder], dict[str, ast.Call]()
        for each in holders:
            outer, given = self._bound.get(id(each), (None, []))
            kind = type(each).__name__
            calls = sum(len(source.calls.get(kind, ())) for source in self._sources)
            values = [one.value for one in given if isinstance(one.value, ast.Call) and called(one.value) == kind]
            if calls > 1 and len(values) == len(given) == 1:
                made[kind] = values[0]
            if outer is not None and len(holders) < _MOST_HOLDERS:
                holders.append(outer)
        return made

    def _of_attribute(self, name: str, holder: Any, owners: tuple[str, ...]) -> Line | None:
        """The line that chose an attribute or an element; None if no line did, or if it is the CPU on every machine."""
        with self.placements.of_object(self._made_by(holder)):
            return self._decided_by(name, holder, owners)

    def _decided_by(self, name: str, holder: Any, owners: tuple[str, ...]) -> Line | None:
        for source in self._sources:
            line = self.reasons.of_attribute(source, name, owners)
            if line is None:
                continue
            every = source.attributes.get(name, ())
            own = [each for each in every if each.owner in owners] if owners else list(every) * (len(every) == 1)
            space = {**self._space_of(source), "self": holder}
            return None if self.again.stays(own, source, space) else line
        return None

    def _of_list(self, holder: list[Any]) -> Line | None:
        names = [name for name, each in self._variables() if each is holder]
        return next(
            filter(None, (self._first(partial(self.reasons.of_name, name=name, scope="")) for name in names)), None
        )

    def argument(self, step: Any, name: str, value: Any, place: tuple[int, int] = (0, 0)) -> Any:
        """The value to call the step with: the simulated device if `value` was chosen on a machine without it.

        `place`: the index of the argument, and the number of arguments.
        """
        function = inspect.unwrap(function_of(step) or step)
        if not isinstance(function, types.FunctionType):
            return value
        source, scope = self.reasons.source(function.__code__.co_filename), function.__qualname__
        if scope not in source.functions:
            return value
        given = self.reasons.arguments(source, scope, name)
        is_none = value is None and any(self.reasons.is_current_accelerator(*each) for each in given)
        is_device = is_none or self._is_candidate(value)
        if not is_device and not is_for_the_cpu(value, self.home):
            return value
        line = self.reasons.of_parameter(source, scope, name)
        if line is None and not given and is_device and value is not False:
            line = self._returned_device(scope, place) or self._same_device(value)
        if line is None:
            return value
        new = self._new(value) if is_device and value is not False else self._given_again(name, value, line, given)
        if new is None:
            return value
        self._lines[line].append(name)
        return new

    def _given_again(self, name: str, value: Any, line: Line, given: list[tuple[Source, ast.expr, str]]) -> Any:
        """The switch, autocast region or gradient scaler that the calls of the step would pass."""
        for source, expression, scope in given:
            _, variable = assigned_to(getattr(expression, "id", ""), source, scope)
            assigned = variable or [Assigned(expression, (), scope)]
            space = self._space_of(source)
            is_switch = value is False
            new = self.again.switch(assigned, source, space) if is_switch else None
            new = new if is_switch else self._precision(name, value, line, assigned, source, space)
            if new is not None:
                return new
        return None

    def _globals_of(self, source: Source) -> dict[str, Any]:
        spaces = (each.__globals__ for each in self.around.functions if each.__code__.co_filename == source.file)
        return next(spaces, {})

    def _space_of(self, source: Source) -> Mapping[str, Any]:
        """The variables of a file and of its running functions."""
        if source.file not in self._spaces:
            modules = (each for each in list(sys.modules.values()) if getattr(each, "__file__", None) == source.file)
            self._spaces[source.file] = self._globals_of(source) or vars(next(modules, types.SimpleNamespace()))
        return ChainMap(_locals_of(source.file), self._spaces[source.file])

    def _returned_device(self, step: str, place: tuple[int, int]) -> Line | None:
        """The line that chose a device returned with the other arguments: `return model, loader, device`."""
        index, count = place
        for source in self._sources:
            for scope, returned in source.returns.items() if count > 1 else ():
                for each in returned if scope != step else ():
                    members = each.value.elts if isinstance(each.value, ast.Tuple) else []
                    if len(members) == count and not isinstance(members[index], ast.Starred):
                        line = self.reasons.of(source, members[index], scope)
                        if line is not None:
                            return line
        return None

    def _same_device(self, value: Any) -> Line | None:
        """The line that chose a global variable of the program that is the same object."""
        if not isinstance(value, torch.device):
            return None
        names = [name for name, each in self._variables() if each is value]
        lines = (self._first(lambda source, name=name: self.reasons.of_name(source, name, "")) for name in names)  # type: ignore[misc]
        return next(filter(None, lines), None)

    def _attributes(self, holder: Any, path: str, seen: set[tuple[int, Any]]) -> None:
        """Collect device strings under any attribute name, and switches, of an instance of the program's class."""
        owners = tuple(each.__name__ for each in type(holder).__mro__[:-1])
        spaces = [each.__globals__ for each in self.around.functions[:1]]
        space = {**dict(ChainMap(vars(sys.modules.get(type(holder).__module__, types)), *spaces)), "self": holder}
        for name, value in _attributes_of(holder):
            is_device = self._is_name_or_switch(value) or self._is_unset(value, name, owners)
            source, own = self._assigned_in(name, owners)
            are_counted = is_count(value, own)
            if (id(holder), name) in seen or not (is_device or are_counted or is_for_the_cpu(value, self.home)):
                continue
            line = self._of_attribute(name, holder, owners)
            if line is None:
                continue
            if value is False:
                new = self.again.switch(own, source, space)
            elif are_counted:
                new = self.again.count(own, source, space)
            elif is_device:
                new = self._new(value)
            else:
                new = self._precision(f"{path}.{name}", value, line, own, source, space)
            if new:
                put = partial(object.__setattr__, holder, name)  # a frozen dataclass overrides __setattr__
                self._change(partial(put, new), partial(put, value))
                self._lines[line].append(f"{path}.{name}")

    def _assigned_in(self, name: str, owners: tuple[str, ...]) -> tuple[Source, list[Assigned]]:
        """The file whose classes assign an attribute, and the assignments."""
        found = [
            (source, [each for each in source.attributes.get(name, ()) if each.owner in owners])
            for source in self._sources
        ]
        return next((each for each in found if each[1]), found[0])

    def _is_name_or_switch(self, value: Any) -> bool:
        return type(value) in (str, bool) and self._is_candidate(value)

    def _is_unset(self, value: Any, name: str, owners: tuple[str, ...]) -> bool:
        """Whether it is None for lack of an accelerator: `self.device = torch.accelerator.current_accelerator()`."""
        return value is None and any(
            self.reasons.is_current_accelerator(source, each.value, each.scope)
            for source in self._sources
            for each in source.attributes.get(name, ())
            if each.owner in owners
        )

    def default_device(self) -> Line | None:
        """The line that chose the default device, if a file of the program sets it."""
        return self._first(
            lambda source: None if source.set_default is None else self.reasons.of(source, source.set_default, "")
        )

    def sent(self, inventory: Inventory, outside: set[str], parameters: Mapping[str, Any]) -> Iterator[int]:
        """Yield the indices of the tensors that would be on the device when the step begins."""
        there: set[int] = set()
        for name in outside:
            value = self.around.held[name]
            elements, own = self._sent_elements(name.rpartition(".")[2], value), name.rpartition(".")[2]
            was_sent = self._was_sent(own, value) or self._was_sent(name, value)
            if elements or (not isinstance(value, _CONTAINERS) and was_sent):
                self._add(elements or value, there)
                if not isinstance(value, _CONTAINERS) or len(elements) == len(value):
                    self.sent_names.add(name)
            self._add([*self._sent_parts("", own, value)], there)
        for name in outside:
            self._add_of_library(name, self.around.held[name], there, partial(self._made_by_library, name))
        for name, value in self._variables():
            if isinstance(value, (torch.nn.Module, torch.Tensor)):
                if self._was_sent(name, value):
                    self._add(value, there)  # another object may hold it as well
                self._parts(name, value, there)
        for function in self.around.functions:
            for name, value in closure_of(function).items():
                if _is_movable(value) and self._was_sent(name, value, scope_around(function.__qualname__)):
                    self._add(value, there)
            self._add([*self._sent_defaults(function)], there)
        for kind in self.around.classes:
            self._add([*self._sent_class_attributes(kind)], there)
        for name, value in parameters.items():
            if self._was_returned(name) or self._is_sent_global(value):
                self._add(value, there)
            scopes = {scope for source in self._sources for scope in _makers(source, name)}
            self._add([each for scope in scopes for each in self._sent_parts(scope, name, value)], there)
            self._add_of_library(name, value, there, partial(self._made_by_library, name))
        for holder, _ in inventory.holders.values():
            if type(holder) in self.around.classes:
                self._add_own(holder, there)
                if not isinstance(holder, torch.nn.Module):
                    with self.placements.of_object(self._made_by(holder)):
                        self._own_parts(holder, there)
                self._add_of_libraries_in(holder, there)
                self._add_inherited(holder, there)
        for each in self.around.sources:
            self._add_dataset(each, there)
        for name, value in self._variables():
            if isinstance(value, torch.optim.Optimizer):
                there |= self._made_there(name, value, there)
        for composite in inventory.composites:
            if id(composite.tensor) in there:
                there |= {*map(id, composite.parts)}
        there -= self.replaced
        self.there = there
        return (index for index, entry in enumerate(inventory.tensors) if id(entry.tensor) in there)

    def remembered(self, inventory: Inventory) -> list[Repoint]:
        """The devices that library code stored in moved modules."""
        return [
            Repoint(value, self._new(value.value))
            for value in inventory.device_values
            if (id(value.holder) in self.sent_modules or id(value.holder) in self.of_libraries)
            and value.device.type != self.home.type
            and not any(source.attributes.get(str(value.what)) for source in self._sources)
        ]

    def _spaces_of_names(self, inventory: Inventory) -> Iterator[list[Name]]:
        """Yield the names in each namespace: the modules and functions that the step uses, and each object."""
        for space in {id(each.__globals__): each.__globals__ for each in self.around.functions}.values():
            are_read = {name for key, name in self.around.names if key == id(space)}
            yield [self._variable_named(name, space, name in are_read) for name in list(space)]
        for function in self.around.functions:
            yield [*self._cells_named(function)]
        for holder, _ in inventory.holders.values():
            if type(holder) in self.around.classes:
                yield [self._attribute_named(name, holder) for name, _ in _attributes_of(holder)]

    def _variable_named(self, name: str, space: dict[str, Any], is_read: bool) -> Name:
        value = space[name]
        is_made = partial(self._is_made_on_cpu, partial(_assigned_in, ("", name)))
        bind = partial(space.__setitem__, name) if is_read else None
        return Name(name, "", value, partial(self._was_sent, name, value), is_made, bind)

    def _cells_named(self, function: types.FunctionType) -> Iterator[Name]:
        scope = scope_around(function.__qualname__)
        for (name, value), cell in zip(closure_of(function).items(), function.__closure__ or (), strict=True):
            is_made = partial(self._is_made_on_cpu, partial(_assigned_in, (scope, name)))
            bind = partial(setattr, cell, "cell_contents")
            yield Name(name, "", value, partial(self._was_sent, name, value, scope), is_made, bind)

    def _attribute_named(self, name: str, holder: Any) -> Name:
        value, own = dict(_attributes_of(holder))[name], _owners(holder)
        is_made = partial(self._is_made_on_cpu, lambda source: self._own(source, name, own))
        was_sent = partial(self._attribute_was_sent, name, holder, value)
        return Name(
            f"self.{name}", type(holder).__name__, value, was_sent, is_made, partial(object.__setattr__, holder, name)
        )

    def _is_made_on_cpu(self, assigned: Callable[[Source], list[Assigned]]) -> bool:
        statements = next(filter(None, map(assigned, self._sources)), [])
        return bool(statements) and is_made_on_cpu(statements[-1].value)

    def part(self, inventory: Inventory, undo: Undo) -> Iterator[tuple[Name, Any]]:
        """Give a CPU copy to each name that was not moved, where another name of the same tensor was."""
        for name, copy in parted(self._spaces_of_names(inventory), self.there):
            if name.bind is not None:
                undo.append(partial(name.bind, name.value))
                name.bind(copy)
                yield name, copy

    def _add_of_libraries_in(self, holder: Any, there: set[int]) -> None:
        """Add what library objects in an instance of the program's class move: `self.fabric = Fabric(...)`."""
        own = _owners(holder)
        for name, value in _attributes_of(holder):

            def made(source: Source, name: str = name) -> Line | None:
                assigned = [each for each in source.attributes.get(name, ()) if each.owner in own]
                return next(filter(None, (self.reasons.by_library(source, each) for each in assigned)), None)

            self._add_of_library(name, value, there, made, [each for _, each in _attributes_of(holder)])

    def _add_inherited(self, holder: Any, there: set[int]) -> bool:
        """Add what a library base class moves, as in a subclass of a trainer. Returns whether it moves anything."""
        name, own = type(holder).__name__, _owners(holder)
        calls = (call for source in self._sources for call, _ in source.calls.get(name, ()))
        if not is_mover(type(holder)) or any("cpu" in ast.unparse(each) for each in calls):
            return False
        users = {
            name
            for source in self._sources
            for name, assigned in source.attributes.items()
            if any(each.owner in own for each in assigned)
        }
        inherited = [value for name, value in _attributes_of(holder) if name not in users]
        self.of_libraries |= {id(each): each for each in (holder, *held(inherited, object))}
        for each in held(inherited, torch.nn.Module):
            self._add(each, there)
        there |= {id(each) for each in held(inherited, torch.Tensor) if each.requires_grad}
        return True

    def _made_by_library(self, name: str, source: Source) -> Line | None:
        scopes = ["", *_makers(source, name)]
        found = (self.reasons.made_by_library(source, name, scope) for scope in scopes)
        return next(filter(None, found), None) or self.reasons.made_by_method(source, name)

    def _add_of_library(
        self, name: str, value: Any, there: set[int], made: Callable[[Source], Line | None], beside: Iterable[Any] = ()
    ) -> None:
        """Add the modules of a library's trainer or agent, which chooses a device and moves its own modules.

        `made`: finds the statement that created it; `beside`: the other attributes of the object that holds it.
        """
        if isinstance(value, (torch.nn.Module, torch.Tensor, torch.optim.Optimizer)) or not is_of_library(value):
            return
        line = self._first(made)
        if line is None:
            return
        self.of_libraries |= {id(each): each for each in held([value], object)}
        self._lines[line].append(name)
        moves_all = is_mover(type(value))
        users = {id(each) for _, each in self._variables()} | {*map(id, beside)}
        modules = [each for each in held([value], torch.nn.Module) if moves_all or id(each) not in users]
        for each in modules:
            self._add(each, there)
        if moves_all:
            there |= {id(each) for each in held([value], torch.Tensor) if each.requires_grad}
        if modules:
            self.sent_names.add(name)

    def _parts(self, name: str, whole: torch.nn.Module | torch.Tensor, there: set[int]) -> None:
        """Add parts moved by themselves, `model.fc.to(device)`, and note those assigned after the model was moved."""
        was_sent = self._was_sent(name, whole)
        for source in self._sources:
            given = source.names.get(("", name), [])
            for scope, own in [("", name), *_returned_by_its_call(source, given)]:
                sent = max((end_of(each.value) for each in source.names.get((scope, own), ())), default=(0, 0))
                self._parts_in(source, own, whole, there, {scope: ()}, sent if was_sent else None)

    def _own_parts(self, holder: Any, there: set[int]) -> None:
        """Do the same for parts of attributes: `self.model.fc = nn.Linear(4, 2)` after `self.model` was moved."""
        own = _owners(holder)
        modules = [(name, each) for name, each in _attributes_of(holder) if isinstance(each, torch.nn.Module)]
        for source in self._sources if modules else ():
            ran = self._ran(source, own)
            for name, module in modules:
                its = [each for each in source.attributes.get(name, ()) if each.owner in own and each.scope in ran]
                if its and self.placements.sent(source, its):
                    sent = max((*ran[each.scope], *end_of(each.value)) for each in its)
                    self._parts_in(source, f"self.{name}", module, there, ran, sent)

    def _ran(self, source: Source, owners: set[str]) -> dict[str, _Moment]:
        """When each method of a class ran: `__init__`, the methods it calls, and those called after it."""
        ran: dict[str, _Moment] = {}
        for scope in source.functions:
            owner, _, name = scope.rpartition(".")
            if owner in owners and self._ran_before(source, scope):
                calls = [call for call, at in source.calls.get(name, ()) if at == f"{owner}.__init__"]
                inside = next(
                    (end_of(call) for call in calls if ast.unparse(call.func) == f"self.{name}"), (sys.maxsize,)
                )
                ran[scope] = () if name == "__init__" else inside
        return ran

    def _parts_in(
        self,
        source: Source,
        name: str,
        whole: torch.nn.Module | torch.Tensor,
        there: set[int],
        ran: Mapping[str, _Moment],
        sent: _Moment | None,
    ) -> None:
        """Add the moved parts of `whole`. `ran`: when each scope ran; `sent`: when `whole` was moved, if it was."""
        for (scope, part), assigned in list(source.names.items()):
            if scope not in ran or not part.startswith((f"{name}.", f"{name}[")):
                continue
            for piece, its in _pieces(whole, part.removeprefix(name), assigned):
                if sent is not None and (*ran[scope], *end_of(its.value)) <= sent:
                    continue
                if self.placements.sent(source, [its], is_tensor=isinstance(piece, torch.Tensor)):
                    self._add(piece, there)
                elif sent is not None and _is_made(source, its):
                    self._add(piece, self.replaced)

    def _made_there(self, name: str, optimizer: torch.optim.Optimizer, there: set[int]) -> set[int]:
        """The optimizer state on the device: created or loaded after the parameters were moved, or moved itself."""
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        if not parameters or not all(id(each) in there for each in parameters):
            return set()
        for source in self._sources:
            if any(one == name and self._sends(source, loop) for one, loop in source.states_sent):
                return _of_parameters(optimizer)
            made = [each.value for each in source.names.get(("", name), ())]
            if any(self._made_there_by(source, each) for each in made):
                return _of_parameters(optimizer)
            sent = [
                each.value for (_, one), its in source.names.items() for each in its if self._holds(one, parameters)
            ]
            last = max(map(end_of, sent), default=(0, 0))
            loaded = (call for call, at in source.calls.get("load_state_dict", ()) if not at and _is_method(call, name))
            if any(end_of(each) > last for each in (*made, *loaded)):
                return _of_parameters(optimizer)
        return set()

    def _sends(self, source: Source, loop: ast.For) -> bool:
        calls = (each for each in ast.walk(loop) if isinstance(each, ast.Call) and called(each) in ("to", "cuda"))
        return any(self.reasons.of(source, given, "") for call in calls for given in call.args) or any(
            called(each) == "cuda" for each in ast.walk(loop) if isinstance(each, ast.Call)
        )

    def _made_there_by(self, source: Source, made: ast.expr) -> bool:
        """Whether a function moves the model first, and then creates the optimizer or loads its state."""
        call, index = (made.value, made.slice) if isinstance(made, ast.Subscript) else (made, None)
        scope = called(call) if isinstance(call, ast.Call) else ""
        for each in source.returns.get(scope, ()):
            members = each.value.elts if isinstance(each.value, ast.Tuple) else [each.value]
            at = getattr(index, "value", 0)
            own = members[at] if type(at) is int and at < len(members) else None
            if not isinstance(own, ast.Name):
                continue
            sent = [
                end_of(one.value)
                for (where, name), its in source.names.items()
                for one in its
                if where == scope and name != own.id and self.placements.placed(one.value, Where.of(source, one))
            ]
            made_at = [end_of(one.value) for one in source.names.get((scope, own.id), ())]
            loads = source.calls.get("load_state_dict", ())
            made_at += [end_of(call) for call, where in loads if where == scope and _is_method(call, own.id)]
            if sent and made_at and max(made_at) > min(sent):
                return True
        return False

    def _holds(self, name: str, parameters: list[torch.Tensor]) -> bool:
        """Whether the variable is a module that contains the first of these parameters."""
        value = next((each for one, each in self._variables() if one == name), None)
        return isinstance(value, torch.nn.Module) and any(each is parameters[0] for each in parameters_in(value))

    def _add_dataset(self, each: Any, there: set[int]) -> None:
        """Add the tensors that a data loader or its parts hold, and their generators."""
        if type(each) is TensorDataset:
            for index, tensor in enumerate(each.tensors):
                if self._all_placed("TensorDataset", index):
                    there.add(id(tensor))
        elif type(each) in self.around.classes:
            self._add_own(each, there)
        made = [value for _, value in _attributes_of(each) if isinstance(value, torch.Generator)]
        if made and self._all_decided("Generator"):
            self.generators += made

    def _all_placed(self, name: str, index: int) -> bool:
        """Whether every call of a class passes this argument on the device."""
        calls = [(source, *each) for source in self._sources for each in source.calls.get(name, ())]
        return bool(calls) and all(
            len(call.args) > index and self.placements.given(source, call.args[index], scope)
            for source, call, scope in calls
        )

    def _all_decided(self, name: str) -> bool:
        calls = [(source, *each) for source in self._sources for each in source.calls.get(name, ())]
        return bool(calls) and all(self.placements.given(*each) for each in calls)

    def sends_its_own(self, holder: Any) -> bool:
        """Whether the methods of an instance of the program's class move the tensors that it holds."""
        return type(holder) in self.around.classes and (
            self._add_own(holder, set()) or self._add_inherited(holder, set()) or self._sends_to_the_cpu(holder)
        )

    def _sends_to_the_cpu(self, holder: Any) -> bool:
        """Whether a method moves an attribute to a chosen device that is the CPU on every machine."""
        own, off = _owners(holder), self.placements.switched_off
        names = [name for name, _ in _attributes_of(holder)]
        assigned = [each for source in self._sources for name in names for each in source.attributes.get(name, ())]
        read = [one for each in assigned if each.owner in own for one in (each.value, *each.tests)]
        return any(node in off for each in read for node in ast.walk(each))

    def _variables(self) -> Iterator[tuple[str, Any]]:
        """The global variables of the program's files."""
        for space in {id(each.__globals__): each.__globals__ for each in self.around.functions}.values():
            yield from list(space.items())

    def _add_own(self, holder: Any, there: set[int]) -> bool:
        """Add what the methods of an instance of the program's class move. Returns whether they move anything new."""
        before, is_module = len(there), isinstance(holder, torch.nn.Module)
        if is_module and self._first(lambda source: self.placements.sent(source, sent_itself(source, _owners(holder)))):
            self._add(holder, there)
        registered = _registered_in(holder) if is_module else ()
        for name, value in [*_attributes_of(holder), *registered]:
            if _is_movable(value) and self._attribute_was_sent(name, holder, value):
                self._add(value, there)
        return len(there) > before

    def _add(self, value: Any, there: set[int]) -> None:
        """Add what `Module.to` moves in a module, all elements of a container, or what another object's `to` moves."""
        if isinstance(value, torch.nn.Module):
            registered = [*tensors_in(value)]
            gradients = [each.grad for each in registered if each.is_leaf and each.grad is not None]
            there |= {*map(id, registered), *map(id, gradients)}
            for each in modules_in(value):
                self.sent_modules[id(each)] = each
                there |= _by_own_apply(each, self.home)
            if type(value) in self.around.classes:
                self._add_moved_by_own(value, there)
        elif isinstance(value, torch.Tensor):
            there.add(id(value))
        elif isinstance(value, torch.Generator):
            self.generators.append(value)
        elif isinstance(value, _DISTRIBUTIONS):
            there |= {*map(id, held([value], torch.Tensor))}
        elif isinstance(value, _CONTAINERS):
            for each in value.values() if isinstance(value, dict) else value:
                self._add(each, there)
        elif isinstance(value, partial):
            self._add([*value.args, *value.keywords.values()], there)
        elif type(value) in self.around.classes:
            self._add_moved_by_own(value, there)
        elif moves_itself(value):
            there |= {*map(id, held([value], torch.Tensor))}
            for each in held([value], torch.nn.Module):
                self._add(each, there)

    def _add_moved_by_own(self, value: Any, there: set[int]) -> None:
        """Add what a `to` method of the program's class moves; `_add` has added what `super().to` moves in a module."""
        inherits = not isinstance(value, torch.nn.Module)
        read = [(source, owner) for source in self._sources for owner in _owners(value)]
        moved, kept = (
            {name for source, owner in read for name in source.moved_by(owner, keeps=keeps, inherits=inherits)}
            for keeps in (False, True)
        )
        for name, each in _attributes_of(value) if moved else ():
            if not {name, ITSELF}.isdisjoint(kept if isinstance(each, torch.Tensor) else moved):
                self._add(each, there)

    def _was_sent(self, name: str, value: Any, scope: str = "") -> bool:
        """Whether a global or closure variable was moved. `z.to(device)` moves a module in place, but not a tensor."""

        def found(source: Source) -> Line | None:
            inner = scope
            while inner and (inner, name) not in source.names:
                inner = scope_around(inner)
            given = source.names.get((inner, name), ())
            return self.placements.sent(source, given, is_tensor=isinstance(value, torch.Tensor))

        return self._first(found) is not None

    def _sent_elements(self, name: str, value: Any) -> list[Any]:
        """The elements of a list, dict or namespace that were moved, or were on the device when added."""
        if isinstance(value, types.SimpleNamespace):
            return [one for key, one in vars(value).items() if self._was_sent(f"{name}.{key}", one)]
        if not isinstance(value, (list, tuple, dict, set, deque)):
            return []
        pairs = _members(value)
        if self._was_filled(name):
            return [one for _, one in pairs]
        if self._was_sent(f"{name}[]", value):
            elements = [(key, one) for key, one in pairs if self._was_sent(f"{name}[]", one)]
            return [one for key, one in elements if not self._came_later(name, key)]
        return [one for key, one in pairs if not _is_plain(one) and self._element_was_sent(name, key, one)]

    def _came_later(self, name: str, key: Any, scope: str = "") -> bool:
        """Was an element assigned on the CPU, below the loop that moves the others: `nets["critic"] = Critic()`?"""
        for source in self._sources:
            loops = [end_of(each.value) for each in source.names.get((scope, f"{name}[]"), ()) if each.is_sent]
            own = source.names.get((scope, f"{name}[{key!r}]"), [])
            if loops and own and end_of(own[-1].value) > max(loops):
                return self.placements.sent(source, own) is None
        return False

    def _sent_parts(self, scope: str, name: str, whole: Any) -> Iterator[Any]:
        """Yield what statements put into a variable on the device: `s.a.w = ...`, `bank["w"] = ...`, `rows.add(..)`."""
        for source in self._sources:
            for (at, part), assigned in list(source.names.items()):
                if at == scope and part.startswith((f"{name}.", f"{name}[")):
                    holder = part.removesuffix("[]")
                    for key, each in _reached(whole, part.removeprefix(name)):
                        was_sent = self.placements.sent(source, assigned, is_tensor=isinstance(each, torch.Tensor))
                        if was_sent and not (holder != part and self._came_later(holder, key, scope)):
                            yield each

    def _sent_defaults(self, function: types.FunctionType) -> Iterator[Any]:
        """Yield the default arguments that are on the device: `def f(x, w=torch.ones(4, device=DEVICE))`."""
        source, scope = self.reasons.source(function.__code__.co_filename), function.__qualname__
        names = function.__code__.co_varnames[: function.__code__.co_argcount]
        by_name = dict(zip(reversed(names), reversed(function.__defaults__ or ()), strict=False))
        for name, value in {**by_name, **(function.__kwdefaults__ or {})}.items():
            if scope in source.functions and _is_movable(value):
                default = default_of(source.functions[scope], name)
                if default is not None and self.placements.given(source, default, scope_around(scope)):
                    yield value

    def _sent_class_attributes(self, kind: type) -> Iterator[Any]:
        """Yield the attributes of a class that its body makes on the device or sends there."""
        for name, value in list(vars(kind).items()):
            if _is_movable(value) and not name.startswith("__"):

                def found(
                    source: Source, name: str = name, is_tensor: bool = isinstance(value, torch.Tensor)
                ) -> Line | None:
                    own = [each for each in source.attributes.get(name, ()) if each.owner == kind.__name__]
                    in_body = [each for each in own if each.scope.split(".")[-1] == kind.__name__]
                    return self.placements.sent(source, in_body, is_tensor=is_tensor)

                if self._first(found):
                    yield value

    def _was_filled(self, name: str) -> bool:
        """Whether functions that have run put tensors on the device into it: `def keep(x): rows.append(x)`."""

        def found(source: Source) -> Line | None:
            scopes = {scope for scope, one in source.names if scope and one == f"{name}[]"}
            ran = [each for each in scopes if self._ran_before(source, each) and not assigned_to(name, source, each)[0]]
            added = [each for scope in ran for each in source.names[scope, f"{name}[]"]]
            return self.placements.sent(source, added)

        return self._first(found) is not None

    def _element_was_sent(self, name: str, key: Any, value: Any) -> bool:
        single = f"{name}[{key!r}]"
        if any(source.names.get(("", single)) for source in self._sources):
            return self._was_sent(single, value)
        return self._first(lambda source: self.placements.part(source, name, key)) is not None

    def _was_returned(self, name: str) -> bool:
        """Whether a function returns a moved variable with the name of this parameter of the step."""

        def found(source: Source) -> Line | None:
            made = [each for scope in _makers(source, name) for each in source.names[scope, name]]
            assigned = [each for each in made if not each.is_sent]
            return self.placements.sent(source, assigned)

        return self._first(found) is not None

    def _is_sent_global(self, value: Any) -> bool:
        """Whether it is also a global variable of the program that was moved."""
        names = {name for name, each in self._variables() if each is value}
        return any(self._was_sent(name, value) for name in names)

    def _attribute_was_sent(self, name: str, holder: Any, value: Any) -> bool:
        owners = {each.__name__ for each in type(holder).__mro__[:-1]}

        def found(source: Source) -> Line | None:
            own = self._own(source, name, owners) or self._own(source, ANY, owners)
            if isinstance(holder, _FILLED_BY_LIBRARY):  # by the base class, unless a method has run
                own = [each for each in own if self._ran_before(source, each.scope)]
            elements = self._own(source, f"{name}[]", owners) if isinstance(value, _CONTAINERS) else []
            is_tensor = isinstance(value, torch.Tensor)
            if not own and dataclasses.is_dataclass(holder):
                return self._of_field(source, name, holder)
            are_tensors = all(isinstance(each, torch.Tensor) for _, each in _members(value))
            return self.placements.sent(source, own, is_tensor=is_tensor) or self.placements.sent(
                source, elements, is_tensor=are_tensors
            )

        with self.placements.of_object(self._made_by(holder)):
            return self._first(found) is not None

    def _of_field(self, source: Source, name: str, holder: Any) -> Line | None:
        """The line for a field of a dataclass, if every call that makes one passes it on the device."""
        fields = [each.name for each in dataclasses.fields(holder) if each.init]
        index, found = fields.index(name) if name in fields else len(fields), list[Line | None]()
        for call, scope in source.calls.get(type(holder).__name__, ()):
            by_name = [each.value for each in call.keywords if each.arg == name]
            given = [*by_name, *call.args[index : index + 1]]
            found.append(self.placements.given(source, given[0], scope) if given else None)
        return found[0] if found and all(found) else None

    def _own(self, source: Source, name: str, owners: set[str]) -> list[Assigned]:
        """The statements that have run and assign an attribute of an object."""
        cached = [scope for scope in source.properties.get(name, ()) if scope.rpartition(".")[0] in owners]
        own = [each for scope in cached for each in source.returns[scope]]
        own += [each for each in source.attributes.get(name, ()) if each.owner in owners]
        if any(each.scope.endswith(".__init__") for each in own) or name.endswith("[]"):
            own = [each for each in own if self._ran_before(source, each.scope)]
        return own

    def _ran_before(self, source: Source, scope: str) -> bool:
        """Whether a method ran before the step, judging by the calls outside the functions that the step runs."""
        name = scope.rpartition(".")[2]
        during = {each.__qualname__ for each in self.around.functions} - {f"{scope.rpartition('.')[0]}.__init__"}
        calls = (at for _, _, at in self.reasons.calls_of(source, scope))
        return name.startswith("__") or any(at not in during or at.endswith(".__init__") for at in calls)

    def _first(self, ask: Callable[[Source], Line | None]) -> Line | None:
        return next(filter(None, map(ask, self._sources)), None)

    # ------------------------------------------------------------ where the values are stored

    def _globals(self) -> None:
        files = {id(each.__globals__): each.__code__.co_filename for each in self.around.functions}
        for (key, name), space in self.around.names.items():
            file = files.get(key) or space.get("__file__")
            if file is None or name not in space:
                continue
            value = space[name]
            if isinstance(value, (argparse.Namespace, types.SimpleNamespace)):
                self._switches(value, self.reasons.source(file), space)
            decided = self._variable(name, value, file, "", space)
            if decided is not None:
                line, new = decided
                self._change(partial(space.__setitem__, name, new), partial(space.__setitem__, name, value))
                self._lines[line].append(name)

    def _variable(
        self, name: str, value: Any, file: str, scope: str, space: Mapping[str, Any]
    ) -> tuple[Line, Any] | None:
        """The line that chose a variable, and its value on a machine with the device; None if no line did."""
        is_device = self._is_candidate(value) or self._is_no_accelerator(value, file, name, scope)
        source = self.reasons.source(file)
        assigned = source.names.get((scope, name), [])
        are_counted = is_count(value, assigned)
        if not is_device and not are_counted and not is_for_the_cpu(value, self.home):
            return None
        line = self.reasons.of_name(source, name, scope)
        if not scope and (bound := self.reasons.bound(source, name))[0] is not source:  # bound in another file
            source, assigned = bound
            space = self._space_of(source)
        if line is None or (is_device and value is not None and self.again.stays(assigned, source, space)):
            return None
        if value is False:
            new = self.again.switch(assigned, source, space)
        elif are_counted:
            new = self.again.count(assigned, source, space)
        else:
            new = self._new(value) if is_device else self._precision(name, value, line, assigned, source, space)
        return None if new is None else (line, new)

    def _precision(
        self, name: str, value: Any, line: Line, assigned: list[Assigned], source: Source, space: Mapping[str, Any]
    ) -> Any:
        """The autocast region or scaler that a name would have; None if unknown, which adds to `assumed`."""
        made = self.again.precision(assigned, source, space)
        if made is not None:
            self.made.append(made)
        elif value is not None:
            kind = getattr(value, "__name__", type(value).__name__)
            self.assumed.append(
                f"{name} stays a {kind}: {line} created it on a machine without {self.home.type}; create it in the step"
            )
        return made

    def _switches(self, namespace: Any, source: Source, space: dict[str, Any]) -> None:
        """Turn on switches that depend on the device: `args.cuda = not args.no_cuda and torch.cuda.is_available()`."""
        for name, value in vars(namespace).items():
            assigned = source.attributes.get(name, [])
            if value is False or is_count(value, assigned):
                line = self.reasons.of_any(source, assigned)
                find = self.again.switch if value is False else self.again.count
                new = None if line is None else find(assigned, source, space)
                if line is not None and new:
                    self._change(partial(setattr, namespace, name, new), partial(setattr, namespace, name, value))
                    self._lines[line].append(name)

    def _closure(self, function: types.FunctionType) -> None:
        scope = scope_around(function.__qualname__)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                value = cell.cell_contents
            except ValueError:  # empty cell
                continue
            file = function.__code__.co_filename
            decided = self._variable(
                name, value, file, scope, {**function.__globals__, **_locals_of(file), **closure_of(function)}
            )
            if decided is not None:
                line, new = decided
                self._change(
                    partial(setattr, cell, "cell_contents", new), partial(setattr, cell, "cell_contents", value)
                )
                self._lines[line].append(name)

    def _defaults(self, function: types.FunctionType) -> None:
        if not any(
            map(self._is_candidate, (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()))
        ):
            return
        source = self.reasons.source(function.__code__.co_filename)
        written = source.functions.get(function.__qualname__)
        if written is None:
            return
        names = function.__code__.co_varnames[: function.__code__.co_argcount]
        before, keywords = function.__defaults__ or (), dict(function.__kwdefaults__ or {})
        own = dict(zip(reversed(names), reversed(before), strict=False))
        new: dict[str, Any] = {}
        for name, value in {**own, **keywords}.items():
            default = default_of(written, name) if self._is_candidate(value) and not isinstance(value, bool) else None
            line = None if default is None else self.reasons.of(source, default, scope_around(function.__qualname__))
            if line is not None:
                new[name] = self._new(value)
                self._lines[line].append(name)
        if new:
            after = tuple(new.get(name, own[name]) for name in names[len(names) - len(before) :])
            self._change(
                partial(setattr, function, "__defaults__", after), partial(setattr, function, "__defaults__", before)
            )
            with_new = {name: new.get(name, value) for name, value in keywords.items()}
            self._change(
                partial(setattr, function, "__kwdefaults__", with_new or None),
                partial(setattr, function, "__kwdefaults__", keywords or None),
            )

    def _class_attributes(self, kind: type) -> None:
        for name, value in list(vars(kind).items()):
            if self._is_candidate(value) and not isinstance(value, bool) and not name.startswith("__"):
                line = self._first(lambda source, name=name: self.reasons.of_attribute(source, name, (kind.__name__,)))  # type: ignore[misc]
                if line is not None:
                    self._change(
                        partial(type.__setattr__, kind, name, self._new(value)),
                        partial(type.__setattr__, kind, name, value),
                    )
                    self._lines[line].append(f"{kind.__name__}.{name}")

    def _change(self, do: Callable[[], object], back: Callable[[], object]) -> None:
        self._changes.append((do, back))

    def _is_candidate(self, value: Any) -> bool:
        return is_candidate(value, self.home)

    def _is_no_accelerator(self, value: Any, file: str, name: str, scope: str = "") -> bool:
        """Whether it is None for lack of an accelerator: `device = torch.accelerator.current_accelerator()`."""
        variable = ast.Name(name, ast.Load())
        return value is None and self.reasons.is_current_accelerator(self.reasons.source(file), variable, scope)

    def _new(self, value: Any) -> Any:
        return on_device(value, self.home)


def _returned_by_its_call(source: Source, given: list[Assigned]) -> Iterator[tuple[str, str]]:
    """Yield the functions that return a variable's value, with the local they return: `model = build()`."""
    for each in given:
        for returned in source.returns.get(called(each.value), ()) if isinstance(each.value, ast.Call) else ():
            if isinstance(returned.value, ast.Name):
                yield returned.scope, returned.value.id


def _makers(source: Source, name: str) -> list[str]:
    """The functions that return a local variable of this name."""
    return [
        scope
        for scope, returned in source.returns.items()
        if name not in parameters_of(source.functions[scope]) and any(names_of(each.value, name) for each in returned)
    ]


def _of_parameters(optimizer: torch.optim.Optimizer) -> set[int]:
    """The ids of the state tensors on the parameters' device: those with the shape of their parameter."""
    return {
        id(value)
        for parameter, its in optimizer.state.items()
        for value in its.values()
        if isinstance(value, torch.Tensor) and value.shape == parameter.shape
    }


def _by_own_apply(module: torch.nn.Module, home: torch.device) -> set[int]:
    """The ids of the tensors that an overridden `_apply` moves, such as metric states or Gaussian process data."""
    moved: set[int] = set()
    own = apply_of(type(module))
    if own is apply_of(torch.nn.Module) or own.__module__.startswith("torch."):
        return moved

    def seen(tensor: torch.Tensor) -> torch.Tensor:
        moved.add(id(tensor))
        return tensor

    try:
        with ReadAsCpu(home):  # it may already store the device
            own(module, seen)
    except Exception:  # its move fails as well
        return set()
    return moved


def _pieces(whole: Any, path: str, assigned: list[Assigned]) -> Iterator[tuple[Any, Assigned]]:
    """Yield the modules and tensors that statements assign in a module at `path`, each with its statement."""
    holder = _part_of(whole, path.removesuffix("[]"))
    if not path.endswith("[]"):
        if holder is not None and holder is not whole:
            yield holder, assigned[-1]
        return
    members = [*children_of(holder).values()] if isinstance(holder, torch.nn.Module) else []
    in_a_loop = [each for each in assigned if each.is_sent]
    if in_a_loop:  # `for each in layers: each.to(device)`
        yield from ((each, in_a_loop[-1]) for each in members)
    else:
        yield from zip(reversed(members), reversed(assigned), strict=False)


def _part_of(whole: Any, path: str) -> Any:
    """The module or tensor at a path such as `.layers[0].weight` in a module; None if it does not exist."""
    for attribute, key in re.findall(r"\.(\w+)|\[([^]]*)\]", path):
        step = attribute or ast.literal_eval(key)
        if not isinstance(whole, torch.nn.Module):
            return None
        held = {**children_of(whole), **registered_in(whole), **whole.__dict__}
        members = [*children_of(whole).values()]
        is_index = type(step) is int and -len(members) <= step < len(members)
        whole = members[step] if is_index else held.get(str(step))
    return whole if isinstance(whole, (torch.nn.Module, torch.Tensor)) else None


def _reached(whole: Any, path: str) -> list[tuple[Any, Any]]:
    """What is at a path such as `.a.w`, `['w']` or `.rows[]` (all members, by their keys) in an object."""
    for attribute, key in re.findall(r"\.(\w+)|\[([^]]+)\]", path):
        if attribute:
            whole = None if isinstance(whole, torch.nn.Module) else dict(_attributes_of(whole)).get(attribute)
        else:
            members, step = dict(_members(whole)), ast.literal_eval(key)
            whole = members.get(step + len(members) if type(step) is int and step < 0 else step)
    if path.endswith("[]"):
        return _members(whole)
    return [] if whole is None else [("", whole)]


def _members(whole: Any) -> list[tuple[Any, Any]]:
    """The members of a container, with their keys or indices."""
    if not isinstance(whole, _CONTAINERS):
        return []
    return [*whole.items()] if isinstance(whole, dict) else [*enumerate(whole)]


def _is_made(source: Source, assigned: Assigned) -> bool:
    """Whether the assigned value is the result of a call, directly or through a variable."""
    value = assigned.value
    if isinstance(value, ast.Name):
        before = source.names.get((assigned.scope, value.id), [])
        return bool(before) and isinstance(before[-1].value, ast.Call)
    return isinstance(value, ast.Call) and not assigned.is_sent


def _assigned_in(variable: tuple[str, str], source: Source) -> list[Assigned]:
    return source.names.get(variable, [])


def _is_method(call: ast.Call, name: str) -> bool:
    return isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) == name


def _locals_of(file: str) -> dict[str, Any]:
    """The local variables of the running functions of a file."""
    found: dict[str, Any] = {}
    for frame in users_frames():
        found |= frame.f_locals if frame.f_code.co_filename == file else {}
    return found


def _is_movable(value: Any) -> bool:
    kinds = (torch.nn.Module, torch.Tensor, torch.Generator, partial, *_CONTAINERS, *_DISTRIBUTIONS)
    return isinstance(value, kinds) or moves_itself(value)


def _attributes_of(holder: Any) -> list[tuple[str, Any]]:
    slots = {name: each for kind in type(holder).__mro__ for name, each in vars(kind).items()}
    are_set = {
        name: each.__get__(holder)
        for name, each in slots.items()
        if isinstance(each, types.MemberDescriptorType) and each.__objclass__.__module__ != "builtins"
        if hasattr(holder, name)
    }
    return [*are_set.items(), *getattr(holder, "__dict__", {}).items()]


def _owners(holder: Any) -> set[str]:
    return {each.__name__ for each in type(holder).__mro__[:-1]}


def _registered_in(module: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    yield from torch.nn.Module.named_children(module)
    yield from torch.nn.Module.named_parameters(module, recurse=False)
    yield from torch.nn.Module.named_buffers(module, recurse=False)


def _is_plain(value: Any) -> bool:
    """Certainly holds no tensor: a number, a string, or a container of them."""
    inside = value.values() if type(value) is dict else value
    return type(value) in ATOMS or (
        type(value) in (list, tuple, set, dict) and all(type(each) in ATOMS for each in inside)
    )


SwitchedOff = Callable[[Any], bool]
_POSITION = {"autocast": 2, "GradScaler": 5}  # index of the argument `enabled`, by callable
_WITHOUT_DEVICE = {"autocast": 0, "GradScaler": 4}  # the same for torch.cuda.amp, without the device argument


def switched_off_by(around: Captured, inventory: Inventory, caller: str, home: torch.device) -> SwitchedOff:
    """Return a predicate: whether an autocast region or a scaler was disabled by the call that created it."""
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


def _variables(made: Any, around: Captured) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the names of the variables that are this object, each with its namespace."""
    for function in around.functions:
        space = {**function.__globals__, **closure_of(function)}
        yield from ((name, space) for name, value in space.items() if value is made)
    for frame in users_frames():
        space = {**frame.f_globals, **frame.f_locals}
        yield from ((name, space) for name, value in space.items() if value is made)


def _attributes(made: Any, inventory: Inventory) -> Iterator[tuple[str, Any]]:
    """Yield the names of the attributes that are this object, each with its holder."""
    for holder, _ in inventory.holders.values():
        own = getattr(holder, "__dict__", None)
        yield from ((name, holder) for name, value in own.items() if value is made) if type(own) is dict else ()


def _assigned(source: Source, name: str) -> Iterator[Assigned]:
    """Yield the assignments to a variable of this name, in any scope."""
    for (_, each), given in source.names.items():
        yield from given if each == name else ()


def _answers(
    again: Again, expression: ast.expr, positions: dict[str, int], source: Source, scope: str, space: dict[str, Any]
) -> Iterator[bool | None]:
    """Yield, for each call that creates such an object, whether it is enabled; None if unknown."""
    for call in ast.walk(expression):
        if isinstance(call, ast.Call) and called(call) in positions:
            position = positions[called(call)]
            given = [each.value for each in call.keywords if each.arg == "enabled"] or call.args[
                position : position + 1
            ]
            yield again.truth(given[0], source, scope, space) if given else True


def _decorated_by(region: Any) -> Sequence[types.FunctionType]:
    """The function decorated with `@torch.autocast(...)` that is about to run."""
    frame: FrameType | None = frame_at(1)
    while frame is not None:
        if frame.f_code.co_name == "decorate_autocast":
            function = frame.f_locals.get("func")
            is_its = frame.f_locals.get("autocast_instance") is region
            return [function] if is_its and isinstance(function, types.FunctionType) else []
        frame = frame.f_back
    return []
