"""The simulated device: checks the devices of each operation, computes it, and measures the memory that it takes.

It computes with the tensors behind the stand-ins, and measures each storage from its allocation until it is freed.

cuDNN's memory is added as measured: each layer and direction of an LSTM keeps five times its output for the backward
pass, and during a pass uses six times its output, its input, and twice its weights.
`tests/ecosystem/test_rehearsal_real_models.py` compares the peak with that of a GPU.
"""

from __future__ import annotations

import re
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from torchmove.internals.simulation import (
    TorchDispatchMode,
    current_autograd_node,
    default_device_context,
    is_functorch_tensor,
    return_and_correct_aliasing,
    schema_of,
    unsafe_set,
    without_torch_dispatch,
    without_torch_function,
)
from torchmove.internals.storages import is_view_of_storage
from torchmove.rehearsing.captured import Name
from torchmove.rehearsing.operators import (
    LACKING,
    MOST_BYTES,
    ONLY_ON_CUDA,
    Inference,
    Operator,
    as_shape,
    is_known,
    made,
    nbytes_of,
    nobody_has,
    operator,
    strays,
    without_bytes,
)
from torchmove.rehearsing.origins import bare_root, converted, copied, factory, name_of, not_sent, outsider, users_name
from torchmove.rehearsing.provenance import Line, Origin, called_by_user, users_line
from torchmove.rehearsing.tensors import CPU, Itself, StandIn, leaves, mapped, on_the_cpu, place_of_generator

aten = torch.ops.aten
Tell = Callable[[Any, str, Line], None]  # the misplaced tensor, the operation and the line
Find = Callable[[Line, str, str, str], object]  # line, kind, why and remedy


class CannotGoOn(Exception):
    """The step depends on a value that shape-only mode does not compute."""


class NotFollowed(Exception):
    """The step does something that a rehearsal does not support."""


class Unfinished(BaseException):
    """A script did not get to the end of its steps in time; with a remedy. No `except Exception` of it catches this."""

    def __init__(self, why: str, remedy: str) -> None:
        super().__init__(why)
        self.remedy = remedy


class NotOnDevice(TypeError):
    """The device does not support an operation or dtype; with a remedy."""

    def __init__(self, why: str, remedy: str) -> None:
        super().__init__(why)
        self.remedy = remedy

    @classmethod
    def dtype(cls, place: torch.device, dtype: torch.dtype) -> NotOnDevice:
        convert = ".to(torch.complex64)" if dtype.is_complex else ".float()"
        name = str(dtype).removeprefix("torch.")
        return cls(f"{place.type} does not support {name}", f"convert it before it is moved to {place.type}: {convert}")


class Ended(RuntimeError):
    """A stand-in is used after its rehearsal has ended."""

    remedy = "create the object that holds it again, such as a generator; or create it inside the step"

    def __init__(self, step: str) -> None:
        self.why = (
            f"this tensor is a stand-in of the rehearsal of {step}, which has ended, and has no values: "
            "an object that the step used still holds it"
        )
        super().__init__(f"{self.why}. Fix: {self.remedy}")


class Refused(NamedTuple):
    """An error that torch's own kernels or shape functions raised, not the simulation."""

    error: BaseException


@contextmanager
def outside_simulation() -> Iterator[None]:
    """Disable the simulation for internal operations on the tensors behind the stand-ins."""
    with without_torch_dispatch(), without_torch_function():
        yield


class Over(BaseException):
    """Ends a thread that still runs after its step, when the tensors are real again."""


class Task:
    """A thread or a pool task that the step has started."""

    def __init__(self, daemon: bool) -> None:
        self.daemon = daemon
        self.touched = False  # it has called torch
        self.ended = False


class Made(NamedTuple):
    """The device of a newly created tensor, and its origin; None if torch itself created it."""

    place: torch.device
    origin: Origin | None


class Now(threading.local):
    """The state of the simulation in each thread of the step."""

    making: Callable[[], Made] | None = None  # during a torch call: where it creates tensors
    backward_on = CPU  # where the current backward pass creates tensors
    generator: torch.Generator | None = None  # of the current call: torch's C++ passes on another object
    task: Task | None = None  # the task of this thread; None for the step itself


class SimulatedDevice(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, home: torch.device, *, real: bool, tell: Tell, find: Find, step: str = "a step") -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.home, self.real, self.tell, self.find = home, real, tell, find
        self.meter = Meter()
        self.now = Now()
        self.inference = Inference()
        self.over = False  # the step has ended, or this is another process
        self.step, self.closed = step, False  # its name; whether everything is restored
        self.one_at_a_time = threading.RLock()
        self.left: Line | None = None  # where weights were moved off the device and used there
        self.weights_left = False
        self.saved: dict[int, torch.device] = {}  # devices of the tensors being pickled, by address
        self.not_written: set[str] = set()  # names of the files that the step has saved
        self.refused: Refused | None = None  # the last error of torch's own
        self.lacking: dict[Line, NotOnDevice] = {}  # unsupported dtypes, by the line that uses them
        self.guessed: dict[Line, str] = {}  # lines where shape-only mode substituted a number
        self.unknown: dict[int, Tensor] = {}  # replacements of storages whose bytes are unknown now
        self.cpus: dict[int, tuple[torch.device, Origin | None]] = {}  # answers of `tensor.device`, by id
        self.inside: dict[int, tuple[Tensor, torch.device]] = {}  # real tensors that torch created, and their devices
        self.parted: dict[int, tuple[Tensor, Name]] = {}  # copies for names that were not moved
        self.sent: set[int] = set()  # tensors of datasets that were moved before the step
        self.shadows: dict[int, tuple[Tensor, StandIn]] = {}  # stand-ins of captured tensors
        self.copies: dict[int, tuple[Tensor, Tensor]] = {}  # CPU copies of real tensors on a real device
        self.themselves: dict[int, Itself] = {}  # tensors that stay real: no stand-in can replace them
        self.built: dict[int, Any] = {}  # modules that the step created
        self.pinned: list[weakref.ref[Any]] = []  # the storages behind tensors in pinned memory
        self.default_type: torch.device | None = None  # the device of torch's default tensor type
        self.told_generators: set[int] = set()
        self.default_device: torch.device | None = None  # if it was set before the rehearsal
        self.given_context = default_device_context.__dict__.get("device_context")
        self.roots: dict[Any, Origin] = {}  # shared by origins with the same cause

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True imports torch's compiler; nothing is compiled here

    def note(self, why: str) -> None:
        """Report a synchronization with the device; it is not a failure."""
        self.find(users_line(), "synchronizes", why, "avoid this sync, or call it less often")

    def root(self, *cause: object) -> Origin:
        """The shared origin of one cause, which is reported once."""
        return self.roots.setdefault(cause, bare_root())

    def weight_moved(self, weight: StandIn, place: torch.device) -> None:
        """Record where a weight leaves the device: a device stored before the rehearsal may cause this."""
        if place is self.home:
            weight._left = None
        elif weight._place is self.home:
            weight._left, self.weights_left = users_line(), True

    def close(self) -> None:
        """End the rehearsal and release its records."""
        self.closed = True
        for kept in (
            self.unknown,
            self.cpus,
            self.inside,
            self.shadows,
            self.themselves,
            self.copies,
            self.built,
            self.roots,
            self.saved,
        ):
            kept.clear()

    def check_open(self) -> None:
        """Raise if the rehearsal has ended, except in a thread of the step, which `Over` ends."""
        if self.closed and self.now.task is None:
            raise Ended(self.step)

    # ------------------------------------------------------------ stand-ins

    def storage_for(self, tensor: Tensor, *, weighs: bool = False) -> Tensor:
        """A copy of the storage of a real tensor, as bytes; with shapes only, on meta if large or a weight."""
        with outside_simulation():
            storage = tensor.untyped_storage()
            small = not weighs and storage.nbytes() <= MOST_BYTES
            if (self.real or small) and tensor.device.type != "meta":
                return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage).cpu().clone()
            return torch.empty(storage.nbytes(), dtype=torch.uint8, device="meta")

    def window(self, base: Tensor, like: Tensor) -> Tensor:
        """A view of `base`, a copy of a storage, with the metadata of `like`."""
        with outside_simulation():
            data = like.data
            empty = torch.empty(0, dtype=data.dtype, device=base.device)
            return empty.set_(base.untyped_storage(), data.storage_offset(), data.size(), data.stride())

    def wrap(self, behind: Tensor, place: torch.device, origin: Origin | None) -> StandIn:
        if place is self.home:
            self.meter.see(behind)
            if place.type == "mps" and behind.dtype in _NOT_ON_MPS:
                self.lacking[users_line()] = lacking = NotOnDevice.dtype(place, behind.dtype)
                raise lacking
        made = StandIn(behind, place, self, origin)
        if origin is not None and (origin.tensor is None or origin.tensor() is None):
            origin.tensor = weakref.ref(made)
        return made

    def stand_in(self, tensor: Tensor, place: torch.device, origin: Origin | None) -> StandIn:
        """A stand-in of one real tensor, with a storage of its own."""
        with outside_simulation():
            trained = tensor.requires_grad
        made = self.wrap(self.window(self.storage_for(tensor), tensor), place, origin)
        made.requires_grad_(trained)
        return made

    def adopt(self, made: Any, where: Made | None = None) -> Any:
        """The stand-in of a tensor that torch created from values, and that is real until now."""
        if isinstance(made, StandIn) or not isinstance(made, Tensor):
            return made
        where = where or self.made_now()
        if not _has_stand_in(made):
            return self.itself(made, where.place, where.origin).tensor
        return self.stand_in(made, where.place, where.origin)

    def made_now(self) -> Made:
        """The device and origin of a tensor that is created now."""
        return Made(self.now.backward_on, None) if self.now.making is None else self.now.making()

    def admit(self, each: Any) -> Any:
        """An argument of an operation; a tensor as its stand-in, if it can have one."""
        if isinstance(each, StandIn):
            each._stage.check_open()
            return each
        return self.shadow(each) if _has_stand_in(each) else each

    def shadow(self, tensor: Tensor) -> StandIn:
        """The stand-in of a captured tensor, such as a global. The step writes to this, not to the tensor."""
        if id(tensor) not in self.shadows:
            _, place = self.inside.pop(id(tensor), (None, self.home if id(tensor) in self.sent else None))
            standin = self.stand_in(tensor, place or CPU, None if place else self.outsider(tensor))
            self.shadows[id(tensor)] = (tensor, standin)
        return self.shadows[id(tensor)][1]

    def outsider(self, tensor: Tensor) -> Origin:
        _, name = self.parted.get(id(tensor), (None, None))
        return outsider(tensor, self.home) if name is None else not_sent(name.text, name.owner, self.home)

    def origin_of_copy(self, copy: StandIn) -> Origin | None:
        return None if copy._origin is None else copied(self, copy._origin)

    def itself(self, tensor: Tensor, place: torch.device | None = None, origin: Origin | None = None) -> Itself:
        """The record of a tensor that stays a real tensor."""
        if id(tensor) not in self.themselves:
            known = place is not None or is_lazy(tensor)
            self.themselves[id(tensor)] = Itself(tensor, place or CPU, origin if known else self.outsider(tensor))
        return self.themselves[id(tensor)]

    def send_itself(self, tensor: Tensor, place: torch.device | None, dtype: torch.dtype | None, copy: bool) -> Tensor:
        before = self.itself(tensor)
        if is_lazy(tensor):  # without a shape: the tensor object stays the same
            with outside_simulation():
                tensor.data = tensor.data.to(dtype)
            before._place, before._origin = place or before._place, None if place is self.home else before._origin
            return tensor
        sent = tensor.to(dtype or tensor.dtype, copy=copy or (place is not None and place is not before._place))
        origin = before._origin if place is None or place is before._place else None
        self.themselves[id(sent)] = Itself(sent, place or before._place, origin)  # torch itself created it on the CPU
        return sent

    def cpu_of(self, standin: StandIn) -> torch.device:
        """The CPU as a new object, so that tensors created on `x.device` are traced to the misplaced tensor x."""
        device = torch.device("cpu")
        self.cpus[id(device)] = (device, standin._origin)
        return device

    # ------------------------------------------------------------ operations

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {})) if self.over else self.run(func, args, kwargs or {})

    def goes_on(self) -> bool:
        """Whether operations are still simulated. In a thread of the step that outlives it, raises `Over`."""
        task = self.now.task
        if task is not None:
            task.touched = True
            if self.over:
                raise Over
        return not self.over

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        with self.one_at_a_time, without_torch_function():
            if self.over and self.now.task is not None:
                raise Over
            return self._run(func, args, kwargs)

    def _run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        about = operator(func)
        if about.role == "lift":
            return self.adopt(args[0], Made(CPU, converted(self)) if self.now.making is None else None)
        given: list[Any] = []
        behind = self._opened(args, given)
        if about.role in ("detach", "add"):
            _bring_back(given)
        named = {name: self._opened((each,), given)[0] for name, each in kwargs.items()} if kwargs else kwargs
        if about.role == "empty" and self._is_made_inside(func, args, kwargs):
            return self.made_inside(func, args, kwargs)
        if about.role == "pack":
            self._check_lengths(args[1])
        place = given[0]._place if given else CPU
        for each in given:
            if each._place is not place:
                place = self._check_places(about, func, args, kwargs, given)
                break
        if not given or (self.now.making is not None and kwargs.get("device") is not None):
            where = self.made_now()
            if not given and self.now.making is None and called_by_user():
                # In an autograd hook, where torch skips the function overrides.
                by_type = self.default_type
                where = Made(by_type, None) if by_type else Made(CPU, factory(self, about.name, users_line()))
            place, origin = where
        else:
            origin = _origin_of(given) if place is not self.home else None
        try:
            out = self._done(about, func, behind, named, given)
        except (CannotGoOn, NotFollowed, NotOnDevice):
            raise
        except Exception as error:
            self.refused = Refused(error)
            raise
        if self.weights_left and self.left is None and about.is_pure and func.overloadpacket not in _COPIES:
            self.left = next((each._left for each in given if type(each) is StandIn and each._left), None)
        if about.counts_versions:
            torch.autograd.graph.increment_version([each for each in leaves(args[:1]) if type(each) is StandIn])
        if about.lacks and place is self.home:
            self._check_kernel(about, given)
        if about.draws and self.now.generator is not None:
            self._check_generator(about, place_of_generator(self.now.generator), place)
        if about.role == "weighed" and place is self.home:
            weigh(self.meter, func, behind, out)
        if about.role == "detach" and _accumulates():
            place = self._check_gradient(given[0], place)
            self.meter.mark(out, "gradients")
        if about.returns_first:
            return self.admit(args[0]) if args else out
        if not about.is_pure and torch.is_inference_mode_enabled() and not all(_is_inference(each) for each in given):
            with torch.inference_mode(False):  # a view of an ordinary tensor is no inference tensor
                wrapped = self._wrapped(out, place, origin)
        else:
            wrapped = self._wrapped(out, place, origin)
        if about.role == "pack":
            wrapped = (wrapped[0], self.real_sizes(out[1]))
        return wrapped if about.is_pure else self._aliased(about, func, args, kwargs, wrapped)

    def _opened(self, args: Any, given: list[Any]) -> list[Any]:
        """Arguments with the tensors behind the stand-ins. Adds stand-ins and tensors that stay real to `given`."""
        found: list[Any] = []
        for each in args:
            kind = type(each)
            if kind is StandIn:
                if each._stage is not self:
                    each._stage.check_open()
                if each._result_of_sending is not None:
                    each._result_of_sending.used = True
                if self.unknown:
                    self.knows(each)
                given.append(each)
                found.append(each._behind)
            elif kind is list or kind is tuple:
                found.append(self._opened(each, given))
            elif isinstance(each, Tensor):
                admitted = self.admit(each)
                if admitted is each:
                    given.append(self.itself(each))
                    found.append(self.on_the_cpu(each))
                else:
                    found += self._opened((admitted,), given)
            else:
                found.append(each)
        return found

    def on_the_cpu(self, itself: Tensor) -> Tensor:
        """A tensor that stays real, for computing on the CPU: a copy, if it is on a real device."""
        if itself.device.type in ("cpu", "meta"):
            return itself
        if id(itself) not in self.copies:
            with outside_simulation():
                self.copies[id(itself)] = (itself, itself.cpu())
        return self.copies[id(itself)][1]

    def _check_places(
        self, about: Operator, func: Any, args: Any, kwargs: dict[str, Any], given: list[Any]
    ) -> torch.device:
        """Report misplaced tensors, and return the device of the result."""
        args, kwargs = mapped(self._told_apart, (args, kwargs))
        for stray in strays(func, args, kwargs, self.home):
            self.tell(stray, about.name, users_line())
            if type(stray) is StandIn and stray.grad_fn is not None:
                # As the gradient of `stray.to(device)` does.
                stray.register_hook(partial(self._taken_back, stray._origin))  # type: ignore[no-untyped-call]
            stray._place = self.home  # continue as if it had been fixed
        # A 0-dim tensor on the CPU may go with tensors on the device.
        return next((each._place for each in given if each._place is not CPU), CPU)

    def _taken_back(self, origin: Origin | None, grad: Any) -> Any:
        """The gradient of a tensor computed on the CPU, on the CPU."""
        return self.wrap(grad._behind, CPU, origin) if type(grad) is StandIn else grad

    def _check_generator(self, about: Operator, its: torch.device, place: torch.device) -> None:
        if its is not place and id(self.now.generator) not in self.told_generators:
            self.told_generators.add(id(self.now.generator))
            why = f"{about.name} on {place} with a generator on {its}: torch needs a generator on the same device"
            self.find(users_line(), "generator", why, f"torch.Generator(device={name_of(place)})")

    def _check_gradient(self, gradient: Any, place: torch.device) -> torch.device:
        """Report a gradient that a function or a hook has returned on another device than its leaf."""
        leaf = getattr(current_autograd_node(), "variable", None)
        if type(leaf) is not StandIn or leaf._place is place or gradient.dim() == 0:
            return place
        if place is CPU:
            self.tell(gradient, "a gradient", users_line())
        return leaf._place

    def _check_kernel(self, about: Operator, given: list[Any]) -> None:
        """Report a dtype that the CPU kernel accepts and CUDA lacks; the run continues."""
        dtype = next((each.dtype for each in given if type(each) is StandIn and each.dtype in about.lacks), None)
        if dtype is not None and self.home.type == "cuda":
            why = f"CUDA has no {about.name} kernel for {str(dtype).removeprefix('torch.')}; the CPU has one"
            self.find(users_line(), "dtype", why, "compute it in float32: .float()")

    def _told_apart(self, each: Any) -> Any:
        admitted = self.admit(each)
        return self.itself(each) if isinstance(admitted, Tensor) and type(admitted) is not StandIn else admitted

    def _wrapped(self, out: Any, place: torch.device, origin: Origin | None) -> Any:
        if isinstance(out, Tensor):
            return self.wrap(out, place, origin) if _has_stand_in(out) else self.itself(out, place, origin).tensor
        if isinstance(out, (tuple, list)):
            return type(out)([self._wrapped(each, place, origin) for each in out])
        return out

    def _check_lengths(self, lengths: Any) -> None:
        if type(lengths) is StandIn and lengths._place is not CPU:
            why = f"pack_padded_sequence reads lengths on the CPU, but they are on {lengths._place}"
            self.on_the_host(lengths, why, "lengths")

    def on_the_host(self, tensor: StandIn, why: str, name: str = "x") -> None:
        """Report a tensor on the device that torch reads on the CPU; the run continues as if it were there."""
        self.find(users_line(), "host", why, f"{users_name(tensor) or name}.cpu()")
        tensor._place = CPU

    def refuse_backward(self, outputs: Sequence[Any], why: str, remedy: str) -> None:
        """Report a backward pass through these tensors, which a kernel of CUDA refuses and one of the CPU does not."""
        for each in outputs if self.home.type == "cuda" else ():
            if isinstance(each, StandIn) and each._place is self.home and each.grad_fn is not None:
                each.grad_fn.register_prehook(lambda _: self.refused_backward(why, remedy))

    def refused_backward(self, why: str, remedy: str) -> None:
        self.find(users_line(), "dtype", why, remedy)

    def refuse(self, error: Exception) -> NoReturn:
        """Raise an error as torch does."""
        self.refused = Refused(error)
        raise error

    def real_sizes(self, sizes: Tensor) -> Tensor:
        """The batch sizes of a packed sequence as a real tensor: torch's C++ reads its data pointer."""
        if not is_known(sizes):
            raise CannotGoOn(
                "a packed sequence needs the values of its lengths, which shape-only mode does not compute"
            )
        self.inside[id(sizes)] = (sizes, CPU)
        return sizes

    def _aliased(self, about: Operator, func: Any, args: Any, kwargs: Any, out: Any) -> Any:
        if about.views and type(args[0]) is StandIn and type(out) is StandIn:
            unsafe_set(out, args[0])
            return out
        args, kwargs = mapped(self.admit, (args, kwargs))
        if any(isinstance(each, Tensor) and not isinstance(each, StandIn) for each in leaves((args, kwargs, out))):
            return out  # a sparse tensor has no storage to share
        return return_and_correct_aliasing(func, args, kwargs, out)  # type: ignore[no-untyped-call]

    def _is_made_inside(self, func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
        if self.now.making is None and called_by_user():
            return False  # torch.Tensor(3, 4)
        return self.made_now().origin is None and (self.real or self.fits(func, args, kwargs))

    def made_inside(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Tensor:
        """A real empty tensor for torch's C++, which may write to its data pointer; the next operation wraps it."""
        made: Tensor = func(*args, **{**kwargs, "device": CPU, "pin_memory": False})
        self.inside[id(made)] = (made, self.made_now().place)
        return made

    # ------------------------------------------------------------ the tensors behind the stand-ins

    def knows(self, standin: StandIn) -> bool:
        """Whether its values are known; not after an unknown value was written to its storage."""
        behind = standin._behind
        if not is_known(behind):
            return False
        if not self.unknown:
            return True
        base = self.unknown.get(behind.untyped_storage()._cdata)
        if base is not None:
            standin._behind = self.window(base, behind)
        return base is None

    def state_of_generator(self, state: Any) -> Any:
        """The state of a generator as a real tensor: torch reads its data pointer, on the CPU."""
        if not isinstance(state, StandIn):
            return state
        if state._place is not CPU:
            self.on_the_host(
                state, f"torch reads the state of a generator on the CPU, but it is on {state._place}", "state"
            )
        if not self.knows(state):
            raise CannotGoOn("the state of a generator needs values, which shape-only mode does not compute")
        return state._behind

    def value_of(self, standin: StandIn) -> Tensor:
        """The real tensor to pickle instead of a stand-in."""
        self.check_open()
        if standin._place is not CPU:
            self.note("saving waits for the device and copies values to the CPU")
        if not self.knows(standin):
            raise CannotGoOn("a pickle needs the values of tensors, which shape-only mode does not compute")
        with outside_simulation():
            value = standin._behind.detach().requires_grad_(standin.requires_grad)
            self.saved[value.untyped_storage().data_ptr()] = standin._place
            return nn.Parameter(value, value.requires_grad) if getattr(standin, "_is_param", False) else value

    def fits(self, func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
        """Whether the results of an operation are small enough to be computed."""
        try:
            return nbytes_of(self.inference.shapes(func, args, kwargs)) <= MOST_BYTES
        except (NotImplementedError, RuntimeError):
            return True

    def pin(self, standin: StandIn) -> None:
        self.pinned.append(weakref.ref(standin._behind.untyped_storage()))

    def is_pinned(self, standin: StandIn) -> bool:
        """Whether its storage is in pinned memory."""
        return any(each() is standin._behind.untyped_storage() for each in self.pinned)

    def _done(self, about: Operator, func: Any, args: Any, kwargs: dict[str, Any], given: list[Any]) -> Any:
        if isinstance(kwargs.get("generator"), torch.Generator):
            kwargs = {**kwargs, "generator": on_the_cpu(self.now.generator or kwargs["generator"])}
        if kwargs.get("device") is not None or (about.makes and not given):
            kwargs = {**kwargs, "device": CPU}
        if self.real:
            return _computed(func, args, kwargs)
        known = [self.knows(each) for each in given if type(each) is StandIn]
        if all(known) and (not about.is_pure or self.fits(func, args, kwargs)):
            with suppress(NotImplementedError):  # no CPU kernel, but the shapes are known
                return _computed(func, args, kwargs)
        return self._done_in_shapes(about, func, args, kwargs, given)

    def _done_in_shapes(self, about: Operator, func: Any, args: Any, kwargs: dict[str, Any], given: list[Any]) -> Any:
        if func is _PACK and is_known(args[1]):
            zeros = torch.zeros((), dtype=args[0].dtype).expand(args[0].size())
            packed, sizes = func(zeros, *args[1:], **kwargs)
            return as_shape(packed), sizes
        if func.overloadpacket in _MASKED:
            args = [args[0], _without_masks(args[1]), *args[2:]]
        if not about.is_pure:
            self._forget_written(func, args, kwargs, given)
            args, kwargs = mapped(without_bytes, (args, kwargs))
        try:
            if about.is_pure or about.only_writes:
                return made(self.inference.shapes(func, args, kwargs))
            self.inference.check_dtypes(func, args, kwargs)
            return func(*args, **kwargs)
        except (NotImplementedError, RuntimeError) as error:
            if not schema_of(func).returns:
                return None  # it only writes, to unknown values
            if _NEEDS_VALUES.search(str(error)):
                raise CannotGoOn(f"{about.name} depends on a value that shape-only mode does not compute") from None
            raise

    def _forget_written(self, func: Any, args: Any, kwargs: dict[str, Any], given: list[Any]) -> None:
        """Mark the storages that an operation writes to as unknown."""
        written = {
            id(leaf)
            for argument, value in [*zip(schema_of(func).arguments, args, strict=False), *_named(func, kwargs)]
            if argument.is_write
            for leaf in leaves(value)
        }
        for each in given:
            if type(each) is StandIn and id(each._behind) in written and self.knows(each):
                storage = each._behind.untyped_storage()
                key = storage._cdata
                with outside_simulation():
                    self.unknown[key] = torch.empty(storage.nbytes(), dtype=torch.uint8, device="meta")
                    self.meter.replace(storage, self.unknown[key].untyped_storage())
                weakref.finalize(storage, self.unknown.pop, key, None)
                self.knows(each)


# Not MetaFloatType, torch's name for a tensor in an error about its shape.
_NEEDS_VALUES = re.compile(r"\bmeta\b|data-dependent", re.IGNORECASE)
_COPIES = {aten._to_copy, aten.clone, aten.empty_like, aten.zeros_like, aten.ones_like, aten.randn_like}
_MASKED = {aten.index, aten.index_put, aten.index_put_}
_PACK = aten._pack_padded_sequence.default
_NOT_ON_MPS = {torch.float64, torch.complex128}


def _computed(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute with real bytes; in float32 where the CPU lacks a kernel for a dtype that a GPU has."""
    try:
        return func(*args, **kwargs)
    except RuntimeError as error:
        lacking = _lacking_in(str(error))
        if not lacking or nobody_has(func, lacking):
            raise
        if lacking not in ("Half", "BFloat16") and func.overloadpacket not in ONLY_ON_CUDA:
            raise CannotGoOn(
                f"the CPU has no {func.overloadpacket.__name__} kernel for {lacking}, so a rehearsal cannot compute it"
            ) from error
        dtypes = [each.dtype for each in leaves((args, kwargs)) if isinstance(each, Tensor)]
        lesser = next((dtype for dtype in dtypes if dtype is not torch.float32), None)
        if lesser is None:
            raise
    args, kwargs = mapped(
        lambda each: each.float() if isinstance(each, Tensor) and each.dtype == lesser else each, (args, kwargs)
    )
    return mapped(
        lambda each: each.to(lesser) if isinstance(each, Tensor) and each.dtype is torch.float32 else each,
        func(*args, **kwargs),
    )


def _lacking_in(said: str) -> str:
    """The dtype that the CPU has no kernel for, as the error names it; "" for other errors."""
    if "could not create a primitive" in said:  # oneDNN, of an LSTM
        return "Half"
    found = LACKING.search(said)
    return "" if found is None else found["dtype"]


def _without_masks(indices: Any) -> list[Any]:
    """Replace known masks by their indices, so that the shape of the result is known."""
    found: list[Any] = []
    for each in indices:
        is_mask = isinstance(each, Tensor) and each.dtype in (torch.bool, torch.uint8) and is_known(each)
        found += [as_shape(one) for one in each.nonzero(as_tuple=True)] if is_mask else [each]
    return found


def _has_stand_in(each: Any) -> bool:
    """Whether a stand-in can replace it: not a sparse tensor or an uninitialized parameter."""
    if not isinstance(each, Tensor):
        return False
    if type(each) is Tensor:
        if is_functorch_tensor(each):
            raise NotFollowed("a rehearsal does not support torch.func's transforms: they wrap tensors")
        return is_view_of_storage(each)
    return not is_lazy(each) and is_view_of_storage(each)


def _named(func: Any, kwargs: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    return ((each, kwargs[each.name]) for each in schema_of(func).arguments if each.name in kwargs)


def _origin_of(given: list[Any]) -> Origin | None:
    """The origin of a result: that of the first misplaced input."""
    return next((each._origin for each in given if each._origin is not None), None)


def _is_inference(each: Any) -> bool:
    return type(each) is StandIn and each.is_inference()


def _bring_back(given: list[Any]) -> None:
    """Put the gradient of a 0-dim leaf on the CPU there, as autograd does."""
    node = current_autograd_node()
    leaf = getattr(node, "variable", None)
    if type(leaf) is StandIn and leaf._place is CPU and leaf.dim() == 0:
        for each in given:
            if each.dim() == 0:
                each._place = CPU


def _accumulates() -> bool:
    """Whether autograd is accumulating a gradient into a leaf."""
    node = current_autograd_node()
    return node is not None and node.name().endswith("AccumulateGrad")


# ---------------------------------------------------------------- the memory of the device

_ROUND = 512  # torch's CUDA allocator rounds up to a multiple of this


class _Seen(weakref.ref[Any]):
    """A weak reference to a storage; logs when it is freed."""

    __slots__ = ("key", "meter", "nbytes", "number")
    key: int
    meter: Meter
    nbytes: int
    number: int


class Meter:
    """Log of allocations; `peak` splits it by part after the step, when the use of each storage is known."""

    def __init__(self) -> None:
        self.parts: dict[int, str] = {}  # the use of a storage, by its number in the log; others are activations
        self._log: list[tuple[int, int]] = []  # a storage's number, and the bytes allocated, or freed if negative
        self._living: dict[int, _Seen] = {}
        self._count = 0

    def see(self, behind: Tensor, nbytes: int | None = None) -> None:
        """Log the storage of a tensor on the device, once; `nbytes` if it is larger there."""
        storage = behind.untyped_storage()
        key = storage._cdata
        if key in self._living:
            return
        seen = _Seen(storage, _gone)
        seen.key, seen.meter, seen.number = key, self, self._count
        seen.nbytes = _rounded(storage.nbytes() if nbytes is None else nbytes)
        self._count += 1
        self._living[key] = seen
        self._log.append((seen.number, seen.nbytes))

    def replace(self, storage: Any, other: Any) -> None:
        """Follow another storage from now on, which simulates the same memory."""
        before = self._living.pop(storage._cdata, None)
        if before is not None:
            seen = self._living[other._cdata] = _Seen(other, _gone)
            seen.key, seen.meter, seen.number, seen.nbytes = other._cdata, self, before.number, before.nbytes

    def take(self, nbytes: int) -> None:
        """Log memory that is allocated and freed at once."""
        self._count += 1
        self._log += [(self._count - 1, _rounded(nbytes)), (self._count - 1, -_rounded(nbytes))]

    def forget(self, seen: _Seen) -> None:
        self._log.append((seen.number, -seen.nbytes))
        if self._living.get(seen.key) is seen:
            del self._living[seen.key]

    @property
    def saw_any(self) -> bool:
        return bool(self._log)

    def mark(self, behind: Tensor, part: str) -> None:
        seen = self._living.get(behind.untyped_storage()._cdata)
        if seen is not None:
            self.parts[seen.number] = part

    def peak(self) -> dict[str, int]:
        """The peak in bytes, by part.

        Optimizer state counts from the beginning: every step after the first starts with it.
        """
        log = sorted(self._log, key=lambda entry: self.parts.get(entry[0]) != "optimizer" or entry[1] < 0)
        now = most = at = 0
        for index, (_, size) in enumerate(log):
            now += size
            if now > most:
                most, at = now, index
        parts: defaultdict[str, int] = defaultdict(int)
        for number, size in log[: at + 1] if most else ():
            parts[self.parts.get(number, "activations")] += size
        return {part: size for part, size in parts.items() if size}


def _gone(seen: _Seen) -> None:
    seen.meter.forget(seen)


def _rounded(nbytes: int) -> int:
    return -(-nbytes // _ROUND) * _ROUND


_KEPT, _TAKEN = 5, 6


def weigh(meter: Meter, func: Any, behind: Sequence[Any], out: Any) -> None:
    """Log the extra memory that an operation needs on the device. `behind`: the arguments without stand-ins."""
    if func is aten.mkldnn_rnn_layer.default:
        meter.take(_passing(behind, out[0]))
        if behind[-1] and out[3] is not None:  # it trains
            meter.see(out[3], _KEPT * out[0].nbytes)
    elif func is aten.mkldnn_rnn_layer_backward.default:
        meter.take(_passing(behind, behind[7]))


def _passing(behind: Sequence[Any], output: Tensor) -> int:
    layer, *weights = behind[:5]
    return int(_TAKEN * output.nbytes + layer.nbytes + 2 * sum(weight.nbytes for weight in weights))
