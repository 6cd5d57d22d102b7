"""Overrides of torch functions on a simulated device, and `Guess`, the number that stands for an unknown `item()`.

A torch function mode handles the calls that the dispatcher does not see: transfers between devices, factory functions,
reads of values, and C++ code that reads a tensor's device or memory directly.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple, NoReturn
from unittest.mock import patch

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from torchmove.internals.simulation import (
    SOBOL_ENGINE,
    default_device_context,
    device_constructors,
    pad_packed_sequence,
    parse_to,
    unravel_index,
)
from torchmove.internals.simulation import run_backward as engine_run_backward
from torchmove.rehearsing.device import CannotGoOn, Made, SimulatedDevice, outside_simulation
from torchmove.rehearsing.operators import apart
from torchmove.rehearsing.origins import (
    asked_for,
    brought_to_numpy,
    factory,
    following,
    kept_on_cpu,
    loaded_on_cpu,
    named_for_numpy,
    says_cpu,
    sent_in_vain,
)
from torchmove.rehearsing.provenance import Origin, called_from, users_frame, users_line, users_lines
from torchmove.rehearsing.tensors import CPU, Sent, StandIn, leaves, mapped, place_of

_TRAINS = 6  # the index of the argument `train` of torch.lstm and the others; one more for a packed sequence
_BY_CUDNN = "call .train() of the RNN before; or run it under torch.backends.cudnn.flags(enabled=False)"


class Guess(float):
    """The result of `item()` when the value is not known: arithmetic treats it as 1.0, and branching on it raises.

    One rather than zero, so that its reciprocal and its logarithm exist.
    """

    def __new__(cls, value: float = 1.0) -> Guess:
        return super().__new__(cls, value)

    def _decide(self, *_: object) -> NoReturn:
        raise CannotGoOn("this branch depends on a value that shape-only mode does not compute")

    __bool__ = __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = _decide
    __int__ = __round__ = __floor__ = __ceil__ = __trunc__ = _decide
    __hash__ = float.__hash__


def _calculating(name: str) -> Callable[..., Any]:
    calculate = getattr(float, name)

    def calculated(self: Guess, *others: Any) -> Any:
        try:
            found = calculate(float(self), *map(_plain, others))
        except ArithmeticError:  # a division by zero that the real number may not cause
            return Guess()
        return Guess(found) if type(found) is float else found

    return calculated


def _plain(each: Any) -> Any:
    return float(each) if isinstance(each, Guess) else each


_BINARY = ("add", "sub", "mul", "truediv", "pow", "mod", "floordiv")
for _method in (*_BINARY, *(f"r{each}" for each in _BINARY), "neg", "pos", "abs"):
    setattr(Guess, f"__{_method}__", _calculating(f"__{_method}__"))


class Call(NamedTuple):
    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def done(self) -> Any:
        """Run the function with any device= replaced by the CPU, and without pinning, which needs an accelerator."""
        kwargs = {**self.kwargs, "pin_memory": False} if self.kwargs.get("pin_memory") else self.kwargs
        given = kwargs.get("device") is not None or self.func in _CONSTRUCTORS
        return self.func(*self.args, **({**kwargs, "device": CPU} if given else kwargs))


class _Making:
    """The device and the origin of the tensors that a call creates, computed when it creates the first one."""

    __slots__ = ("before", "call", "disguise", "found")

    def __init__(self, disguise: FunctionOverrides, call: Call) -> None:
        self.disguise, self.call, self.before = disguise, call, disguise.stage.now.making
        self.found: Made | None = None

    def __call__(self) -> Made:
        if self.found is None:
            self.found = self.disguise.made_by(self.call) or (self.before() if self.before else Made(CPU, None))
        return self.found


class FunctionOverrides(TorchFunctionMode):
    """Runs the step's torch function calls as the simulated device would."""

    def __init__(self, stage: SimulatedDevice) -> None:
        super().__init__()
        self.stage = stage

    def __torch_function__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        stage = self.stage
        if not stage.goes_on():
            return func(*args, **(kwargs or {}))
        if _has_outsiders(args, stage) or (kwargs and _has_outsiders(kwargs.values(), stage)):
            args, kwargs = mapped(stage.admit, (args, kwargs or {}))
        call = Call(func, args, kwargs or {})
        now = stage.now
        before, now.making = now.making, _Making(self, call)
        if kwargs and isinstance(kwargs.get("generator"), torch.Generator):
            now.generator = kwargs["generator"]
        try:
            act = _ACTS.get(func)
            if act is not None:
                return act(self, call)
            if func in _CONSTRUCTORS:
                return self.constructed(call)
            return call.done() if kwargs else func(*args)
        finally:
            now.making, now.generator = before, None

    def constructed(self, call: Call) -> Any:
        made = self.stage.adopt(call.done())
        if call.kwargs.get("pin_memory") and type(made) is StandIn and made._place is CPU:
            self.stage.pin(made)
        return made

    def made_by(self, call: Call) -> Made | None:
        device = call.kwargs.get("device")
        if device is not None:
            place = self.place(device)
            return Made(place, None if place is self.stage.home else self.asked_for(device))
        places = [each._place for each in leaves(call[1:]) if isinstance(each, StandIn)]
        if call.func in _CONSTRUCTORS and not (places and _name(call.func).startswith("sparse")):
            place = self.default_place()
            return Made(
                place, None if place is self.stage.home else factory(self.stage, _name(call.func), users_line())
            )
        if not places:
            return None
        place = next((place for place in places if place is not CPU), CPU)
        origins = (each._origin for each in leaves(call[1:]) if isinstance(each, StandIn))
        return Made(place, None if place is self.stage.home else next(filter(None, origins), None))

    def asked_for(self, device: Any) -> Origin:
        """The origin of a tensor created on `device` on request."""
        _, origin = self.stage.cpus.get(id(device), (None, None))
        return origin or asked_for(self.stage, self.place(device))

    def default_place(self) -> torch.device:
        """The default device. `torch.get_default_device` would create a tensor there to find out."""
        context = default_device_context.__dict__.get("device_context")
        if context is self.stage.given_context and self.stage.default_device is not None:
            return self.stage.default_device
        return self.stage.default_type or CPU if context is None else self.place(context.device)

    def place(self, device: Any) -> torch.device:
        if isinstance(device, torch.device):
            return place_of(device)
        with self.torchs_words():
            named = torch.device(self.stage.home.type, device) if isinstance(device, int) else torch.device(device)
        return place_of(named)

    @contextmanager
    def torchs_words(self) -> Iterator[None]:
        """Report errors of torch's own argument parsing as errors of the step."""
        try:
            yield
        except (RuntimeError, TypeError) as error:
            self.stage.refuse(error)

    # ------------------------------------------------------------ transfers between devices

    def to(self, call: Call) -> Tensor:
        tensor, *rest = call.args
        kwargs = dict(call.kwargs)
        copy, other = kwargs.pop("copy", False), kwargs.pop("tensor", None)
        if [type(each) for each in rest[-2:]] == [bool, bool]:
            copy = rest.pop()
        if rest and isinstance(rest[0], Tensor):
            other = rest[0]
        if other is not None:
            device = other.device
            return self.send(tensor, device, other.dtype, copy=copy, asked=device)
        device, dtype, _, memory_format = self.read_to(rest, kwargs)
        place = None if device is None else self.place(device)
        asked = next((each for each in (*rest, kwargs.get("device")) if isinstance(each, torch.device)), None)
        return self.send(tensor, place, dtype, copy=copy, memory_format=memory_format, asked=asked)

    def read_to(self, rest: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Parse arguments of `to` with torch's parser, which rejects device indices if there is no accelerator."""
        rest = [self.place(each) if type(each) is int else each for each in rest]
        if type(kwargs.get("device")) is int:
            kwargs = {**kwargs, "device": self.place(kwargs["device"])}
        with self.torchs_words():
            return parse_to(*rest, **kwargs)

    def cuda(self, call: Call) -> Tensor:
        device = call.args[1] if len(call.args) > 1 else call.kwargs.get("device")
        return self.send(call.args[0], self.place(0 if device is None else device))

    def type_as(self, call: Call) -> Tensor:
        tensor, other = call.args
        device = other.device
        return self.send(tensor, device, other.dtype, asked=device)

    def type(self, call: Call) -> Any:
        """`Tensor.type`. A type such as torch.cuda.FloatTensor names a device too."""
        tensor = call.args[0]
        kind = call.args[1] if len(call.args) > 1 else call.kwargs.get("dtype")
        if kind is None:
            name = str(call.func(tensor))
            return name.replace("torch.", f"torch.{tensor._place.type}.") if tensor._place is not CPU else name
        if isinstance(kind, torch.dtype):
            return self.send(tensor, None, kind)
        dtype: Any = getattr(kind, "dtype", None)
        place = CPU
        if kind is Tensor:
            dtype = torch.get_default_dtype()
        if hasattr(kind, "simulated_on"):
            place = kind.simulated_on  # type: ignore[union-attr]
        elif isinstance(kind, str):
            module, _, name = kind.rpartition(".")
            dtype = getattr(torch, name).dtype
            place = CPU if module == "torch" else self.place(module.removeprefix("torch."))
        return self.send(tensor, place, dtype)

    def as_tensor(self, call: Call) -> Any:
        """`torch.as_tensor`: returns the tensor itself unless another device or dtype is requested."""
        data = call.args[0] if call.args else call.kwargs.get("data", call.kwargs.get("obj"))
        if torch.is_storage(data):
            return self.of_storage(call)
        if not isinstance(data, StandIn):
            return self.of_values(call)
        device = call.kwargs.get("device", call.args[2] if len(call.args) > 2 else None)
        dtype = call.kwargs.get("dtype", call.args[1] if len(call.args) > 1 else None)
        place = None if device is None else self.place(device)
        return self.send(data, place, dtype, copy=bool(call.kwargs.get("copy")), asked=device)

    def of_storage(self, call: Call) -> Any:
        """A tensor over a storage with real bytes, such as a memory-mapped file."""
        place = self.place(call.kwargs.get("device", CPU))
        with outside_simulation():
            tensor = call.done()
        return self.stage.stand_in(tensor, place, loaded_on_cpu(self.stage.home) if place is CPU else None)

    def of_values(self, call: Call) -> Any:
        """`torch.tensor([a, b])`, which reads the values of a and b."""
        inside = [each for each in leaves(call.args[:1]) if isinstance(each, StandIn)]
        if isinstance(call.args[0] if call.args else call.kwargs.get("data"), StandIn):
            return self.of_tensor(call)
        if not inside:
            return self.stage.adopt(call.done())
        values = self.values_read(f"torch.{_name(call.func)}", call.args[0])
        dtype = call.kwargs.get("dtype")
        if dtype is None:
            with outside_simulation():
                dtype = torch.tensor(mapped(_example, call.args[0]), device=CPU).dtype
        return self.stage.adopt(Call(call.func, (values, *call.args[1:]), {**call.kwargs, "dtype": dtype}).done())

    def values_read(self, by: str, data: Any) -> Any:
        """A list with the numbers of the tensors in it, as a function reads them."""
        inside = [each for each in leaves((data,)) if isinstance(each, StandIn)]
        for each in inside:
            if each._place is not CPU:
                self.stage.note(f"{by} of tensors waits for the device and copies their values to the CPU")
        if not all(map(self.stage.knows, inside)):
            raise CannotGoOn(f"{by} reads a value that shape-only mode does not compute")
        with outside_simulation():
            return mapped(lambda each: each._behind.tolist() if isinstance(each, StandIn) else each, data)

    def of_tensor(self, call: Call) -> Any:
        """`torch.tensor(x)`: a copy of x, on its device unless another is requested."""
        given = dict(zip(("data", "dtype", "device"), call.args, strict=False)) | call.kwargs
        data, device = given["data"], given.get("device")
        self.warn_of_copy("torch.tensor(sourceTensor)")
        if device is None and default_device_context.__dict__.get("device_context") is not None:
            device = self.default_place()
        return self.copied(data, device, given)

    def new_tensor(self, call: Call) -> Any:
        """`x.new_tensor(y)`: a copy of y, on the device of x unless another is requested."""
        data = call.args[1] if len(call.args) > 1 else call.kwargs.get("data")
        if not isinstance(data, StandIn) and any(isinstance(each, StandIn) for each in leaves((data,))):
            given = {key: each for key, each in call.kwargs.items() if key != "data"}
            return Call(call.func, (call.args[0], self.values_read("x.new_tensor", data)), given).done()
        if not isinstance(data, StandIn) or not isinstance(call.args[0], StandIn):
            return call.done()
        self.warn_of_copy("tensor.new_tensor(sourceTensor)")
        device = call.kwargs.get("device")
        return self.copied(data, call.args[0].device if device is None else device, call.kwargs)

    def copied(self, data: StandIn, device: Any, given: dict[str, Any]) -> Tensor:
        """A leaf with the values of `data`, on its device if `device` is None."""
        place = None if device is None else self.place(device)
        asked = None if place is data._place else place
        copied = self.send(data.detach(), asked, given.get("dtype"), copy=True, asked=device)
        return copied.requires_grad_(bool(given.get("requires_grad")))

    def warn_of_copy(self, written: str) -> None:
        """Issue torch's warning about copying a tensor this way, at the user's line."""
        frame, line = users_frame(), users_line()
        advised = "sourceTensor.detach().clone() or sourceTensor.detach().clone().requires_grad_(True)"
        warnings.warn_explicit(
            f"To copy construct from a tensor, it is recommended to use {advised}, rather than {written}.",
            *(UserWarning, line.file, line.number),
            registry={} if frame is None else frame.f_globals.setdefault("__warningregistry__", {}),
        )

    def new(self, call: Call) -> Any:
        """`x.new(y)`, a legacy copy, which fails if y is on another device."""
        tensor, *rest = call.args
        other = rest[0] if rest else None
        if isinstance(tensor, StandIn) and isinstance(other, StandIn) and other._place is not tensor._place:
            stray = other if other._place is CPU else tensor
            self.stage.tell(stray, "new", users_line())
            stray._place = self.stage.home
        if isinstance(other, (list, tuple)) and any(isinstance(each, StandIn) for each in leaves((other,))):
            return Call(call.func, (tensor, self.values_read("x.new", other)), call.kwargs).done()
        return call.done()

    def is_pinned(self, call: Call) -> bool:
        tensor = call.args[0]
        return isinstance(tensor, StandIn) and self.stage.is_pinned(tensor)

    def device(self, call: Call) -> torch.device:
        """`torch.device(index)` has the simulated device's type: the machine may have no accelerator."""
        named = call.args[0] if call.args else call.kwargs.get("type", call.kwargs.get("device"))
        if type(named) is int and len(call.args) + len(call.kwargs) == 1:
            return torch.device(self.stage.home.type, named)
        return call.func(*call.args, **call.kwargs)  # type: ignore[no-any-return]

    def cpu(self, call: Call) -> Tensor:
        return self.send(call.args[0], CPU, by_name=True)

    def send(
        self,
        tensor: Tensor,
        place: torch.device | None,
        dtype: torch.dtype | None = None,
        *,
        copy: bool = False,
        memory_format: torch.memory_format | None = None,
        asked: torch.device | None = None,
        by_name: bool = False,
    ) -> Tensor:
        place = None if place is None else place_of(place)
        if type(tensor) is not StandIn:
            return self.stage.send_itself(tensor, place, dtype, copy)
        explicit, place, dtype = place, place or tensor._place, dtype or tensor.dtype
        if place is tensor._place:
            options: dict[str, Any] = {} if memory_format is None else {"memory_format": memory_format}
            stayed: StandIn = Tensor.to(tensor, dtype, copy=copy, **options)  # type: ignore[assignment]
            if explicit and place is CPU and tensor._origin is not None and (by_name or says_cpu(users_line())):
                if stayed is tensor and not tensor.requires_grad:
                    stayed = tensor.view_as(tensor)  # type: ignore[assignment]  # the given one has its own origin
                stayed._origin = kept_on_cpu(tensor._origin, users_line(), self.stage.home)
            elif explicit and place is CPU:
                _, other = self.stage.cpus.get(id(asked or explicit), (None, None))
                follows = following(stayed._origin, other)
                stayed._origin = follows if other else sent_in_vain(stayed._origin, users_line(), self.stage.home)
            return stayed
        origin = None
        if place is not self.stage.home:
            origin = asked_for(self.stage, place, by_name=True) if by_name else self.asked_for(asked or place)
        sent: StandIn = _Send.apply(tensor, place, dtype, origin)  # type: ignore[no-untyped-call]
        tensor._sent = sent._result_of_sending = Sent(sent, users_lines(_NEAR))
        sent._fetched = place is CPU
        return sent

    # ------------------------------------------------------------ reads of values

    def look(self, call: Call) -> Any:
        tensor: StandIn = call.args[0]
        _used(tensor)
        if tensor._place is not CPU:
            self.stage.note(f"{_name(call.func)} waits for the device and copies a value to the CPU")
        if self.stage.knows(tensor):
            return self.with_bytes(call)
        if tensor.dtype.is_floating_point and call.func in (Tensor.item, Tensor.__float__):
            line = users_line()
            self.stage.guessed.setdefault(line, line.text)
            return Guess() if call.func is Tensor.item else 1.0
        if call.func is Tensor.__bool__ and called_from("torch/distributions/"):
            return True  # validation of a distribution's arguments
        raise CannotGoOn(f"{_name(call.func)} reads a value that shape-only mode does not compute")

    def numpy(self, call: Call) -> Any:
        tensor: StandIn = call.args[0]
        _used(tensor)
        if call.kwargs.get("force"):
            if tensor._place is not CPU:
                self.stage.note("numpy waits for the device and copies values to the CPU")
        elif tensor._place is not CPU:
            remedy = brought_to_numpy(tensor, users_frame())
            self.stage.find(users_line(), "numpy", "numpy cannot read device memory", remedy)
        elif tensor.requires_grad:
            said = "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead."
            self.stage.refuse(RuntimeError(said))
        elif tensor._fetched:
            self.stage.note("numpy waits until the bytes are copied from the device")
        if self.stage.knows(tensor):
            return self.with_bytes(call)
        raise CannotGoOn("numpy reads a value that shape-only mode does not compute")

    def format(self, call: Call) -> Any:
        text = repr(call.args[0])
        return self.with_bytes(call) if self.stage.knows(call.args[0]) else text

    def with_bytes(self, call: Call) -> Any:
        try:
            with outside_simulation():
                return call.func(call.args[0]._behind.detach(), *call.args[1:], **call.kwargs)
        except Exception as error:
            self.stage.refuse(error)

    # ------------------------------------------------------------ C++ code that bypasses the dispatcher

    def set_data(self, call: Call) -> None:
        tensor, value = call.args
        call.done()
        if is_lazy(tensor):
            return
        if tensor._part == "parameters":
            self.stage.weight_moved(tensor, value._place)
        tensor._behind, tensor._place, tensor._origin = value._behind, value._place, value._origin
        tensor._sent = None  # the result of the transfer is in use
        if tensor._part:
            self.stage.meter.mark(tensor._behind, tensor._part)

    def over_packed(self, call: Call) -> Any:
        """RNNs and padding over packed sequences, whose C++ reads the values of `batch_sizes`."""
        first, second, *rest = call.args
        is_packed = isinstance(second, StandIn) and second.dtype == torch.int64
        if is_packed:
            if not self.stage.knows(second):
                raise CannotGoOn(
                    "a packed sequence needs the values of its lengths, which shape-only mode does not compute"
                )
            call = call._replace(args=(first, second._behind, *rest))
        done = call.done()
        if call.func is pad_packed_sequence:
            self.stage.admit(done[1])._place = CPU  # the lengths
        elif call.args[_TRAINS + is_packed : _TRAINS + 1 + is_packed] == (False,) and torch.backends.cudnn.enabled:
            self.stage.refuse_backward(done, "cudnn RNN backward can only be called in training mode", _BY_CUDNN)
        return done

    def pin(self, call: Call) -> Any:
        tensor = call.args[0]
        if isinstance(tensor, StandIn) and tensor._place is not CPU:
            why = f"pin_memory pins host memory, but this tensor is on {tensor._place}"
            self.stage.find(users_line(), "host", why, "pin it before it is moved to the device")
        if not isinstance(tensor, StandIn) or tensor._place is not CPU or self.stage.is_pinned(tensor):
            return tensor
        pinned: StandIn = tensor.clone()  # type: ignore[assignment]
        self.stage.pin(pinned)
        return pinned

    def set_grad(self, call: Call) -> None:
        tensor, grad = call.args
        if isinstance(grad, StandIn) and isinstance(tensor, StandIn) and grad._place is not tensor._place:
            self.stage.tell(grad, "an assignment to .grad", users_line())
            grad._place = tensor._place
        call.done()

    def write(self, call: Call) -> Any:
        """`copy_` and `x[i] = y`, also between devices: the gradient returns to the device of y."""
        index = 2 if call.func is Tensor.__setitem__ else 1
        tensor, value = call.args[0], call.args[index] if len(call.args) > index else None
        if index == 2 and _puts(call.args[1]):
            return call.done()
        if isinstance(tensor, StandIn) and isinstance(value, StandIn) and value._place is not tensor._place:
            sent = _Send.apply(value, tensor._place, value.dtype, None)  # type: ignore[no-untyped-call]
            call = call._replace(args=(*call.args[:index], sent, *call.args[index + 1 :]))
        return call.done()

    def share(self, call: Call) -> Any:
        """`share_memory_` returns the same tensor: device memory is shared anyway."""
        return call.args[0]

    def by_address(self, call: Call) -> Any:
        """A function whose C++ accesses the memory of its tensors directly, on the CPU."""
        given = [each for each in leaves(call.args) if isinstance(each, StandIn)]
        for each in given:
            if each._place is not CPU:
                why = f"{_name(call.func)} runs on the CPU, but this tensor is on {each._place}"
                self.stage.on_the_host(each, why)
        if not all(map(self.stage.knows, given)):
            raise CannotGoOn(f"{_name(call.func)} reads a value that shape-only mode does not compute")
        with outside_simulation():
            behind = mapped(lambda each: each._behind if isinstance(each, StandIn) else each, call.args)
            done = call.func(*behind, **call.kwargs)
        by_id = {id(each._behind): each for each in given}
        where = Made(CPU, factory(self.stage, _name(call.func), users_line()))
        return mapped(lambda each: by_id[id(each)] if id(each) in by_id else self.stage.adopt(each, where), done)

    def ctc_loss(self, call: Call) -> Any:
        """`ctc_loss`: torch itself sends lengths and targets to the device of `log_probs`."""
        names = ("log_probs", "targets", "input_lengths", "target_lengths")
        given = {**dict(zip(names, call.args, strict=False)), **call.kwargs}
        for name in names[1:]:
            if isinstance(given[name], StandIn) and isinstance(given["log_probs"], StandIn):
                given[name] = self.stage.wrap(given[name]._behind, given["log_probs"]._place, None)
        first = [given.pop(name) for name in names]
        return Call(call.func, (*first, *call.args[4:]), given).done()

    def tensor_split(self, call: Call) -> Any:
        """`tensor_split`, whose C++ reads the memory of the indices on the CPU."""
        tensor, indices, *rest = call.args if len(call.args) > 1 else (*call.args, None)
        if not isinstance(indices, StandIn):
            return call.done()
        if indices._place is not CPU:
            self.stage.on_the_host(indices, f"tensor_split reads indices on the CPU, but they are on {indices._place}")
        if not self.stage.knows(indices):
            raise CannotGoOn("tensor_split reads a value that shape-only mode does not compute")
        with outside_simulation():
            values = indices._behind.tolist()
        return Call(call.func, (tensor, values, *rest), call.kwargs).done()

    def unravel_index(self, call: Call) -> Any:
        """`unravel_index`: torch implements it in Python, with torch.tensor on the device of the indices."""
        given = {**dict(zip(("indices", "shape"), call.args, strict=False)), **call.kwargs}
        with self:
            coordinates: Tensor = unravel_index(**given)
        return coordinates.unbind(-1)

    def memory(self, call: Call) -> Any:
        """Storages and addresses are those of the tensor behind the stand-in: distinct, and safe to read."""
        if not self.stage.knows(call.args[0]):
            return call.done()
        with outside_simulation():
            return call.func(call.args[0]._behind, *call.args[1:], **call.kwargs)

    def compared(self, call: Call) -> Any:
        """A function whose C++ compares devices before it dispatches any operation."""
        for stray in apart(leaves(call.args), self.stage.home, strict=True):
            self.stage.tell(stray, _name(call.func), users_line())
            stray._place = self.stage.home
        return call.done()

    def resize(self, call: Call) -> Any:
        """`resize_`: replaces the stand-in, whose shape is fixed."""
        tensor, *rest = call.args
        if not isinstance(tensor, StandIn):
            return call.done()
        if call.func is Tensor.resize_as_:
            size = tuple(rest[0].size())
        else:
            size = tuple(rest[0]) if rest and not isinstance(rest[0], int) else tuple(rest)
        with outside_simulation():
            behind = tensor._behind.detach().clone().resize_(size)
        resized = self.stage.wrap(behind, tensor._place, tensor._origin)
        self.set_data(Call(Tensor.data.__set__, (tensor, resized), {}))  # type: ignore[attr-defined]
        return tensor

    def parse_to(self, call: Call) -> Any:
        """The argument parser of Module.to, which would take the real device of a stand-in."""
        tensor = call.args[0] if call.args else call.kwargs.get("tensor")
        if isinstance(tensor, StandIn):
            return tensor.device, tensor.dtype, False, None
        return self.read_to(call.args, call.kwargs)

    def dlpack(self, call: Call) -> Any:
        tensor: StandIn = call.args[0]
        if tensor._place is not CPU:
            name = named_for_numpy(tensor)
            self.stage.find(users_line(), "numpy", "numpy cannot read device memory", f"{name}.cpu()")
        if not self.stage.knows(tensor):
            raise CannotGoOn("dlpack hands out the memory of a tensor")
        return self.with_bytes(call)

    def device_of(self, call: Call) -> Any:
        """The device of a tensor, also of one without a stand-in, such as a sparse tensor."""
        tensor = call.args[0]
        return tensor.device if isinstance(tensor, StandIn) else self.stage.itself(tensor)._place


@contextmanager
def hooks_overridden(stage: SimulatedDevice) -> Iterator[None]:
    """Enable the overrides in backward hooks and saved-tensor hooks: torch calls these without the function mode."""
    run = engine_run_backward

    def run_backward(*args: Any, **kwargs: Any) -> Any:
        if stage.over:
            return run(*args, **kwargs)
        now = stage.now
        before = now.making, now.backward_on
        places = [each._place for each in leaves(args[:1]) if isinstance(each, StandIn)]
        now.making, now.backward_on = None, next((place for place in places if place is not CPU), CPU)
        try:
            with nullcontext() if before[0] is None else FunctionOverrides(stage):
                return run(*args, **kwargs)
        finally:
            now.making, now.backward_on = before

    saving: Any = saved_tensors_hooks.__init__

    def set_up(hooks: Any, *functions: Callable[..., Any], **named: Callable[..., Any]) -> None:
        saving(hooks, *map(seen, functions), **{name: seen(each) for name, each in named.items()})

    def seen(hook: Callable[..., Any]) -> Callable[..., Any]:
        def run_hook(*args: Any) -> Any:
            with nullcontext() if stage.over or stage.now.making is None else FunctionOverrides(stage):
                return hook(*args)

        return run_hook

    with (
        patch.object(torch.autograd, "_engine_run_backward", run_backward),
        patch.object(saved_tensors_hooks, "__init__", set_up),
    ):
        yield


def _puts(index: Any) -> bool:
    """Whether an assignment with this index calls index_put_, which rejects values on another device, and not copy_."""
    if isinstance(index, tuple):
        return any(map(_puts, index))
    if isinstance(index, Tensor):
        return index.dim() > 0 or index.dtype in (torch.bool, torch.uint8)
    return isinstance(index, list) or hasattr(index, "__array__")


class _Send(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: StandIn, place: torch.device, dtype: torch.dtype, origin: Any) -> Tensor:
        ctx.place, ctx.dtype = tensor._place, tensor.dtype
        with outside_simulation():
            sent = tensor._behind.to(dtype, copy=True)
        return tensor._stage.wrap(sent, place, origin)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: StandIn) -> Any:
        with outside_simulation():
            sent = grad._behind.to(ctx.dtype, copy=True)
        return grad._stage.wrap(sent, ctx.place, None), None, None, None


def _has_outsiders(given: Any, stage: SimulatedDevice) -> bool:
    """Whether these contain a tensor that is not a stand-in of this rehearsal."""
    for each in given:
        kind = type(each)
        if kind in _PLAIN or (kind is StandIn and each._stage is stage):
            continue
        if kind is tuple or kind is list:
            if _has_outsiders(each, stage):
                return True
        elif kind is dict:
            if _has_outsiders(each.values(), stage):
                return True
        elif isinstance(each, Tensor):
            return True
    return False


def _used(tensor: StandIn) -> None:
    if tensor._result_of_sending is not None:
        tensor._result_of_sending.used = True


def _example(each: Any) -> Any:
    return torch.ones(each.shape, dtype=each.dtype, device=CPU).tolist() if isinstance(each, StandIn) else each


def _name(func: Any) -> str:
    return str(getattr(func, "__name__", func)).strip("_")


_NEAR = 4  # user frames searched for the statement that discarded a result
_PLAIN = {int, float, bool, str, type(None), torch.dtype, torch.device, torch.Size}
_CONSTRUCTORS = device_constructors()
_ACTS: dict[Any, Callable[[FunctionOverrides, Call], Any]] = {
    Tensor.to: FunctionOverrides.to,
    Tensor.cuda: FunctionOverrides.cuda,
    Tensor.cpu: FunctionOverrides.cpu,
    Tensor.type_as: FunctionOverrides.type_as,
    Tensor.type: FunctionOverrides.type,
    torch.as_tensor: FunctionOverrides.as_tensor,
    torch.asarray: FunctionOverrides.as_tensor,
    torch.tensor: FunctionOverrides.of_values,
    **dict.fromkeys([Tensor.item, Tensor.tolist, Tensor.__bool__], FunctionOverrides.look),
    **dict.fromkeys([Tensor.__float__, Tensor.__int__, Tensor.__index__], FunctionOverrides.look),
    Tensor.numpy: FunctionOverrides.numpy,
    Tensor.__array__: FunctionOverrides.numpy,
    Tensor.__format__: FunctionOverrides.format,
    Tensor.data.__set__: FunctionOverrides.set_data,  # type: ignore[attr-defined]
    Tensor.device.__get__: FunctionOverrides.device_of,
    Tensor.grad.__set__: FunctionOverrides.set_grad,  # type: ignore[union-attr]
    **dict.fromkeys([Tensor.copy_, Tensor.__setitem__], FunctionOverrides.write),
    **dict.fromkeys([torch.tensor_split, Tensor.tensor_split], FunctionOverrides.tensor_split),
    **dict.fromkeys([torch.meshgrid, torch.cartesian_prod], FunctionOverrides.compared),
    torch.unravel_index: FunctionOverrides.unravel_index,
    Tensor.__dlpack__: FunctionOverrides.dlpack,
    parse_to: FunctionOverrides.parse_to,
    **dict.fromkeys([Tensor.resize_, Tensor.resize_as_], FunctionOverrides.resize),
    **dict.fromkeys([Tensor.untyped_storage, Tensor.storage, Tensor.data_ptr], FunctionOverrides.memory),
    **dict.fromkeys([torch.ctc_loss, functional.ctc_loss], FunctionOverrides.ctc_loss),
    Tensor.pin_memory: FunctionOverrides.pin,
    Tensor.is_pinned: FunctionOverrides.is_pinned,
    Tensor.new: FunctionOverrides.new,
    Tensor.new_tensor: FunctionOverrides.new_tensor,
    torch.device: FunctionOverrides.device,
    Tensor.share_memory_: FunctionOverrides.share,
    **dict.fromkeys(
        SOBOL_ENGINE,
        FunctionOverrides.by_address,
    ),
    **dict.fromkeys([torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu], FunctionOverrides.over_packed),
    pad_packed_sequence: FunctionOverrides.over_packed,
}
