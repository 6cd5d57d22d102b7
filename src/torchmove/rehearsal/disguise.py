"""The disguise: to the step the simulated device is the real one. Sees every call of torch's Python functions."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

from torchmove.rehearsal.arguments import leaves, mapped
from torchmove.rehearsal.devices import asked_for, sent_in_vain
from torchmove.rehearsal.provenance import Provenance, factory, users_line
from torchmove.rehearsal.stage import CannotGoOn, Stage, off_stage
from torchmove.rehearsal.standin import CPU, StandIn


class Call(NamedTuple):
    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def done(self) -> Any:
        """To torch's C++ everything is on the CPU, whatever the default device is."""
        given = self.kwargs.get("device") is not None or self.func in _CONSTRUCTORS
        return self.func(*self.args, **({**self.kwargs, "device": CPU} if given else self.kwargs))


class Disguise(TorchFunctionMode):
    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self.stage = stage

    def __torch_function__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.stage.goes_on():
            return func(*args, **(kwargs or {}))
        with self.at_work(True):
            call = Call(func, *mapped(self.stage.admit, (args, kwargs or {})))
            act = _ACTS.get(func)
            if act is not None:
                return act(self, call)
            with self.making(call):
                return self.stage.adopt(call.done()) if func in _CONSTRUCTORS else call.done()

    @contextmanager
    def at_work(self, now: bool) -> Iterator[None]:
        before, self.stage.now.disguised = self.stage.now.disguised, now
        try:
            yield
        finally:
            self.stage.now.disguised = before

    @contextmanager
    def making(self, call: Call) -> Iterator[None]:
        """Where tensors come to be that this call makes from nothing."""
        now, before = self.stage.now, (self.stage.now.made_on, self.stage.now.made_by)
        device = call.kwargs.get("device")
        places = [each._place for each in leaves(call[1:]) if isinstance(each, StandIn)]
        if device is not None:
            now.made_on, now.made_by = self.place(device), self.asked_for(device)
        elif call.func in _CONSTRUCTORS:
            now.made_on, now.made_by = self.default_place(), factory(_name(call.func), users_line())
        elif places:
            now.made_on, now.made_by = next((place for place in places if place != CPU), CPU), None
        try:
            yield
        finally:
            now.made_on, now.made_by = before

    def asked_for(self, device: Any) -> Provenance:
        """Of a tensor that was to be on this very device."""
        _, came_from = self.stage.cpus.get(id(device), (None, None))
        return came_from or asked_for(self.place(device), users_line())

    def default_place(self) -> torch.device:
        """Where `torch.set_default_device` says; torch itself would make a tensor there to tell."""
        context = torch._GLOBAL_DEVICE_CONTEXT.__dict__.get("device_context")
        return CPU if context is None else self.place(context.device)

    def place(self, device: Any) -> torch.device:
        found = torch.device(self.stage.home.type, device) if isinstance(device, int) else torch.device(device)
        return CPU if found.type == "cpu" else torch.device(found.type, found.index or 0)

    # ------------------------------------------------------------ from one device to another

    def to(self, call: Call) -> Tensor:
        tensor, *rest = call.args
        kwargs = dict(call.kwargs)
        copy, other = kwargs.pop("copy", False), kwargs.pop("other", None)
        if rest and isinstance(rest[0], Tensor):
            other = rest[0]
        if other is not None:
            return self.send(tensor, other.device, other.dtype, copy=copy)
        if rest and type(rest[0]) is int:
            rest[0] = self.place(rest[0])
        device, dtype, _, memory_format = torch._C._nn._parse_to(*rest, **kwargs)
        place = None if device is None else self.place(device)
        asked = next((each for each in (*rest, kwargs.get("device")) if isinstance(each, torch.device)), None)
        return self.send(tensor, place, dtype, copy=copy, memory_format=memory_format, asked=asked)

    def cuda(self, call: Call) -> Tensor:
        device = call.args[1] if len(call.args) > 1 else call.kwargs.get("device")
        return self.send(call.args[0], self.place(0 if device is None else device))

    def type_as(self, call: Call) -> Tensor:
        tensor, other = call.args
        return self.send(tensor, other.device, other.dtype)

    def backward(self, call: Call) -> None:
        """Hooks run in it, and they are the user's code."""
        tensor, *rest = call.args
        options = {**dict(zip(_BACKWARD, rest, strict=False)), **call.kwargs}
        gradient, inputs = options.pop("gradient", None), options.pop("inputs", None)
        with self.making(call), self.at_work(False):
            torch.autograd.backward(tensor, gradient, inputs=inputs, **options)

    def cpu(self, call: Call) -> Tensor:
        return self.send(call.args[0], CPU)

    def send(
        self,
        tensor: StandIn,
        place: torch.device | None,
        dtype: torch.dtype | None = None,
        *,
        copy: bool = False,
        memory_format: torch.memory_format | None = None,
        asked: torch.device | None = None,
    ) -> Tensor:
        explicit, place, dtype = place, place or tensor._place, dtype or tensor.dtype
        if place == tensor._place:
            options: dict[str, Any] = {} if memory_format is None else {"memory_format": memory_format}
            with self.making(Call(Tensor.to, (tensor,), {})):
                stayed: StandIn = Tensor.to(tensor, dtype, copy=copy, **options)  # type: ignore[assignment]
            if explicit and place == CPU and id(asked or explicit) not in self.stage.cpus:
                stayed._provenance = sent_in_vain(stayed._provenance, users_line())
            return stayed
        provenance = None if place == self.stage.home else self.asked_for(asked or place)
        sent: StandIn = _Send.apply(tensor, place, dtype, provenance)  # type: ignore[no-untyped-call]
        tensor._sent, sent._fetched = weakref.ref(sent), place == CPU
        return sent

    # ------------------------------------------------------------ looking at data

    def look(self, call: Call) -> Any:
        tensor: StandIn = call.args[0]
        if tensor._place != CPU:
            self.stage.note(f"{_name(call.func)} waits for the device and brings a value to the CPU")
        if self.stage.knows(tensor):
            return self.with_bytes(call)
        if tensor.dtype.is_floating_point and call.func in (Tensor.item, Tensor.__float__):
            return 0.0  # to be printed, summed up or found finite
        raise CannotGoOn(f"{_name(call.func)} looks at data")

    def numpy(self, call: Call) -> Any:
        tensor: StandIn = call.args[0]
        if tensor._place != CPU:
            self.stage.find(users_line(), "numpy", "numpy cannot read the memory of a device", "x.cpu().numpy()")
        elif tensor._fetched:
            self.stage.note("numpy waits until the bytes have come from the device")
        if self.stage.knows(tensor):
            return self.with_bytes(call)
        raise CannotGoOn("numpy looks at data")

    def format(self, call: Call) -> Any:
        text = repr(call.args[0])
        return self.with_bytes(call) if self.stage.knows(call.args[0]) else text

    def with_bytes(self, call: Call) -> Any:
        with off_stage():
            return call.func(call.args[0]._behind.detach(), *call.args[1:], **call.kwargs)

    # ------------------------------------------------------------ what torch's C++ does by itself

    def set_data(self, call: Call) -> None:
        tensor, value = call.args
        call.done()
        tensor._behind, tensor._place, tensor._provenance = value._behind, value._place, value._provenance
        tensor._sent = None  # what came of sending it was not thrown away
        if tensor._part:
            self.stage.meter.mark(tensor._behind, tensor._part)

    def over_packed(self, call: Call) -> Any:
        """What works on packed sequences reads the sizes of the batches by itself."""
        first, second, *rest = call.args
        if isinstance(second, StandIn) and second.dtype == torch.int64:
            if not self.stage.knows(second):
                raise CannotGoOn("a packed sequence has its lengths as data")
            call = call._replace(args=(first, second._behind, *rest))
        with self.making(call):
            return call.done()

    def stay(self, call: Call) -> Any:
        return call.args[0]


class _Send(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: StandIn, place: torch.device, dtype: torch.dtype, provenance: Any) -> Tensor:
        ctx.place, ctx.dtype = tensor._place, tensor.dtype
        with off_stage():
            sent = tensor._behind.to(dtype, copy=True)
        return tensor._stage.wrap(sent, place, provenance)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: StandIn) -> Any:
        with off_stage():
            sent = grad._behind.to(ctx.dtype, copy=True)
        return grad._stage.wrap(sent, ctx.place, None), None, None, None


def _name(func: Any) -> str:
    return str(getattr(func, "__name__", func)).strip("_")


_CONSTRUCTORS = _device_constructors()
_BACKWARD = ("gradient", "retain_graph", "create_graph", "inputs")  # in the order in which Tensor.backward takes them
_ACTS: dict[Any, Callable[[Disguise, Call], Any]] = {
    Tensor.to: Disguise.to,
    Tensor.cuda: Disguise.cuda,
    Tensor.cpu: Disguise.cpu,
    Tensor.type_as: Disguise.type_as,
    Tensor.backward: Disguise.backward,
    **dict.fromkeys([Tensor.item, Tensor.tolist, Tensor.__bool__], Disguise.look),
    **dict.fromkeys([Tensor.__float__, Tensor.__int__, Tensor.__index__], Disguise.look),
    Tensor.numpy: Disguise.numpy,
    Tensor.__array__: Disguise.numpy,
    Tensor.__format__: Disguise.format,
    Tensor.data.__set__: Disguise.set_data,  # type: ignore[attr-defined]
    Tensor.pin_memory: Disguise.stay,
    **dict.fromkeys([torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu], Disguise.over_packed),
    torch._VF._pad_packed_sequence: Disguise.over_packed,
}
