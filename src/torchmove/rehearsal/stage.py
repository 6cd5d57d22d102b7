"""The stage: every operation of the step comes by here, is checked for its devices and done with what is behind."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing

from torchmove._shells import is_window
from torchmove.rehearsal.arguments import leaves, mapped
from torchmove.rehearsal.behind import MOST_BYTES, as_shape, fits, is_known
from torchmove.rehearsal.memory import Meter
from torchmove.rehearsal.places import strays
from torchmove.rehearsal.provenance import Line, Provenance, called_by_user, factory, outsider, users_line
from torchmove.rehearsal.standin import CPU, StandIn
from torchmove.rehearsal.workspaces import weigh

aten = torch.ops.aten
Tell = Callable[[StandIn, str, Line], None]
Find = Callable[[Line, str, str, str], None]  # where, which kind, why, and what to do


class CannotGoOn(Exception):
    """Shapes alone do not tell how the step goes on; says why."""


class NotFollowed(Exception):
    """The step does what no rehearsal follows; says what."""


@contextmanager
def off_stage() -> Iterator[None]:
    """For operations that are ours, on what is behind the stand-ins."""
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        yield


class Over(BaseException):
    """The step is over, and nobody plays on: what is there now is real."""


class Task:
    """Something that runs beside the step."""

    def __init__(self, daemon: bool) -> None:
        self.daemon = daemon
        self.touched = False  # it has done something with torch
        self.ended = False


class Now(threading.local):
    """What is going on, in each thread of the step."""

    # Where a tensor that is made from nothing comes to be, and who made it; nobody: torch itself.
    made_on = CPU
    made_by: Provenance | None = None
    disguised = False  # a call of torch's Python functions is under way
    task: Task | None = None  # what runs in this thread, if that is not the step itself


class Stage(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, home: torch.device, *, real: bool, tell: Tell, find: Find) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.home, self.real, self.tell, self.find = home, real, tell, find
        self.meter = Meter()
        self.now = Now()
        self.over = False  # the step has ended, or this is another process
        self.one_at_a_time = threading.RLock()
        self.unknown: dict[int, Tensor] = {}  # instead of storages whose bytes are not known any more
        self.cpus: dict[
            int, tuple[torch.device, Provenance | None]
        ] = {}  # what tensors said when asked for their device
        self.inside: dict[int, tuple[Tensor, torch.device]] = {}  # real tensors that torch has made, and their places
        self.shadows: dict[int, tuple[Tensor, StandIn]] = {}  # of real tensors that the step came across

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # keeping torch's compiler out means importing it, and nothing is compiled here

    def note(self, why: str) -> None:
        """Something that waits for the device; it does not fail."""
        self.find(users_line(), "synchronises", why, "keep it on the device, or do it seldom")

    # ------------------------------------------------------------ stand-ins

    def storage_for(self, tensor: Tensor, *, weighs: bool = False) -> Tensor:
        """Something like the storage behind a real tensor, as bytes; a weight is known by its shape alone."""
        with off_stage():
            storage = tensor.untyped_storage()
            small = not weighs and storage.nbytes() <= MOST_BYTES
            if (self.real or small) and tensor.device.type != "meta":
                return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage).cpu().clone()
            return torch.empty(storage.nbytes(), dtype=torch.uint8, device="meta")

    def window(self, base: Tensor, like: Tensor) -> Tensor:
        """A window such as a real tensor is, on what is like its storage."""
        with off_stage():
            data = like.data
            empty = torch.empty(0, dtype=data.dtype, device=base.device)
            return empty.set_(base.untyped_storage(), data.storage_offset(), data.size(), data.stride())

    def wrap(self, behind: Tensor, place: torch.device, provenance: Provenance | None) -> StandIn:
        if place == self.home:
            self.meter.see(behind)
        return StandIn(behind, place, self, provenance)

    def stand_in(self, tensor: Tensor, place: torch.device, provenance: Provenance | None) -> StandIn:
        """For a real tensor, by itself."""
        with off_stage():
            trained = tensor.requires_grad
        made = self.wrap(self.window(self.storage_for(tensor), tensor), place, provenance)
        made.requires_grad_(trained)
        return made

    def adopt(self, made: Any) -> Any:
        """What torch has made out of values is real at first."""
        if isinstance(made, StandIn) or not _has_stand_in(made):
            return made
        return self.stand_in(made, self.now.made_on, self.now.made_by)

    def admit(self, each: Any) -> Any:
        """A tensor that an operation is given, as a stand-in."""
        return each if isinstance(each, StandIn) or not _has_stand_in(each) else self.shadow(each)

    def shadow(self, tensor: Tensor) -> StandIn:
        """A real tensor that nobody gave: a global, say. It is not touched; what the step does, it does to this."""
        if id(tensor) not in self.shadows:
            _, place = self.inside.pop(id(tensor), (None, None))
            standin = self.stand_in(tensor, place or CPU, None if place else outsider(tensor))
            self.shadows[id(tensor)] = (tensor, standin)
        return self.shadows[id(tensor)][1]

    def cpu_of(self, standin: StandIn) -> torch.device:
        """The CPU, as an object of its own: what is made on the device of a stray has come from that."""
        device = torch.device("cpu")
        self.cpus[id(device)] = (device, standin.came_from())
        return device

    # ------------------------------------------------------------ operations

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {})) if self.over else self.run(func, args, kwargs or {})

    def goes_on(self) -> bool:
        """False: what is done now is done for real. Not by a thread of the step's, which does nothing any more."""
        if self.now.task is not None:
            self.now.task.touched = True
            if self.over:
                raise Over
        return not self.over

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        with self.one_at_a_time:
            if self.over and self.now.task is not None:
                raise Over
            return self._run(func, args, kwargs)

    def _run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if func in _LIFTS:
            return self.adopt(args[0])
        if func is aten.empty.memory_format and self.now.made_by is None and (self.real or fits(func, args, kwargs)):
            return self.made_inside(func, args, kwargs)
        args, kwargs = mapped(self.admit, (args, kwargs))
        for stray in strays(func, args, kwargs, self.home):
            self.tell(stray, func.overloadpacket.__name__, users_line())
            stray._place = self.home  # the run goes on as if it had been mended
        given = [each for each in leaves((args, kwargs)) if isinstance(each, StandIn)]
        made = not given or kwargs.get("device") is not None
        place = self.now.made_on if made else _place_of(given)
        came = self.now.made_by if made else _came_from(given, place)
        if not given and not self.now.disguised and called_by_user():
            # In a hook of autograd's, where torch leaves the disguise out.
            place, came = CPU, factory(func.overloadpacket.__name__, users_line())
        out = self._done(func, args, kwargs, given)
        if place == self.home:
            weigh(self.meter, func, mapped(_behind, args), out)
        if func is aten.detach.default and is_window(out) and _accumulates():
            self.meter.mark(out, "gradients")
        wrapped = mapped(lambda each: self.wrap(each, place, came) if _has_stand_in(each) else each, out)
        if func.overloadpacket is aten._pack_padded_sequence:
            wrapped[1]._place = CPU  # the sizes of the batches: read there
        return _aliased(func, args, kwargs, wrapped)

    def made_inside(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Tensor:
        """Room that torch's C++ has asked for: it may write to it by its address. Real, until an operation uses it."""
        made: Tensor = func(*args, **{**kwargs, "device": CPU, "pin_memory": False})
        self.inside[id(made)] = (made, self.now.made_on)
        return made

    # ------------------------------------------------------------ with what is behind

    def knows(self, standin: StandIn) -> bool:
        """Are its values known? Not if something unknown was written to its storage."""
        behind = standin._behind
        if not is_known(behind):
            return False
        base = self.unknown.get(behind.untyped_storage()._cdata)
        if base is not None:
            standin._behind = self.window(base, behind)
        return base is None

    def _done(self, func: Any, args: Any, kwargs: dict[str, Any], given: list[StandIn]) -> Any:
        makes = not given and any(argument.name == "device" for argument in func._schema.arguments)
        if makes or kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": CPU}
        known = [self.knows(each) for each in given]
        with_bytes = mapped(_behind, (args, kwargs))
        if self.real:
            return func(*with_bytes[0], **with_bytes[1])
        if all(known) and fits(func, *with_bytes):
            with suppress(NotImplementedError):  # the CPU cannot, but its shapes are known
                return func(*with_bytes[0], **with_bytes[1])
        return self._done_in_shapes(func, args, kwargs)

    def _done_in_shapes(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        for argument, value in [*zip(func._schema.arguments, args, strict=False), *_named(func, kwargs)]:
            if argument.is_write:
                for each in leaves(value):
                    self._forget(each)
        if func.overloadpacket in _MASKED:
            args = (args[0], _without_masks(args[1], self), *args[2:])
        args, kwargs = mapped(_shape_of, (args, kwargs))
        if kwargs.get("device") is not None:
            kwargs["device"] = "meta"
        try:
            return func(*args, **kwargs)
        except (NotImplementedError, RuntimeError) as error:
            if not func._schema.returns:
                return None  # it only writes, and that nobody will see
            if "meta" in str(error).lower() or "data-dependent" in str(error):
                raise CannotGoOn(f"{func.overloadpacket.__name__} looks at data") from None
            raise

    def _forget(self, each: Any) -> None:
        """Something unknown will be written to it."""
        if isinstance(each, StandIn) and self.knows(each):
            storage = each._behind.untyped_storage()
            key = storage._cdata
            with off_stage():
                self.unknown[key] = torch.empty(storage.nbytes(), dtype=torch.uint8, device="meta")
            weakref.finalize(storage, self.unknown.pop, key, None)
            self.knows(each)


_MASKED = {aten.index, aten.index_put, aten.index_put_}


def _without_masks(indices: Any, stage: Stage) -> list[Any]:
    """A known mask selects known places, whatever it selects from."""
    found: list[Any] = []
    for each in indices:
        is_mask = isinstance(each, StandIn) and each.dtype in (torch.bool, torch.uint8) and stage.knows(each)
        found += each._behind.nonzero(as_tuple=True) if is_mask else [each]
    return [as_shape(each) if isinstance(each, Tensor) and not isinstance(each, StandIn) else each for each in found]


_LIFTS = {aten.lift.default, aten.lift_fresh.default}


def _has_stand_in(each: Any) -> bool:
    """A sparse tensor has none, nor has a parameter that waits for its shape."""
    if isinstance(each, Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(each):
        raise NotFollowed("torch.func's transforms wrap tensors, and a rehearsal does not see what is inside")
    return isinstance(each, Tensor) and not is_lazy(each) and is_window(each)


def _behind(each: Any) -> Any:
    return each._behind if isinstance(each, StandIn) else each


def _shape_of(each: Any) -> Any:
    behind = _behind(each)
    return as_shape(behind) if isinstance(each, StandIn) and is_known(behind) else behind


def _named(func: Any, kwargs: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    return ((each, kwargs[each.name]) for each in func._schema.arguments if each.name in kwargs)


def _place_of(given: list[StandIn]) -> torch.device:
    """A number on the CPU goes with the others."""
    return next((each._place for each in given if each._place != CPU), CPU)


def _came_from(given: list[StandIn], place: torch.device) -> Provenance | None:
    """What is computed from a stray is a stray of the same kind."""
    return next(filter(None, (each.came_from() for each in given)), None) if place == CPU else None


def _accumulates() -> bool:
    """Is autograd about to put a gradient where it belongs?"""
    node = torch._C._current_autograd_node()
    return node is not None and node.name().endswith("AccumulateGrad")


def _aliased(func: Any, args: Any, kwargs: Any, out: Any) -> Any:
    if any(isinstance(each, Tensor) and not isinstance(each, StandIn) for each in leaves((args, kwargs, out))):
        return out  # a sparse one has no storage to share
    return return_and_correct_aliasing(func, args, kwargs, out)  # type: ignore[no-untyped-call]
