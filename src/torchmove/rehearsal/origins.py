"""What to say of a tensor that is on the wrong device: which kind it is of, what it is to the user, and the remedy.

Each function here makes an Origin. Its words are put together when a problem is reported, from the code, the variables
and the paths that lead to the tensor at that moment.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import gc
import inspect
import re
import types
import weakref
from collections.abc import Callable, Container, Iterator, Mapping
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from torchmove import _paths
from torchmove._records import Inventory
from torchmove.rehearsal.provenance import (
    Line,
    Origin,
    Provenance,
    module_being_built,
    users_frames,
    users_line,
)

_GIVE = "give {} to the rehearsal, and to tm.move, too; or move it before"
_TAKE_THE_DEVICE = "take the device of a parameter: next(model.parameters()).device"
_CLOSURE = "take the tensor as an argument, or send it there inside; or tm.move, which finds it"
# A device by a variable or an attribute, and not by its name.
_REMEMBERED = re.compile(r"(\bdevice\s*=\s*|\.to\(\s*)(?!torch\.device\()[A-Za-z_][\w.]*")
_HELD_IN_A_CONTAINER = "nn.ParameterList, nn.ModuleList or buffers; or tm.move, which finds it"
_MOST_MEMBERS = 64
_CONVERTERS = {"from_numpy", "Tensor", "frombuffer"} | {
    f"{kind}Tensor" for kind in ("Float", "Double", "Half", "BFloat16", "Byte", "Char", "Short", "Int", "Long", "Bool")
}


def bare_root() -> Origin:
    """A root that has no words: the origins below it have."""
    return Origin(_unsaid)


def _unsaid(_: Origin) -> Provenance:
    raise AssertionError("the origins below a shared one have the words")


def name_of(device: torch.device) -> str:
    """As a user would write it."""
    return f'"{device}"' if device.index else f'"{device.type}"'


# ---------------------------------------------------------------- data


def given(path: _paths.Path, value: Any, tensor: Tensor, device: torch.device, root: Origin | None) -> Origin:
    """Of a tensor of a batch: `value` is the object that the step is given."""
    return _input(tensor, device, lambda: (_root_name(path), str(path)), value, root=root)


def delivered(tensor: Tensor, device: torch.device) -> Origin:
    """Of a tensor that a loader delivers."""
    return _input(tensor, device, lambda: ("", ""), None, "the loader delivers it on cpu")


def loaded_on_cpu(home: torch.device) -> Origin:
    """Of a tensor that torch.load or safetensors has put there."""
    line = users_line()
    call = re.search(r"\b(?:\w+\.)*(load_file|safe_open)(?=\()", line.text)
    remedy = f"{call[0]}(..., device={name_of(home)})" if call else f"torch.load(..., map_location={name_of(home)})"
    return Origin(lambda _: Provenance("input", "it was loaded on cpu", remedy, line))


def _root_name(path: _paths.Path) -> str:
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
        name = users_name(origin.tensor() if origin.tensor else None) or path
        if value is not None and moves_itself(value):
            return Provenance("input", f"{name} is on cpu", f"{root} = {root}.to({name_of(device)})")
        said = what or f"{name} is on cpu"
        return Provenance("input", said, f"{name or 'x'} = {name or 'x'}.to({name_of(device)})")

    origin = Origin(describe, root)
    origin.tensor = weakref.ref(tensor)
    return origin


def moves_itself(value: Any) -> bool:
    """An object with a `to` of its own: a graph batch, the encoding of a tokenizer."""
    return not isinstance(value, Tensor) and callable(getattr(type(value), "to", None))


def users_name(tensor: Any) -> str:
    """What the user's code calls a tensor: a variable, or an element of one. Looked for from the step inward."""
    if tensor is None:
        return ""
    for frame in users_frames():
        for name, value in _variables(frame).items():
            end = _within(value, tensor)
            if end is not None and name.isidentifier():
                return f"{name}{end}"
    return ""


def _variables(frame: FrameType) -> dict[str, Any]:
    """Before Python 3.13 a function's locals are a copy that stays with its frame, and would keep tensors alive."""
    scope = frame.f_locals
    found = dict(scope)
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED and type(scope) is dict:
        scope.clear()
    return found


def _within(value: Any, tensor: Any) -> str | None:
    if value is tensor:
        return ""
    members: Iterator[tuple[str, Any]] = iter(())
    if isinstance(value, Mapping) and len(value) <= _MOST_MEMBERS:
        members = ((f'["{key}"]' if type(key) is str else f"[{key!r}]", value[key]) for key in value)
    elif isinstance(value, (list, tuple)) and len(value) <= _MOST_MEMBERS:
        members = ((f"[{index}]", each) for index, each in enumerate(value))
    elif dataclasses.is_dataclass(value) or isinstance(value, types.SimpleNamespace):
        members = ((f".{name}", each) for name, each in getattr(value, "__dict__", {}).items())
    return next((end for end, each in members if each is tensor), None)


# ---------------------------------------------------------------- made in the step


def factory(stage: Any, name: str, line: Line) -> Origin:
    """Of a tensor that was made in the step, and nobody said where; a module that is being built has one origin."""
    home = stage.home
    module, outside = module_being_built()
    if module is None:
        return Origin(lambda _: _made(name, line, home), stage.root("factory", line, name))
    stage.built[id(module)] = module  # it lives as long as its id is a key
    return Origin(lambda origin: _built(module, origin, outside, home), stage.root("built", id(module)))


def _made(name: str, line: Line, home: torch.device) -> Provenance:
    converter = None if _call_in(line.text, {name}) else _call_in(line.text, _CONVERTERS)
    if converter is not None:  # torch.FloatTensor(2, 3) comes by as torch.empty
        return _converted(line, home)
    what = f"made on cpu by torch.{name} without device="
    return Provenance("factory", what, _with_device(line.text, name, home), line)


def _built(module: nn.Module, origin: Origin, line: Line, home: torch.device) -> Provenance:
    kind = type(module).__name__
    tensor = origin.tensor() if origin.tensor is not None else None
    contained = _contained_module(module, tensor)
    if contained:
        what = f"{kind}.{contained} is on cpu: a module in a container that Module.to does not look into"
        return Provenance("container", what, "nn.ModuleList or nn.ModuleDict; or tm.move, which finds it")
    if any(each.device == home for each in module.parameters()):  # it was moved, and this stayed
        name, end = _attribute_of(module, tensor)
        if end or not name:
            it = f"{kind}.{name}{end}" if name else f"a tensor of {kind}"
            what = f"{it} is on cpu: in a container that Module.to does not look into"
            return Provenance("container", what, _HELD_IN_A_CONTAINER)
        what = f"{kind}.{name} is on cpu: a plain attribute, not a buffer"
        return Provenance("attribute", what, _registered(name.rpartition(".")[2]))
    what = f"the module {kind} was built on cpu in the step and not moved"
    return Provenance("factory", what, _module_moved(line.text, home), line)


def _contained_module(module: nn.Module, tensor: Any) -> str:
    """The attribute in whose list or dict a module is that has this tensor."""
    storage = _storage_of(tensor)
    for path, each in module.named_modules() if storage is not None else ():
        for name, value in vars(each).items():
            if not name.startswith("_") and isinstance(value, (list, tuple, dict)):
                members = value.items() if isinstance(value, dict) else enumerate(value)
                inside = ((key, one) for key, one in members if isinstance(one, nn.Module))
                for key, one in inside:
                    if any(_storage_of(its) == storage for its in (*one.parameters(), *one.buffers())):
                        return ".".join(filter(None, (path, name))) + f"[{key!r}]"
    return ""


def _storage_of(tensor: Any) -> int | None:
    """Views share it: a layer computes with the transpose of its weight."""
    behind = getattr(tensor, "_behind", None)
    return None if behind is None else behind.untyped_storage()._cdata


def _attribute_of(module: nn.Module, tensor: Any) -> tuple[str, str]:
    """The attribute that holds a tensor, and where in it: of a module or one inside of it."""
    if tensor is None:
        return "", ""
    for path, each in module.named_modules():
        for name, value in vars(each).items():
            end = None if name.startswith("_") and isinstance(value, dict) else _within(value, tensor)
            if end is not None:
                return ".".join(filter(None, (path, name))), end
    return "", ""


def _module_moved(text: str, home: torch.device) -> str:
    """The line, or the variable in it, with the module sent to the device."""
    try:
        statement = ast.parse(text).body[0]
    except (SyntaxError, IndexError):
        return f"module = module.to({name_of(home)})"
    value = getattr(statement, "value", None)
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Call):  # built and called in one
        return f"{ast.unparse(value.func)}.to({name_of(home)})"
    name = ast.unparse(statement.targets[0]) if isinstance(statement, ast.Assign) else "module"
    return f"{name} = {name}.to({name_of(home)})"


def converted(stage: Any) -> Origin:
    """Of a tensor that was made from an array or a list by a function of torch's that takes no device."""
    line, home = users_line(), stage.home

    return Origin(lambda _: _converted(line, home), stage.root("converted", line))


def _converted(line: Line, home: torch.device) -> Provenance:
    found = _call_in(line.text, _CONVERTERS)
    call = None if found is None else ast.get_source_segment(line.text, found)
    name = ast.unparse(found.func) if found is not None else "torch from values"
    return Provenance("factory", f"made on cpu by {name}", f"{call or 'x'}.to({name_of(home)})", line)


def _with_device(text: str, name: str, home: torch.device) -> str:
    """The call as it is written, with the device."""
    found = _call_in(text, {name})
    if found is None:
        return f"torch.{name}(..., device={name_of(home)})"
    call = ast.get_source_segment(text, found) or ""
    given = next((each.value for each in found.keywords if each.arg == "device"), None)
    if given is not None:  # a variable that says nothing
        return call.replace(f"device={ast.unparse(given)}", f"device={name_of(home)}")
    inside = call[:-1].rstrip().rstrip(",")
    return f"{inside}{'' if inside.endswith('(') else ', '}device={name_of(home)})"


def _call_in(text: str, names: Container[str]) -> ast.Call | None:
    """The call of a function of one of these names in a line of code."""
    for code in (text, f"{text}\n    pass", text.rstrip(",")):
        try:
            tree = ast.parse(code)
        except SyntaxError:
            continue
        calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
        return next((node for node in calls if _called(node) in names and not _is_numpys(node)), None)
    return None


def _is_numpys(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) in ("np", "numpy", "jnp")


def _called(node: ast.Call) -> str:
    return getattr(node.func, "attr", getattr(node.func, "id", ""))


# ---------------------------------------------------------------- put there by the step itself


def asked_for(stage: Any, place: torch.device, *, by_name: bool = False) -> Origin:
    """Of a tensor that was sent or made at a place that the line names or remembers."""
    line = users_line()
    return Origin(lambda _: _asked_for(place, line, by_name), stage.root("asked", place, line))


def _asked_for(place: torch.device, line: Line, by_name: bool) -> Provenance:
    if not by_name and _REMEMBERED.search(line.text):
        what = f"it was put on {place}, the device that this line remembers"
        return Provenance("stale-device", what, _TAKE_THE_DEVICE, line)
    return Provenance("hard-coded", f"it was put on {place} by name", "use the device of the other tensors", line)


def following(origin: Origin | None, other: Origin | None) -> Origin | None:
    """Of a tensor that was sent to where another is: what is wrong is wrong with the other."""
    if origin is None or other is None:
        return origin
    follows = Origin(lambda _: other.described(), other)
    follows.tensor = other.tensor
    return follows


def sent_in_vain(origin: Origin | None, line: Line) -> Origin | None:
    """Of a tensor that was on the CPU and was sent there, by a device that the line remembers."""
    if origin is None or "cpu" in line.text or not _REMEMBERED.search(line.text):
        return origin

    def describe(_: Origin) -> Provenance:
        what = f"{origin.described().what}; {line} sends it to cpu, the device that it remembers"
        return Provenance("stale-device", what, _TAKE_THE_DEVICE, line)

    return Origin(describe, origin)


def thrown_away(origin: Origin | None, lines: list[Line], home: torch.device) -> Provenance:
    """`lines`: the user's lines that led to the sending, inward first."""
    what = "the result of .to() was thrown away, and .to() changes nothing in place"
    tensor = origin.tensor() if origin is not None and origin.tensor is not None else None
    name = users_name(tensor) or "x"
    for line in lines:
        sent = _sent_by(line.text)
        if sent and (name == "x" or name.startswith(sent)):  # else `sent` is the variable of a loop
            return Provenance("thrown-away", what, f"{sent} = {_without_comment(line.text)}", line)
    return Provenance("thrown-away", what, f"{name} = {name}.to({name_of(home)})", lines[0] if lines else None)


def _without_comment(text: str) -> str:
    return ast.unparse(ast.parse(text))


def _sent_by(text: str) -> str:
    """The variable that a statement sends and does not keep: `batch.to("cuda")`, `{... for ... in batch.items()}`."""
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
    """self.x, but not the method that is called on something."""
    return isinstance(node, ast.Attribute) and node.attr not in ("to", "cuda", "items", "values", "type")


# ---------------------------------------------------------------- none of the given objects'


def outsider(tensor: Tensor, home: torch.device) -> Origin:
    """Of a tensor that is none of the given objects'. What holds it tells what it is."""
    return Origin(lambda _: _outside(tensor, home))


def _outside(tensor: Tensor, home: torch.device) -> Provenance:
    for holder in gc.get_referrers(tensor):
        if isinstance(holder, tuple) and any(type(each) is types.FunctionType for each in gc.get_referrers(holder)):
            return Provenance(
                "closure", "a function has it as a default", "make it inside, on the device of the others"
            )
    name = users_name(tensor)
    if not any(_is_kept(holder) for holder in gc.get_referrers(tensor)):
        return Provenance(
            "input", f"{name or 'it'} was made on cpu", f"{name or 'x'} = {name or 'x'}.to({name_of(home)})"
        )
    return Provenance("loss", f"{name or 'it'} belongs to none of the given objects", _GIVE.format(name or "it"))


def _is_kept(holder: object) -> bool:
    """Is it something that lasts longer than the step: the variables of a module, the attributes of an object?"""
    if type(holder) not in (dict, list, tuple):
        return False
    owners = gc.get_referrers(holder)
    return any(isinstance(each, (types.ModuleType, nn.Module)) or type(each) is dict for each in owners)


# ---------------------------------------------------------------- of the objects that are moved


class Belongings:
    """The origins of the tensors of an inventory that stay on the CPU. What is forgotten together has one root.

    `data`: the names of the objects that no move takes along, such as a batch; `outside`: of those not given.
    """

    def __init__(
        self, inventory: Inventory, roots: Mapping[str, Any], data: set[str], outside: set[str], home: torch.device
    ) -> None:
        self.inventory, self.roots, self.data, self.outside, self.home = inventory, roots, data, outside, home
        self._shared: dict[Any, Origin] = {}

    def origin_of(self, path: _paths.Path, role: str, tensor: Tensor) -> Origin:
        root = next(path.steps()).what
        if root in self.data:
            value = self.roots.get(root)
            shared = self._shared.setdefault(root, bare_root()) if moves_itself(value) else None
            return given(path, value, tensor, self.home, shared)
        group: Any = None  # each by itself
        if root in self.outside:
            group = root
        elif role == "state":
            group = (root, role)
        elif role in ("parameter", "buffer"):
            group = id(path.before)  # the module that it is registered with
        shared = None if group is None else self._shared.setdefault(group, bare_root())
        return Origin(lambda _: self._described(path, role), shared)

    def _described(self, path: _paths.Path, role: str) -> Provenance:
        steps = list(path.steps())
        shown = readable(path, self.roots)
        if steps[0].what in self.outside:
            kind = "cache" if _is_cached(steps) else "loss"
            return Provenance(
                kind, f"{shown} is on cpu: it belongs to none of the given objects", _GIVE.format(steps[0].what)
            )
        if role == "state":
            what = f"{shown} is on cpu: Module.to does not see optimizers"
            return Provenance("optimizer", what, f"tm.move(model, optimizer, to={name_of(self.home)})")
        kind, what = self._kind(path, role, steps)
        return Provenance(kind, f"{shown} is on cpu: {what}", _remedy(kind, path))

    def _kind(self, path: _paths.Path, role: str, steps: list[_paths.Path]) -> tuple[str, str]:
        names = [step.what for step in steps if type(step.what) is str]
        if _is_cached(steps):
            return "cache", "it was cached there"
        is_held = {"__defaults__", "__kwdefaults__", "keywords", "args"} & {*names}
        if is_held or any(step.how is _paths.CELL for step in steps):
            return "closure", "a function holds it, and Module.to does not look there"
        if role in ("parameter", "buffer"):
            return "container", "its module is in a container that Module.to does not look into"
        holder = {id(path): holder for holder, path in self.inventory.holders.values()}.get(id(path.before))
        if isinstance(holder, nn.Module) and path.how is _paths.ATTRIBUTE:
            return "attribute", "a plain attribute, not a buffer"
        return "container", "in a container that Module.to does not look into"


def _is_cached(steps: list[_paths.Path]) -> bool:
    named = (step.what.lower() for step in steps if type(step.what) is str)
    return any(step.how is _paths.REFERENT for step in steps) or any(
        "cache" in name or "memo" in name for name in named
    )


def _remedy(kind: str, path: _paths.Path) -> str:
    if kind == "attribute":
        return _registered(str(path.what))
    return {
        "container": _HELD_IN_A_CONTAINER,
        "cache": "clear the cache when the model moves, or key it by device; or tm.move, which finds it",
        "closure": _CLOSURE,
    }[kind]


def _registered(name: str) -> str:
    return f'self.register_buffer("{name}", ..., persistent=False)'


def readable(path: _paths.Path, roots: Mapping[str, Any]) -> str:
    """A path as it prints; from the last variable of a closure on, by that variable's own name."""
    steps = list(path.steps())
    last = max((index for index, step in enumerate(steps) if step.how is _paths.CELL), default=None)
    function = None if last is None else _fetched(steps[last].before, roots)
    if last is None or not isinstance(function, types.FunctionType):
        return str(path)
    shown = _paths.root(function.__code__.co_freevars[steps[last].what])
    for step in steps[last + 1 :]:
        shown = _paths.Path(shown, step.how, step.what)
    return str(shown)


def _fetched(path: _paths.Path | None, roots: Mapping[str, Any]) -> Any:
    try:
        value = None if path is None else path.fetch(roots)
    except Exception:  # the step has changed what was there
        return None
    return value.func if isinstance(value, functools.partial) else value
