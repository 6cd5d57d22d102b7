"""Descriptions of tensors on the wrong device: the kind of mistake, the tensor's name in the user's code, and the fix.

The functions here return an `Origin`. Its text is composed only when a problem is reported, from the source code, the
variables and the paths that lead to the tensor at that moment.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import gc
import inspect
import linecache
import re
import types
import weakref
from collections.abc import Callable, Container, Iterator, Mapping
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchmove.rehearsing.captured import held, parameters_in, tensors_in
from torchmove.rehearsing.provenance import (
    Line,
    Origin,
    Provenance,
    Running,
    is_installed,
    module_being_built,
    own_line,
    users_frame,
    users_frames,
    users_line,
)
from torchmove.rehearsing.tensors import CPU, StandIn
from torchmove.surveying.inventory import Inventory
from torchmove.surveying.paths import ATTRIBUTE, CELL, ITEM, REFERENT, Path, root_path

_TAKE_THE_DEVICE = "use the device of a parameter: next(model.parameters()).device"
# A device given by a variable or an attribute instead of a name.
_REMEMBERED = re.compile(r"(\bdevice\s*=\s*|\.to\(\s*)(?!torch\.device\()[A-Za-z_][\w.]*")
_HELD_IN_A_CONTAINER = "use nn.ParameterList, nn.ModuleList or buffers; or tm.move, which moves it"
_MOST_MEMBERS = 64
_NAMES_CPU = re.compile(r"""["']cpu["']""")
_CACHES = re.compile(r"cache|memo(?!r)")
_CONVERTERS = {"from_numpy", "Tensor", "frombuffer"} | {
    f"{kind}Tensor" for kind in ("Float", "Double", "Half", "BFloat16", "Byte", "Char", "Short", "Int", "Long", "Bool")
}


def bare_root() -> Origin:
    """A root without a description: only the origins below it are described."""
    return Origin(_unsaid)


def _unsaid(_: Origin) -> Provenance:
    raise AssertionError("the origins below a shared one have the words")


def name_of(device: torch.device) -> str:
    """A device as a literal in user code."""
    return f'"{device}"' if device.index else f'"{device.type}"'


# ---------------------------------------------------------------- data


def given(path: Path, value: Any, tensor: Tensor, device: torch.device, root: Origin | None) -> Origin:
    """The origin of a tensor in a batch. `value`: the object that the step receives."""
    return _input(tensor, device, lambda: (_root_name(path), str(path)), value, root=root)


def delivered(stage: Any, tensor: Tensor, batch: Any = None) -> Origin:
    """The origin of a tensor from a DataLoader, alone or in a batch that has its own `to`."""
    if batch is None or not moves_itself(batch):
        return _input(tensor, stage.home, lambda: ("", ""), None, "the loader delivers it on cpu")

    def named() -> tuple[str, str]:
        name = users_name(batch) or "batch"
        return name, name

    return _input(tensor, stage.home, named, batch, root=stage.root("batch", users_line()))


def loaded_on_cpu(home: torch.device) -> Origin:
    """The origin of a tensor that torch.load or safetensors loaded to the CPU."""
    line = users_line()
    file = re.search(r"\b(?:\w+\.)*(load_file|safe_open)(?=\()", line.text)
    remedy = f"{file[0]}(..., device={name_of(home)})" if file else f"torch.load(..., map_location={name_of(home)})"
    by_name = re.search(r"""(map_location|device)\s*=\s*(torch\.device\()?["']cpu""", line.text)
    return Origin(lambda _: Provenance("hard-coded" if by_name else "input", "it was loaded to cpu", remedy, line))


def _root_name(path: Path) -> str:
    return str(next(path.steps()))


def _input(
    tensor: Tensor,
    device: torch.device,
    known: Callable[[], tuple[str, str]],
    value: Any,
    what: str = "",
    root: Origin | None = None,
) -> Origin:
    def describe(origin: Origin) -> Provenance:
        root, path = known()
        found = _users_variable(origin.tensor() if origin.tensor else None)
        if found is None and not path:
            found = _users_variable(computed_from(origin))
        name = found.name if found else path
        if value is not None and moves_itself(value):
            return Provenance("input", f"{name} is on cpu", _moved_itself(root, name, value, device))
        updated = re.match(r"(?:\w+\.)*update_bn\(.*(?=\)$)", users_line().text)
        if updated and "device" not in updated[0]:
            return Provenance("input", f"{name} is on cpu", f"{updated[0]}, device={name_of(device)})")
        collected = "" if found is None or found.before == root else _collected(found, device)
        return Provenance("input", what or f"{name} is on cpu", collected or _sent(found, name or "x", device))

    origin = Origin(describe, root)
    origin.tensor = weakref.ref(tensor)
    return origin


def moves_itself(value: Any) -> bool:
    """Whether an object has its own `to`, such as a graph batch or a tokenizer's encoding."""
    return not isinstance(value, Tensor) and callable(getattr(type(value), "to", None))


def _moved_itself(root: str, name: str, value: Any, device: torch.device) -> str:
    """The statement that moves an object with its own `to`, or the tensor that this `to` omits."""
    return _kept_in_its_to(name, value, device) or f"{root} = {root}.to({name_of(device)})"


def _kept_in_its_to(name: str, value: Any, device: torch.device) -> str:
    """The line missing from the `to` of an object whose other tensors were moved; "" if none were."""
    inside = [each for each in getattr(value, "__dict__", {}).values() if isinstance(each, Tensor)]
    if not any(each.device == device for each in inside):
        return ""
    attribute = name.rpartition(".")[2]
    return f"in {type(value).__name__}.to: self.{attribute} = self.{attribute}.to({name_of(device)})"


class _Variable(NamedTuple):
    """The name of a tensor in the user's code: a variable, or an element of one."""

    name: str
    holder: Any = None  # the container, if it is an element
    before: str = ""  # the variable of the container
    key: Any = None


def users_name(tensor: Any) -> str:
    found = _users_variable(tensor)
    return found.name if found else ""


def _users_variable(tensor: Any) -> _Variable | None:
    """The variable for a tensor, in the user's own functions or else in those of libraries."""
    frames = [*users_frames()] if tensor is not None else []
    own = [each for each in frames if not is_installed(each.f_code.co_filename)]
    return _variable_in(own, tensor) or _variable_in(frames, tensor)


def _variable_in(frames: list[FrameType], tensor: Any) -> _Variable | None:
    """The variable for a tensor in these frames, outermost first; a plain variable before an element."""
    found: _Variable | None = None
    for frame in frames:
        variables = {name: value for name, value in _variables(frame).items() if name.isidentifier()}
        own = next((name for name, value in variables.items() if value is tensor), None)
        if own is not None:
            return _Variable(own)
        for name, value in variables.items() if found is None else ():
            key = _key_within(value, tensor)
            if key is not _NO_KEY:
                found = found or _Variable(f"{name}{_shown(value, key)}", value, name, key)
    return found


def computed_from(origin: Origin) -> Tensor | None:
    """The first variable's value that was computed from a tensor with no variable of its own."""
    for frame in users_frames():
        for name, value in _variables(frame).items():
            its = value._origin if isinstance(value, StandIn) and value._place is CPU else None
            if name.isidentifier() and its is not None and its.root is origin.root:
                return value  # type: ignore[no-any-return]
    return None


def _sent(found: _Variable | None, name: str, device: torch.device) -> str:
    """The assignment that moves a variable; a tuple is rebuilt."""
    to = f".to({name_of(device)})"
    if found is None or not isinstance(found.holder, tuple):
        return f"{name} = {name}{to}"
    before, key = found.before, found.key
    fields = getattr(found.holder, "_fields", None)
    if fields:
        return f"{before} = {before}._replace({fields[key]}={name}{to})"
    first, rest = (f"*{before}[:{key}], " if key else ""), f", *{before}[{key + 1}:]"
    return f"{before} = ({first}{name}{to}{rest})"


def _collected(found: _Variable | None, device: torch.device) -> str:
    """The assignment that moves a list of several CPU tensors; "" if it is not such a list."""
    members = found.holder if found is not None and type(found.holder) is list else []
    are_there = all(isinstance(each, StandIn) and each._place is CPU for each in members)
    return _all_sent(found.before, members, device) if found is not None and len(members) > 1 and are_there else ""


def _all_sent(name: str, holder: Any, device: torch.device) -> str:
    """The assignment that moves all elements of a list or a dict."""
    return f"{name} = {each_of(name, f'.to({name_of(device)})', is_dict=isinstance(holder, dict))}"


def each_of(name: str, method: str, *, is_dict: bool = False) -> str:
    """The comprehension that calls a method on each element of a list or a dict."""
    if is_dict:
        return f"{{key: each{method} for key, each in {name}.items()}}"
    return f"[each{method} for each in {name}]"


def _variables(frame: FrameType) -> dict[str, Any]:
    """The variables of a frame.

    Before Python 3.13, `f_locals` is a dict cached on the frame; it is cleared so that it does not keep tensors alive.
    """
    scope = frame.f_locals
    found = dict(scope)
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED and type(scope) is dict:
        scope.clear()
    return found


_NO_KEY = object()


def _within(value: Any, tensor: Any) -> str | None:
    if value is tensor:
        return ""
    key = _key_within(value, tensor)
    return None if key is _NO_KEY else _shown(value, key)


def _key_within(value: Any, tensor: Any) -> Any:
    """The key, index or attribute of a tensor in a container."""
    members: Iterator[tuple[Any, Any]] = iter(())
    if isinstance(value, Mapping) and len(value) <= _MOST_MEMBERS:
        members = ((key, value[key]) for key in value)
    elif isinstance(value, (list, tuple)) and len(value) <= _MOST_MEMBERS:
        members = enumerate(value)
    elif dataclasses.is_dataclass(value) or isinstance(value, types.SimpleNamespace):
        members = iter(getattr(value, "__dict__", {}).items())
    return next((key for key, each in members if each is tensor), _NO_KEY)


def _shown(holder: Any, key: Any) -> str:
    """An element's key as it is written after the container's name."""
    if isinstance(holder, tuple) and hasattr(holder, "_fields"):
        return f".{holder._fields[key]}"
    if isinstance(holder, (Mapping, list, tuple)):
        return f'["{key}"]' if type(key) is str else f"[{key!r}]"
    return f".{key}"


# ---------------------------------------------------------------- created in the step


def factory(stage: Any, name: str, line: Line) -> Origin:
    """The origin of a tensor created in the step without device=; tensors of a module under construction share one."""
    home = stage.home
    module, outside = module_being_built()
    own = own_line() if is_installed(line.file) else None
    if module is None and own is not None:
        by = f"torch.{name}"
        return Origin(lambda _: _made_inside(by, own, home, line), stage.root("factory", own, name))
    if module is None:
        call = Running.of(users_frame())
        return Origin(lambda _: _made(name, line, home, call), stage.root("factory", line, name, call))
    stage.built[id(module)] = module  # keeps the id unique
    made_at = (own_line() if is_installed(outside.file) else None) or outside
    return Origin(lambda origin: _built(module, origin, made_at, home), stage.root("built", id(module)))


def copied(stage: Any, origin: Origin) -> Origin:
    """The origin of a weight that `copy.deepcopy` has made of one with this origin."""
    if not any(root is origin.root for cause, root in stage.roots.items() if cause[0] == "built"):
        return origin
    line, home = users_line(), stage.home
    what = "a copy that was made on cpu here and not moved"
    return Origin(
        lambda _: Provenance("factory", what, _module_moved(line.text, "deepcopy", home), line),
        stage.root("copied", line),
    )


def _made(name: str, line: Line, home: torch.device, running: Running | None = None) -> Provenance:
    converter = None if _call_in(line.text, {name}) else _call_in(line.text, _CONVERTERS)
    if converter is not None:  # torch.FloatTensor(2, 3) calls torch.empty
        return _converted(line, home)
    call, written = running.written() if running is not None else (None, "")
    what = f"created on cpu by torch.{name} without device="
    if call is None and len(_calls_in(line.text, {name})) > 1:  # Python 3.10 does not tell which of them it is
        return Provenance("factory", what, _with_device(None, "", name, home), line)
    if call is None or _called(call) != name:
        call, written = _call_at(line, {name})
    if call is not None and any(each.arg == "generator" for each in call.keywords):
        # With device=, the generator would be on the wrong device.
        by_generator = f"created on cpu by torch.{name} with a generator on cpu"
        return Provenance("factory", by_generator, f"{written}.to({name_of(home)})", line)
    if call is None and line.text and not _may_go_on(line.text):
        return _made_inside(f"torch.{name}", line, home)
    return Provenance("factory", what, _with_device(call, written, name, home), line)


def _made_inside(by: str, line: Line, home: torch.device, inner: Line | None = None) -> Provenance:
    """A tensor created by library code that the line calls."""
    where = f"in {inner}, which this line calls" if inner else "in code that this line calls"
    remedy = f"pass it a device or tensors on {name_of(home)}, or move its result there with .to({name_of(home)})"
    return Provenance("factory", f"created on cpu by {by} {where}", remedy, line)


def _may_go_on(text: str) -> bool:
    """Whether a line is part of a multi-line statement, whose call may be on another line."""
    for code in (text, f"{text}\n    pass", f"if True: pass\n{text}\n    pass"):
        try:
            ast.parse(code)
        except SyntaxError:
            continue
        return False
    return True


def _built(module: nn.Module, origin: Origin, line: Line, home: torch.device) -> Provenance:
    kind = type(module).__name__
    tensor = origin.tensor() if origin.tensor is not None else None
    contained = _contained_module(module, tensor)
    if contained:
        what = f"{kind}.{contained} is on cpu: a module in a list or dict, which Module.to does not search"
        return Provenance("container", what, "use nn.ModuleList or nn.ModuleDict; or tm.move, which moves it")
    devices = {each.device for each in parameters_in(module)}
    if devices == {home}:  # the module was moved without this tensor
        tensor = _held_by(module, tensor, origin)
        if tensor is None:
            what = f"a copy of a tensor of {kind}, created on cpu before {kind} was moved"
            return Provenance(
                "factory", what, f"create it after {kind} was moved, or move it with .to({name_of(home)})", line
            )
        name, end = _attribute_of(module, tensor)
        if end or not name:
            it = f"{kind}.{name}{end}" if name else f"a tensor of {kind}"
            what = f"{it} is on cpu: in a list or dict, which Module.to does not search"
            return Provenance("container", what, _HELD_IN_A_CONTAINER)
        what = f"{kind}.{name} is on cpu: a plain attribute, not a buffer"
        return Provenance("attribute", what, _registered(name.rpartition(".")[2]))
    what = f"the module {kind} was built on cpu in the step and not moved"
    name = "" if _call_in(line.text, {kind}) else users_name(module)
    remedy = f"{name} = {name}.to({name_of(home)})" if name else _module_moved(line.text, kind, home)
    return Provenance("factory", what, remedy, line)


def _held_by(module: nn.Module, tensor: Any, origin: Origin) -> Any:
    """The tensor itself if the module holds it; else the one that it is a view of or computed from."""
    inside = [each for each in held([module], Tensor, closed=()) if isinstance(each, Tensor)]
    storage = _storage_of(tensor)
    for is_it in (
        lambda each: each is tensor,
        lambda each: storage is not None and _storage_of(each) == storage,
        lambda each: getattr(each, "_origin", None) is origin,
    ):
        found = next(filter(is_it, inside), None)
        if found is not None:
            return found
    return None


def _contained_module(module: nn.Module, tensor: Any) -> str:
    """The path of the submodule in a plain list or dict that has this tensor."""
    storage = _storage_of(tensor)
    for path, each in nn.Module.named_modules(module) if storage is not None else ():
        for name, value in vars(each).items():
            if not name.startswith("_") and isinstance(value, (list, tuple, dict)):
                members = value.items() if isinstance(value, dict) else enumerate(value)
                inside = ((key, one) for key, one in members if isinstance(one, nn.Module))
                for key, one in inside:
                    if any(_storage_of(its) == storage for its in tensors_in(one)):
                        return ".".join(filter(None, (path, name))) + f"[{key!r}]"
    return ""


def _storage_of(tensor: Any) -> int | None:
    """The storage of a tensor, which views share: a layer computes with the transpose of its weight."""
    behind = getattr(tensor, "_behind", None)
    return None if behind is None else behind.untyped_storage()._cdata


def _attribute_of(module: nn.Module, tensor: Any) -> tuple[str, str]:
    """The attribute of a module or submodule that holds a tensor, and the key within the attribute."""
    if tensor is None:
        return "", ""
    for path, each in nn.Module.named_modules(module):
        for name, value in vars(each).items():
            end = None if name.startswith("_") and isinstance(value, dict) else _within(value, tensor)
            if end is not None:
                return ".".join(filter(None, (path, name))), end
    return "", ""


def _module_moved(text: str, kind: str, home: torch.device) -> str:
    """The statement that moves the module built on this line."""
    try:
        statements = [each for each in ast.walk(ast.parse(text)) if isinstance(each, ast.stmt)]
        makes = (each for each in statements if hasattr(each, "value") and _call_in(ast.unparse(each), {kind}))
        statement = next(makes, None) or statements[0]
    except (SyntaxError, IndexError):
        return f"module = module.to({name_of(home)})"
    value = getattr(statement, "value", None)
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Call):  # built and called in one expression
        return f"{ast.unparse(value.func)}.to({name_of(home)})"
    name = ast.unparse(statement.targets[0]) if isinstance(statement, ast.Assign) else "module"
    return f"{name} = {name}.to({name_of(home)})"


def converted(stage: Any) -> Origin:
    """The origin of a tensor made from an array or a list by a torch function without a device argument."""
    line, home = users_line(), stage.home
    own = own_line() if is_installed(line.file) else None
    return Origin(lambda _: _converted(line, home, own), stage.root("converted", own or line))


def _converted(line: Line, home: torch.device, own: Line | None = None) -> Provenance:
    """`own`: the user's line, if a library made the tensor."""
    found, call = _call_at(line, _CONVERTERS)
    name = ast.unparse(found.func) if found is not None else "torch from values"
    if own is not None:
        return _made_inside(name, own, home, line)
    return Provenance("factory", f"created on cpu by {name}", f"{call or 'x'}.to({name_of(home)})", line)


def _with_device(found: ast.Call | None, call: str, name: str, home: torch.device) -> str:
    """The call as written, with device= added or replaced."""
    if found is None:
        return f"torch.{name}(..., device={name_of(home)})"
    given = next((each.value for each in found.keywords if each.arg == "device"), None)
    if given is not None:  # a variable that is None
        return call.replace(f"device={ast.unparse(given)}", f"device={name_of(home)}")
    inside = call[:-1].rstrip().rstrip(",")
    return f"{inside}{'' if inside.endswith('(') else ', '}device={name_of(home)})"


def _call_at(line: Line, names: Container[str]) -> tuple[ast.Call | None, str]:
    """The call at a line to a function of one of these names, and its source; the call may span several lines."""
    found = _call_in(line.text, names)
    if found is not None:
        return found, ast.get_source_segment(line.text, found) or ""
    try:
        tree = ast.parse("".join(linecache.getlines(line.file)))
    except (SyntaxError, ValueError):
        return None, ""
    calls = [each for each in ast.walk(tree) if isinstance(each, ast.Call) and _called(each) in names]
    here = [each for each in calls if each.lineno == line.number and not _is_numpys(each)]
    return (here[0], ast.unparse(here[0])) if here else (None, "")


def argument_of(line: Line, name: str) -> str:
    """The source of the first argument of the call at a line."""
    call, _ = _call_at(line, {name})
    return ast.unparse(call.args[0]) if call is not None and call.args else ""


def _call_in(text: str, names: Container[str]) -> ast.Call | None:
    """The call to a function of one of these names in a line of code."""
    return next(iter(_calls_in(text, names)), None)


def _calls_in(text: str, names: Container[str]) -> list[ast.Call]:
    for code in (text, f"{text}\n    pass", text.rstrip(",")):
        try:
            tree = ast.parse(code)
        except SyntaxError:
            continue
        calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
        return [node for node in calls if _called(node) in names and not _is_numpys(node)]
    return []


def _is_numpys(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) in ("np", "numpy", "jnp")


def _called(node: ast.Call) -> str:
    return getattr(node.func, "attr", getattr(node.func, "id", ""))


# ---------------------------------------------------------------- moved there by the step itself


def asked_for(stage: Any, place: torch.device, *, by_name: bool = False) -> Origin:
    """The origin of a tensor on a device that the line gives by name or by a variable."""
    line, own = users_line(), own_line()
    if own is not None and is_installed(line.file) and _NAMES_CPU.search(own.text):
        line, by_name = own, True  # a library follows the user's line
    return Origin(lambda _: _asked_for(place, line, by_name, stage.home), stage.root("asked", place, line))


def _asked_for(place: torch.device, line: Line, by_name: bool, home: torch.device) -> Provenance:
    if not by_name and _REMEMBERED.search(line.text):
        what = f"it is on {place}, the value of a device variable on this line"
        return Provenance("stale-device", what, _TAKE_THE_DEVICE, line)
    return Provenance(
        "hard-coded", f"it is on {place} because of a hard-coded device", _renamed(line.text, place, home), line
    )


def _renamed(text: str, place: torch.device, home: torch.device) -> str:
    """The line with the right device in place of the one that it names."""
    changed = text.partition("  #")[0].strip()
    if place.type == "cpu":
        changed = changed.replace(".cpu()", "")
    changed = re.sub(rf"""(["']){place.type}(:{place.index})?\1""", name_of(home), changed)
    return changed if changed != text else "use the device of the other tensors: device=x.device"


def brought_to_numpy(tensor: StandIn, frame: FrameType | None) -> str:
    """The expression that converts a device tensor, or all elements of its list, to numpy."""
    fetched = f"{'.detach()' if tensor.requires_grad else ''}.cpu().numpy()"
    found = _users_variable(tensor)
    if found is not None and isinstance(found.holder, (list, tuple)) and len(found.holder) > 1:
        return each_of(found.before, fetched)
    running, _ = Running(frame.f_code, frame.f_lasti).written() if frame is not None else (None, "")
    name = handed_to_numpy("" if frame is None else users_line().text)
    if not name and running is not None and _is_numpys(running) and len(running.args) == 1:
        name = ast.unparse(running.args[0])
    name = name or (found.name if found else "(...)")
    return f"{name}{fetched.removeprefix('.detach()') if name.endswith('.detach()') else fetched}"


def named_for_numpy(tensor: StandIn) -> str:
    """The name of a tensor passed to numpy, from the line or the user's variables."""
    return handed_to_numpy(users_line().text) or users_name(tensor) or "(...)"


def handed_to_numpy(text: str) -> str:
    """The expression that a line calls `.numpy()` on or passes to `np.from_dlpack`."""
    for code in (text, f"{text}\n    pass", text.rstrip(",")):
        try:
            tree = ast.parse(code)
        except SyntaxError:
            continue
        nodes = [*ast.walk(tree)]
        asked = [node.value for node in nodes if isinstance(node, ast.Attribute) and node.attr == "numpy"]
        calls = [node for node in nodes if isinstance(node, ast.Call) and _called(node) == "from_dlpack"]
        asked += [node.args[0] for node in calls if node.args]
        return ast.unparse(asked[0]) if len(asked) == 1 else ""
    return ""


def following(origin: Origin | None, other: Origin | None) -> Origin | None:
    """The origin of a tensor that was sent to the device of another, misplaced tensor: the other's."""
    if origin is None or other is None:
        return origin
    follows = Origin(lambda _: other.described(), other)
    follows.tensor = other.tensor
    return follows


def says_cpu(line: Line) -> bool:
    """Whether a line contains `.to("cpu")`."""
    return re.search(r"""\.to\(\s*(torch\.device\(\s*)?["']cpu["']""", line.text) is not None


def kept_on_cpu(origin: Origin, line: Line, home: torch.device) -> Origin:
    """The origin of a CPU tensor that was sent to the CPU again, by name."""
    there = _renamed(line.text.replace(".cpu()", f".to({name_of(home)})"), torch.device("cpu"), home)
    return Origin(
        lambda _: Provenance("hard-coded", "it is on cpu because of a hard-coded device", there, line), origin
    )


def sent_in_vain(origin: Origin | None, line: Line, home: torch.device) -> Origin | None:
    """The origin of a CPU tensor that was sent to the CPU again, through a variable with an outdated device."""
    own = own_line()
    if origin is not None and own is not None and is_installed(line.file) and _NAMES_CPU.search(own.text):
        return kept_on_cpu(origin, own, home)
    if origin is None or "cpu" in line.text or not _REMEMBERED.search(line.text):
        return origin

    def describe(_: Origin) -> Provenance:
        what = f"{origin.described().what}; {line} moves it to cpu, the value of a device variable"
        return Provenance("stale-device", what, _TAKE_THE_DEVICE, line)

    return Origin(describe, origin)


def thrown_away(origin: Origin | None, lines: list[Line], home: torch.device) -> Provenance:
    """The mistake of a discarded `.to()` result. `lines`: the user's lines that led to the call, innermost first."""
    what = "the result of .to() was not assigned; .to() does not change a tensor in place"
    tensor = origin.tensor() if origin is not None and origin.tensor is not None else None
    found = _users_variable(tensor)
    name = found.name if found else "x"
    is_in_a_tuple = found is not None and isinstance(found.holder, tuple)
    for line in lines:
        sent = _sent_by(line.text)
        if sent and not is_in_a_tuple and (name == "x" or name.startswith(sent)):  # else `sent` is a loop variable
            return Provenance("thrown-away", what, f"{sent} = {_statement(line.text)}", line)
    return Provenance("thrown-away", what, _sent(found, name, home), lines[0] if lines else None)


def _statement(text: str) -> str:
    """A statement without its trailing comment."""
    return ast.get_source_segment(text, ast.parse(text).body[0]) or text


def _sent_by(text: str) -> str:
    """The variable in a statement that discards the result of `.to`, such as `batch.to("cuda")` or a comprehension."""
    try:
        (statement,) = ast.parse(text).body
    except (SyntaxError, ValueError):
        return ""
    node: Any = statement.value if isinstance(statement, ast.Expr) else None
    if isinstance(node, (ast.DictComp, ast.ListComp)):
        node = node.generators[0].iter
    while isinstance(node, (ast.Call, ast.Attribute)) and not _is_place(node):
        node = node.func if isinstance(node, ast.Call) else node.value
    return ast.unparse(node) if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)) else ""


def _is_place(node: ast.AST) -> bool:
    """Whether a node is an attribute such as `self.x`, and not a method such as `.to`."""
    return isinstance(node, ast.Attribute) and node.attr not in ("to", "cuda", "items", "values", "type")


# ---------------------------------------------------------------- outside the given objects


def outsider(tensor: Tensor, home: torch.device) -> Origin:
    """The origin of a tensor from outside the given objects, described by what refers to it."""
    return Origin(lambda _: _outside(tensor, home))


def not_sent(name: str, owner: str, home: torch.device) -> Origin:
    """The origin of a tensor whose `.to()` result has another name. `owner`: the class whose attribute it is."""
    where = f"in {owner}: " if owner else ""
    remedy = f"{where}{name} = {name}.to({name_of(home)})" + ("" if owner else " before the step")
    return Origin(lambda _: Provenance("loss", f"{name} is on cpu: the result of .to() has another name", remedy))


def _outside(tensor: Tensor, home: torch.device) -> Provenance:
    for holder in gc.get_referrers(tensor):
        if isinstance(holder, tuple) and any(type(each) is types.FunctionType for each in gc.get_referrers(holder)):
            return Provenance(
                "closure",
                "it is a default argument of a function",
                "create it inside the function, with device=x.device",
            )
    name = users_name(tensor)
    if not any(_is_kept(holder) for holder in gc.get_referrers(tensor)):
        return Provenance(
            "input", f"{name or 'it'} was created on cpu", f"{name or 'x'} = {name or 'x'}.to({name_of(home)})"
        )
    remedy = f"create it on {name_of(home)}; or pass the object that holds it to tm.move and to tm.rehearse"
    if name:
        remedy = _before(f"{name} = {name}.to({name_of(home)})", name)
    return Provenance("loss", f"{name or 'it'} is not part of any given object", remedy)


def _before(sending: str, given: str) -> str:
    """The fix that moves an object before the step. `given`: the object to pass to tm.move instead."""
    when = "" if sending.startswith("create ") else " before the step"
    return f"{sending}{when}; or pass {given} to tm.move and to tm.rehearse"


def _is_kept(holder: object) -> bool:
    """Whether a container outlives the step, such as a module's variables or an object's attributes."""
    if type(holder) not in (dict, list, tuple):
        return False
    owners = gc.get_referrers(holder)
    return any(isinstance(each, (types.ModuleType, nn.Module)) or type(each) is dict for each in owners)


# ---------------------------------------------------------------- tensors of the moved objects


class Belongings:
    """The origins of the tensors of an inventory that stay on the CPU. Tensors with the same cause share a root.

    Attributes:
        data: names of the objects that a move does not include, such as a batch.
        outside: names of the objects that were not given.
        own: classes of the objects that move their contents in their own code, by name.
        replaced: ids of tensors that were put into a module after it was moved.
        sent_modules: ids of the modules that were moved.
    """

    def __init__(
        self,
        inventory: Inventory,
        roots: Mapping[str, Any],
        data: set[str],
        outside: set[str],
        own: Mapping[str, str],
        replaced: set[int],
        sent_modules: Container[int],
        home: torch.device,
    ) -> None:
        self.inventory, self.roots, self.data, self.outside, self.home = inventory, roots, data, outside, home
        self.own, self.replaced, self.sent_modules = own, replaced, sent_modules
        self._shared: dict[Any, Origin] = {}

    def origin_of(self, path: Path, role: str, tensor: Tensor) -> Origin:
        root = next(path.steps()).what
        if root in self.data:
            value = self.roots.get(root)
            shared = self._shared.setdefault(root, bare_root()) if moves_itself(value) else None
            return given(path, value, tensor, self.home, shared)
        group: Any = None  # a root for each tensor
        if root in self.own:
            group = (root, *[step.what for step in path.steps()][1:2])  # each attribute is moved by its own statement
        elif root in self.outside:
            group = root
        elif role == "state":
            group = (root, role)
        elif role in ("parameter", "buffer"):
            group = id(path.before)  # the module that registers it
        shared = None if group is None else self._shared.setdefault(group, bare_root())
        if id(tensor) in self.replaced and path.before is not None:
            return Origin(lambda _: self._replaced(path), shared)
        return Origin(lambda _: self._described(path, role), shared)

    def _replaced(self, path: Path) -> Provenance:
        kind = self.own.get(next(path.steps()).what)
        part, module = (re.sub(r"^\w+", "self" if kind else r"\g<0>", str(each)) for each in (path, path.before))
        what = f"{part} is on cpu: it was put into the module after the module was moved"
        where = f"in {kind}: " if kind else ""
        return Provenance("loss", what, f"{where}{module} = {module}.to({name_of(self.home)})")

    def _described(self, path: Path, role: str) -> Provenance:
        steps = list(path.steps())
        shown = readable(path, self.roots)
        kind, what = self._kind(path, role, steps)
        holder = self._holder(path)
        if steps[0].what in self.own and not (kind == "attribute" and id(holder) in self.sent_modules):
            attribute = _of_self(str(self._sent_with(path, role, steps[1:])), steps[0].what)
            sending = _of_self(self._sending(path, role, steps[1:]), steps[0].what)
            remedy = f"in {self.own[steps[0].what]}: {sending}"
            own = f"{attribute} of {self.own[steps[0].what]}" if steps[0].what == "step" else shown
            return Provenance("loss", f"{own} is on cpu: no code of its class moves it", remedy)
        if path.how is ATTRIBUTE and not isinstance(holder, nn.Module) and moves_itself(holder):
            remedy = _kept_in_its_to(str(path), holder, self.home)
            if remedy:
                return Provenance("loss", f"{shown} is on cpu: {type(holder).__name__}.to does not move it", remedy)
        if steps[0].what in self.outside:
            if any(step.how is REFERENT for step in steps):
                name = steps[0].what
                return Provenance("cache", f"it is in the cache of {name}, on cpu", f"{name}.cache_clear()")
            if role == "state":
                remedy = (
                    f"load the state after the model was moved; or tm.move(model, optimizer, to={name_of(self.home)})"
                )
                return Provenance("optimizer", f"{shown} is on cpu: Module.to does not move optimizer state", remedy)
            is_partial = isinstance(self.roots.get(steps[0].what), functools.partial)
            kind = "cache" if _is_cached(steps) else "closure" if is_partial else "loss"
            remedy = _before(self._sending(path, role, steps), steps[0].what)
            return Provenance(kind, f"{shown} is on cpu: it is not part of any given object", remedy)
        if role == "state":
            what = f"{shown} is on cpu: Module.to does not move optimizer state"
            return Provenance("optimizer", what, f"tm.move(model, optimizer, to={name_of(self.home)})")
        if kind == "container" and path.how is ATTRIBUTE and role not in ("parameter", "buffer") and holder is not None:
            return self._of_plain_object(holder, path, shown)
        remedy = _remedy(kind, path)
        if kind == "closure" and shown.isidentifier():
            remedy = f"{shown}.to({name_of(self.home)}) where the function reads it; or tm.move, which moves it"
        return Provenance(kind, f"{shown} is on cpu: {what}", remedy)

    def _of_plain_object(self, holder: Any, path: Path, shown: str) -> Provenance:
        """The origin of an attribute of an object that is no module; the kind says whether a module holds it."""
        kind, own = type(holder).__name__, f"self.{path.what}"
        is_in_module = any(isinstance(_fetched(each, self.roots), nn.Module) for each in path.steps())
        what = f"{shown} is on cpu: an attribute of {kind}, which is no module: Module.to does not look into it"
        remedy = f"in {kind}: {own} = {own}.to({name_of(self.home)}); or tm.move, which finds it"
        return Provenance("container" if is_in_module else "loss", what, remedy)

    def _sending(self, path: Path, role: str, steps: list[Path]) -> str:
        """The assignment that moves a tensor, with its module or with all elements of its list or dict."""
        path = self._sent_with(path, role, steps)
        holder, place = _fetched(path.before, self.roots), name_of(self.home)
        if isinstance(holder, tuple):
            return f"create {path} on {place}"
        members = [*holder.values()] if isinstance(holder, dict) else holder if isinstance(holder, list) else []
        if path.how is ITEM and len(members) > 1 and all(isinstance(each, Tensor) for each in members):
            return _all_sent(str(path.before), holder, self.home)
        return f"{path} = {path}.to({place})"

    def _sent_with(self, path: Path, role: str, steps: list[Path]) -> Path:
        """The path of the outermost object with a `to` for parameters and buffers; else of the tensor itself."""
        if role not in ("parameter", "buffer"):
            return path
        return next((each for each in steps if hasattr(_fetched(each, self.roots), "to")), path)

    def _holder(self, path: Path) -> Any:
        return {id(path): holder for holder, path in self.inventory.holders.values()}.get(id(path.before))

    def _kind(self, path: Path, role: str, steps: list[Path]) -> tuple[str, str]:
        names = [step.what for step in steps if type(step.what) is str]
        if _is_cached(steps):
            return "cache", "it was cached there"
        is_held = {"__defaults__", "__kwdefaults__", "keywords", "args"} & {*names}
        holder = self._holder(path)
        is_attribute = isinstance(holder, nn.Module) and path.how is ATTRIBUTE
        is_closed = is_held or any(step.how is CELL for step in steps)
        if is_closed and not (is_attribute and id(holder) in self.sent_modules):
            return "closure", "a function holds it, and Module.to does not search functions"
        if role in ("parameter", "buffer"):
            return "container", "its module is in a list or dict, which Module.to does not search"
        if is_attribute:
            return "attribute", "a plain attribute, not a buffer"
        return "container", "in a list or dict, which Module.to does not search"


def _of_self(statement: str, root: Any) -> str:
    """A statement as written in a method: `self.x` for `trainer.x`."""
    return re.sub(rf"\b{re.escape(str(root))}(?=[.\[])", "self", statement)


def _is_cached(steps: list[Path]) -> bool:
    named = (step.what.lower() for step in steps if type(step.what) is str)
    return any(step.how is REFERENT for step in steps) or any(map(_CACHES.search, named))


def _remedy(kind: str, path: Path) -> str:
    if kind == "attribute":
        return _registered(str(path.what))
    return {
        "container": _HELD_IN_A_CONTAINER,
        "cache": "clear the cache when the model moves, or add the device to its key; or tm.move, which moves it",
        "closure": "call .to(x.device) where the function reads it; or tm.move, which moves it",
    }[kind]


def _registered(name: str) -> str:
    return f'self.register_buffer("{name}", ..., persistent=False)'


def readable(path: Path, roots: Mapping[str, Any]) -> str:
    """A path for display. It starts at the last function variable on it, if any, by that variable's name."""
    steps = list(path.steps())
    for index in reversed(range(1, len(steps))):
        name = _variable_of(steps[index], roots)
        if name:
            shown = root_path(name)
            for step in steps[index + 1 :]:
                shown = Path(shown, step.how, step.what)
            return str(shown)
    return str(path)


def _variable_of(step: Path, roots: Mapping[str, Any]) -> str:
    """The name of the closure variable, or of the parameter with a default, that a step of a path leads to."""
    before = step.before
    if step.how is CELL:
        function = _fetched(before, roots)
        return str(function.__code__.co_freevars[step.what]) if isinstance(function, types.FunctionType) else ""
    kept = None if before is None else before.what
    function = _fetched(before.before, roots) if kept in ("__defaults__", "__kwdefaults__") and before else None
    if not isinstance(function, types.FunctionType):
        return ""
    if kept == "__kwdefaults__":
        return str(step.what)
    positional = function.__code__.co_varnames[: function.__code__.co_argcount]
    return str(positional[len(positional) - len(function.__defaults__ or ()) + step.what])


def _fetched(path: Path | None, roots: Mapping[str, Any]) -> Any:
    try:
        value = None if path is None else path.fetch(roots)
    except Exception:  # the step changed the objects on the path
        return None
    return value.func if isinstance(value, functools.partial) else value
