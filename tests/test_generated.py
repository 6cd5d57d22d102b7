"""States that nobody thought of: generated, and obeying the same laws as the zoo.

The generator keeps its own list of every tensor it made, so that nothing has to be believed of torchmove's survey.
"""

from __future__ import annotations

import functools
import types
import warnings
from collections import OrderedDict, UserDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from laws import Trace, addresses, aliases, assert_same, trace
from routes import Route
from torch import Tensor, nn, optim
from torch.testing._internal.two_tensor import TwoTensor

import torchmove as tm

pytestmark = pytest.mark.twin

EXAMPLES = 60
generated = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128]
DTYPES += [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float8_e4m3fn]
SHAPES = [(), (0,), (1,), (7,), (64,), (3, 4), (2, 0, 3), (1, 5), (2, 3, 4, 5), (2000,)]
NAMES = ["alpha", "beta", "gamma", "delta"]


@dataclass
class Made:
    """A state, and all that its maker knows of it."""

    objects: tuple[Any, ...]
    moves: dict[str, Tensor]
    stays: dict[str, Tensor]
    contents: list[Callable[[], list[int]]]
    devices: list[Callable[[], Any]]

    def everything(self) -> dict[str, Tensor]:
        return {**self.moves, **self.stays}


Pair = namedtuple("Pair", "left right")


@dataclass
class Box:
    inside: Any


@dataclass(frozen=True)
class Sealed:
    inside: Any


class Slotted:
    __slots__ = ("inside",)

    def __init__(self, inside: Any) -> None:
        self.inside = inside


class Tagged(Tensor):
    """A plain subclass."""


class Maker:
    """Makes a state, asking hypothesis for every decision."""

    def __init__(self, draw: Callable[..., Any]) -> None:
        self.draw = draw
        self.moves: dict[str, Tensor] = {}
        self.stays: dict[str, Tensor] = {}
        self.contents: list[Callable[[], list[int]]] = []
        self.devices: list[Callable[[], Any]] = []
        self.loose: list[Tensor] = []  # what shares memory with others and is held by none of them

    def one_of(self, *choices: Any) -> Any:
        return self.draw(st.sampled_from(choices))

    def count(self, most: int) -> int:
        return self.draw(st.integers(0, most))

    def chance(self) -> bool:
        return self.draw(st.booleans())

    def record(self, what: str, tensor: Tensor, *, stays: bool = False) -> Tensor:
        tensors = self.stays if stays else self.moves
        if not any(tensor is known for known in tensors.values()):
            tensors[f"{len(self.moves) + len(self.stays)} {what}"] = tensor
        return tensor

    # ------------------------------------------------------------ tensors

    def tensor(self) -> Tensor:
        return self.one_of(self.fresh, self.parameter, self.special, self.again, self.window, self.window)()

    def again(self) -> Tensor:
        return self.one_of(*self.moves.values()) if self.moves else self.fresh()

    def fresh(self) -> Tensor:
        made = filled(self.one_of(*SHAPES), self.one_of(*DTYPES))
        if made.dim() == 4 and self.chance():
            made = made.contiguous(memory_format=torch.channels_last)
        return self.hang_on(self.record("fresh", made))

    def parameter(self) -> Tensor:
        """A leaf that trains: a Parameter or not, over memory of its own or over a window."""
        dtype = self.one_of(torch.float32, torch.float64, torch.bfloat16, torch.complex64)
        data = filled(self.one_of((3,), (2, 4), (4, 1)), dtype)
        shared = [each for each in self.moves.values() if can_train(each)]
        if shared and self.chance():
            data = self.one_of(*shared).detach()
        made = nn.Parameter(data) if self.chance() else data.requires_grad_()
        self.record("parameter", made)
        self.give_gradient(made)
        return self.hang_on(made)

    def give_gradient(self, tensor: Tensor) -> None:
        if not tensor.numel() or self.chance():
            return
        if self.chance():
            bucket = filled((tensor.numel() + 3,), tensor.dtype)
            tensor.grad = bucket[2 : 2 + tensor.numel()].view(tensor.shape)
            self.hold_loose("bucket", bucket)
        else:
            tensor.grad = filled(tuple(tensor.shape), tensor.dtype)
        self.record("gradient", tensor.grad)

    def window(self) -> Tensor:
        """Another tensor that looks at memory of one that is there."""
        bases = [each for each in self.moves.values() if is_window(each)]
        if not bases:
            return self.fresh()
        views = views_of(self.one_of(*bases).detach())
        name = self.one_of(*views)
        return self.hang_on(self.record(name, views[name]))

    def special(self) -> Tensor:
        kind = self.one_of(sparse_coo, sparse_csr, pair, tagged, inferred, jagged)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch announces that some of these are in beta
            made, parts = kind()
        for part in parts:
            self.hold_loose(f"part of {kind.__name__}", part)
        if self.chance() and kind in (sparse_coo, sparse_csr):
            made = nn.Parameter(made)
        if kind is pair:
            self.record("inside a pair", made.a)
            self.record("inside a pair", made.b)
        return self.record(kind.__name__, made)

    def hold_loose(self, what: str, tensor: Tensor) -> None:
        if self.chance():
            self.loose.append(self.record(what, tensor))

    def hang_on(self, tensor: Tensor) -> Tensor:
        """Now and then a tensor carries others: in attributes, in the closures of its hooks."""
        if self.count(4) == 0 and not tensor.is_inference():
            tensor.label = [self.record("hung on", filled((2,), torch.float32))]
        if tensor.requires_grad and self.count(2) == 0:
            scale = self.record("in a hook", filled((1,), torch.float32))
            tensor.register_hook(lambda gradient: gradient * scale)
        if tensor.requires_grad and self.count(2) == 0:
            offset = self.record("in a late hook", filled((1,), torch.float32))
            tensor.register_post_accumulate_grad_hook(functools.partial(print, offset))
        return tensor

    # ------------------------------------------------------------ holders

    def thing(self, depth: int) -> Any:
        if depth == 0 or self.count(2) == 0:
            return self.tensor()
        return self.holder(depth)

    def holder(self, depth: int) -> Any:
        inside = [self.thing(depth - 1) for _ in range(1 + self.count(2))]
        make = self.one_of(*HOLDERS)
        held = make(inside)
        self.contents.append(lambda: [id(each) for each in opened(held)])
        return held

    def module(self, depth: int) -> nn.Module:
        module = self.one_of(*MODULES)()
        self.record_module("of a module", module)
        for name in NAMES[: self.count(3)]:
            value = self.module(depth - 1) if depth and self.chance() else self.thing(depth)
            if isinstance(value, Tensor) and not isinstance(value, nn.Parameter) and self.chance():
                module.register_buffer(name, value, persistent=self.chance())
            else:
                setattr(module, name, value)
        if self.chance():
            self.remember_device(module)
        return self.hook(module)

    def record_module(self, what: str, module: nn.Module) -> None:
        for tensor in (*module.parameters(), *module.buffers()):
            self.record(what, tensor)
            if tensor.grad is not None:
                self.record(f"gradient {what}", tensor.grad)

    def remember_device(self, module: nn.Module) -> None:
        module.device, module.places = torch.device("cpu"), {"main": torch.device("cpu")}
        self.devices += [lambda: module.device, lambda: module.places["main"]]

    def hook(self, module: nn.Module) -> nn.Module:
        if self.count(2) == 0:
            shift = self.record("in a module's hook", filled((1,), torch.float32))
            register = self.one_of(module.register_forward_hook, module.register_full_backward_hook)
            register(lambda *_: shift)
        return module

    # ------------------------------------------------------------ training

    def trained(self) -> tuple[Any, ...]:
        """A model, its optimizer after some steps, and what goes with them."""
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4))
        if self.chance():
            model[2].weight = nn.Parameter(model[0].weight.detach().new_ones(4, 4))
        else:
            model.extra = self.module(1)
        kind, options = self.one_of(*OPTIMIZERS)
        optimizer = kind(model[:3].parameters(), **options)
        steps = self.count(3)
        for _ in range(steps):
            train(model, optimizer)
        self.record_training(model, optimizer)
        return (model, optimizer, *self.companions(optimizer))

    def record_training(self, model: nn.Module, optimizer: optim.Optimizer) -> None:
        self.record_module("trained", model)
        for state in optimizer.state.values():
            for key, value in state.items():
                entries = value if isinstance(value, list) else [value]
                for entry in entries:
                    if isinstance(entry, Tensor):
                        stays = key in ON_CPU and type(optimizer) is not optim.ASGD and entry.dim() == 0
                        self.record(f"{type(optimizer).__name__} {key}", entry, stays=stays)
        rate = optimizer.param_groups[0]["lr"]
        if isinstance(rate, Tensor):
            self.record("lr", rate, stays=True)

    def companions(self, optimizer: optim.Optimizer) -> list[Any]:
        made: list[Any] = []
        if self.chance():
            average = optim.swa_utils.AveragedModel(nn.Linear(2, 2))
            average.update_parameters(nn.Linear(2, 2))
            self.record_module("average", average)
            made.append(average)
        if self.chance() and not isinstance(optimizer.param_groups[0]["lr"], Tensor):
            made.append(optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.9**epoch))
        return made

    def state(self) -> Made:
        objects: list[Any] = [*self.trained()] if self.chance() else [self.module(2)]
        objects += [self.holder(2) for _ in range(self.count(2))]
        self.loose += [self.window() for _ in range(self.count(6))]
        return Made((*objects, self.loose), self.moves, self.stays, self.contents, self.devices)


# ---------------------------------------------------------------- what there is to choose from


def filled(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Any bits, those of numbers that are none included."""
    count = torch.Size(shape).numel()
    if dtype is torch.bool:
        return torch.randint(0, 2, shape).bool()
    return torch.randint(0, 256, (count * dtype.itemsize,), dtype=torch.uint8).view(dtype).reshape(shape)


def is_window(tensor: Tensor) -> bool:
    """A plain tensor that shows something, and of which views can be had."""
    plain = type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided and not tensor.is_nested
    return plain and tensor.numel() > 0 and not tensor.is_inference()


def can_train(tensor: Tensor) -> bool:
    return is_window(tensor) and (tensor.is_floating_point() or tensor.is_complex())


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "alias": lambda base: base,
    "slice": lambda base: base[1::2],
    "end": lambda base: base[-2:],
    "nothing": lambda base: base[1:1],
    "transposed": lambda base: base.transpose(0, -1),
    "expanded": lambda base: base.expand(5, *base.shape),
    "element": lambda base: base.select(0, 0),
    "sliding": lambda base: base.unfold(0, 3, 2),
    "diagonal": lambda base: base.diagonal(),
    "bytes": lambda base: base.view(torch.uint8),
    "shorts": lambda base: base.view(torch.int16),
    "conjugated": lambda base: base.conj(),
    "negated": lambda base: base.conj().imag,
    "real": lambda base: base.real,
    "pairs": torch.view_as_real,
    "complex": torch.view_as_complex,
}


def views_of(base: Tensor) -> dict[str, Tensor]:
    """The views that it allows."""
    made = {}
    for name, view in VIEWS.items():
        with suppress(RuntimeError, IndexError, TypeError):
            made[name] = view(base)
    return made


Special = tuple[Tensor, list[Tensor]]


def sparse_coo() -> Special:
    values = filled((3,), torch.float32)
    return torch.sparse_coo_tensor([[0, 1, 1], [2, 0, 2]], values, (2, 3), check_invariants=True), [values]


def sparse_csr() -> Special:
    values = filled((3,), torch.float32)
    return torch.sparse_csr_tensor([0, 1, 3], [2, 0, 2], values, (2, 3), check_invariants=True), [values]


def pair() -> Special:
    both = [filled((3,), torch.float32), filled((3,), torch.float32)]
    return TwoTensor(*both), both[:1]


def tagged() -> Special:
    return filled((3,), torch.float32).as_subclass(Tagged), []


def inferred() -> Special:
    with torch.inference_mode():
        base = filled((4,), torch.float32)
        return base[1:], [base]


def jagged() -> Special:
    parts = [filled((2, 3), torch.float32), filled((4, 3), torch.float32)]
    return torch.nested.nested_tensor(parts, layout=torch.jagged), []


def closure(inside: list[Any]) -> Any:
    return lambda: inside[0]


def with_defaults(inside: list[Any]) -> Any:
    def function(first: Any = inside[0], *, rest: Any = tuple(inside[1:])) -> Any:
        return first, rest

    return function


def cached(inside: list[Any]) -> Any:
    """Nothing but the cache holds them."""
    left = inside[::-1]

    @functools.lru_cache
    def give(_: int) -> Any:
        return left.pop()

    for number in range(len(left)):
        give(number)
    return give


def bound(inside: list[Any]) -> Any:
    return types.MethodType(print, inside)


def as_set(inside: list[Any]) -> set[Any]:
    return {each if isinstance(each, Tensor) else closure([each]) for each in inside}


def by_names(kind: Callable[..., Any]) -> Callable[[list[Any]], Any]:
    return lambda inside: kind(dict(zip(NAMES, inside, strict=False)))


HOLDERS: list[Callable[[list[Any]], Any]] = [
    *(list, tuple, deque, by_names(dict), by_names(OrderedDict), by_names(functools.partial(defaultdict, list))),
    *(Box, Sealed, Slotted, closure, with_defaults, cached, bound),
    lambda inside: types.SimpleNamespace(one=inside[0], rest=inside),
    lambda inside: UserDict(dict(zip(NAMES, inside, strict=False))),
    lambda inside: [as_set(inside), inside[1:]],
    lambda inside: [dict.fromkeys(as_set(inside), "a value"), inside],
    lambda inside: Pair(inside[0], inside[1:]),
    lambda inside: functools.partial(print, *inside, key=inside[0]),
    lambda inside: {1: inside, "nested": {"again": inside[-1]}},
]


def opened(held: Any) -> list[Any]:
    """What is in a holder, one step down, as far as Python shows it."""
    if isinstance(held, (list, tuple, deque)):
        return list(held)
    if isinstance(held, (dict, UserDict)):
        return list(held.values())
    if isinstance(held, functools.partial):
        return [*held.args, *held.keywords.values()]
    if isinstance(held, types.MethodType):
        return held.__self__
    if isinstance(held, types.FunctionType):
        cells = [cell.cell_contents for cell in held.__closure__ or ()]
        return [*cells, *(held.__defaults__ or ()), *(held.__kwdefaults__ or {}).values()]
    return [held.inside] if hasattr(held, "inside") else []


def with_sparse_gradient() -> nn.Module:
    module = nn.Embedding(5, 2, sparse=True)
    module(torch.tensor([1, 3])).sum().backward()
    return module


MODULES: list[Callable[[], nn.Module]] = [
    nn.Module,
    lambda: nn.Linear(2, 3),
    lambda: nn.BatchNorm1d(3),
    lambda: nn.Embedding(4, 2),
    lambda: nn.LSTM(2, 2, num_layers=2),
    lambda: nn.MultiheadAttention(4, 2),
    lambda: nn.Conv2d(1, 2, 3).to(memory_format=torch.channels_last),
    lambda: nn.Sequential(nn.LayerNorm(3), nn.Linear(3, 2).bfloat16()),
    lambda: nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)),
    lambda: nn.ParameterDict({"one": filled((2,), torch.float32), "other": filled((2,), torch.float64)}),
    lambda: nn.LazyLinear(2),
    with_sparse_gradient,
]


OPTIMIZERS: list[tuple[Any, dict[str, Any]]] = [
    (optim.SGD, {"lr": 0.1}),
    (optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    (optim.Adam, {"amsgrad": True}),
    (optim.AdamW, {"foreach": True}),
    (optim.AdamW, {"lr": torch.tensor(0.01), "foreach": False}),
    *((kind, {}) for kind in (optim.NAdam, optim.RAdam, optim.Adamax, optim.Adadelta, optim.Adagrad)),
    *((kind, {}) for kind in (optim.RMSprop, optim.Rprop, optim.ASGD, optim.LBFGS)),
]
# What optimizers keep on the CPU whatever they train, ASGD excepted.
ON_CPU = {"step", "mu_product"}


def train(model: nn.Module, optimizer: optim.Optimizer) -> None:
    def loss() -> Tensor:
        optimizer.zero_grad()
        value = model[:3](torch.linspace(-1, 1, 6).view(2, 3)).square().sum()
        value.backward()
        return value

    optimizer.step(loss)


@st.composite
def states(draw: Callable[..., Any]) -> Made:
    torch.manual_seed(0)
    made = Maker(draw).state()
    note(f"the tensors: {', '.join(made.everything())}")
    return made


# ---------------------------------------------------------------- the laws


def parts(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The memory of sparse tensors, seen through objects made for the occasion."""
    return {f"{name}.values": values_of(each) for name, each in tensors.items() if each.layout is not torch.strided}


def values_of(tensor: Tensor) -> Tensor:
    if tensor.is_nested:
        return tensor.values()
    return tensor.detach()._values() if tensor.layout is torch.sparse_coo else tensor.detach().values()


def sharing(made: Made) -> frozenset[Any]:
    everything = made.everything()
    return aliases({**everything, **parts(everything)})


class Look:
    """All that a move must leave as it is."""

    def __init__(self, made: Made) -> None:
        self.trace: Trace = trace(made.everything())
        self.sharing = sharing(made)
        self.contents = [look() for look in made.contents]

    def assert_same(self, made: Made) -> None:
        now = Look(made)
        assert_same(self.trace, now.trace)
        assert now.sharing == self.sharing
        assert now.contents == self.contents


def assert_at(made: Made, place: torch.device) -> None:
    assert {name: tensor.device for name, tensor in made.moves.items() if tensor.device != place} == {}
    assert {name: tensor.device for name, tensor in made.stays.items() if tensor.device.type != "cpu"} == {}
    if made.moves:
        assert {look() for look in made.devices} <= {place}


def assert_surveyed(made: Made) -> None:
    inventory = tm.survey(*made.objects)
    found = {id(each.tensor) for each in (*inventory.tensors, *inventory.composites)}
    assert [name for name, tensor in made.everything().items() if id(tensor) not in found] == []


ROUTES = [Route("fresh", "cpu", "cpu"), Route("twin", "cpu", "twin:0"), Route("twins", "twin:0", "twin:1")]


@pytest.mark.parametrize("route", ROUTES, ids=repr)
@generated
@given(made=states())
def test_a_generated_state_goes_there_and_back_bit_for_bit(route, made):
    route.start(*made.objects)
    before = Look(made)
    assert_surveyed(made)
    receipt = route.there(*made.objects)
    before.assert_same(made)
    assert_at(made, route.away)
    assert receipt.held == ()
    route.back(*made.objects)
    before.assert_same(made)
    assert_at(made, route.home)


@generated
@given(made=states())
def test_a_second_move_of_a_generated_state_is_a_no_op(made):
    tm.move(*made.objects, to="twin:0", verify="bytes")
    before, places = Look(made), addresses(made.everything())
    assert not tm.move(*made.objects, to="twin:0").plan.moves
    assert addresses(made.everything()) == places
    before.assert_same(made)


@generated
@given(made=states())
def test_planning_moves_nothing_of_a_generated_state(made):
    before, places, used = Look(made), addresses(made.everything()), torch.twin.bytes_in_use()
    assert tm.plan(*made.objects, to="twin:0", verify="bytes").ok
    assert torch.twin.bytes_in_use() == used
    assert addresses(made.everything()) == places
    before.assert_same(made)


@pytest.mark.parametrize("route", ROUTES[1:], ids=repr)
@generated
@given(made=states(), when=st.integers(1, 30))
def test_a_failed_move_of_a_generated_state_changes_nothing(route, made, when, twin):
    route.start(*made.objects)
    before, places, used = Look(made), addresses(made.everything()), twin.bytes_in_use()
    if fails(route, made, twin, when):
        assert twin.bytes_in_use() == used
        assert addresses(made.everything()) == places
        before.assert_same(made)
        route.there(*made.objects)
    before.assert_same(made)
    assert_at(made, route.away)


def fails(route: Route, made: Made, twin: Any, when: int) -> bool:
    twin.fail_at(when)
    try:
        route.there(*made.objects)
    except tm.MoveFailed:
        return True
    finally:
        twin.fail_at(0)
    return False
