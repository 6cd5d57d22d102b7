"""A fault at every single allocation and at every stage of a move of a hostile state: bit-identical afterwards, the
target's memory back to where it was, in both directions."""

from __future__ import annotations

import functools
import gc
import itertools
import weakref
from collections import OrderedDict, deque, namedtuple
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from card import fill_card
from hostile import Hostile, OwnApply, Snapshot, hostile
from routes import Route
from threads import threads
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.testing._internal.two_tensor import TwoTensor
from zoo import numbers

import torchmove as tm
from torchmove import chain
from torchmove.internals import rebinding as rebinding_module
from torchmove.internals.guards import Undo
from torchmove.internals.storages import has_storage
from torchmove.moving import apply as _apply
from torchmove.moving import apply as _repointing
from torchmove.moving import leftovers as _held
from torchmove.moving import movers
from torchmove.moving.movers.copies import Plain
from torchmove.surveying.inventory import Inventory
from torchmove.testing import refresh
from torchmove.verifying.verify import Finding, Verdict

pytestmark = pytest.mark.twin

TO_TWIN = Route("cpu-twin", "cpu", "twin:0")
FROM_TWIN = Route("twin-cpu", "twin:0", "cpu")
BETWEEN_TWINS = Route("twin-twin", "twin:0", "twin:1")
# Fresh storages on the CPU take the way that CUDA takes: `tensor.data =`.
FRESH = Route("fresh", "cpu", "cpu")
ON_CUDA = [Route("cpu-cuda", "cpu", "cuda:0", "plain"), Route("cuda-cpu", "cuda:0", "cpu", "plain")]
ROUTES = [TO_TWIN, FROM_TWIN, BETWEEN_TWINS, FRESH, *ON_CUDA]
MIB = 1 << 20


def on_routes(*routes: Route) -> Any:
    marked = [pytest.param(each, marks=[pytest.mark.cuda] if each in ON_CUDA else [], id=each.name) for each in routes]
    return pytest.mark.parametrize("route", marked)


on_every_route = on_routes(*ROUTES)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Where cores are few, the threads of the smallest batch norm wait for each other longer than it takes."""
    with threads(1):
        yield


@pytest.fixture(autouse=True)
def _known_device(request) -> None:
    """The twin is asked once whether it has storages, which is an allocation too: not one of the move's."""
    if not request.node.get_closest_marker("cuda"):
        has_storage.cache_clear()
        assert has_storage("twin")


# ---------------------------------------------------------------- traps


class Sprung(RuntimeError):
    """What a trap raises."""


def trapped(real: Callable[..., Any], at: int, *, late: bool = False) -> Callable[..., Any]:
    """A function that does what `real` does, but its `at`-th call raises: before the work, or after it if `late`."""
    calls = itertools.count(1)

    @functools.wraps(real)
    def call(*args: Any, **options: Any) -> Any:
        springs = next(calls) == at
        if springs and not late:
            raise Sprung
        result = real(*args, **options)
        if springs:
            raise Sprung
        return result

    return call


class WatchingMover:
    """The plain mover. Knows which of its copies are alive, and can fail at a block."""

    name = "plain"

    def __init__(self) -> None:
        self.fails_at = 0
        self.made: list[StorageWeakRef] = []

    def copy(self, cargo: Sequence[Any], advance: Callable[[int], object]) -> list[Tensor]:
        copies: list[Tensor] = []
        for number, each in enumerate(cargo, start=1):
            if number == self.fails_at:
                raise torch.OutOfMemoryError("no room for this block")
            copies += Plain().copy([each], advance)
            self.made.append(StorageWeakRef(copies[-1].untyped_storage()))
        return copies

    def finish(self) -> None:
        pass

    def drop(self) -> None:
        pass

    def alive(self) -> int:
        return sum(not each.expired() for each in self.made)


@pytest.fixture
def mover(monkeypatch) -> WatchingMover:
    watching = WatchingMover()
    monkeypatch.setitem(movers._TABLE, "plain", watching)
    return watching


# ---------------------------------------------------------------- an ordeal


def started(state: Hostile, route: Route) -> Hostile:
    route.start(*state.objects)
    return state


def no_more(now: list[int], then: list[int]) -> bool:
    """Less may be: what a training step left lying about was let go in between."""
    return all(each <= before for each, before in zip(now, then, strict=True))


def memory(route: Route) -> list[int]:
    """What is allocated on those of a route's devices that keep accounts."""
    return [allocated(device) for device in (route.home, route.away) if device.type != "cpu"]


def allocated(device: torch.device) -> int:
    return torch.twin.bytes_in_use(device) if device.type == "twin" else torch.cuda.memory_allocated(device)


def assert_untouched(state: Hostile, before: Snapshot) -> None:
    after = state.snapshot()
    for name in before.identity:
        for what in ("identity", "devices", "forms", "bits"):
            assert getattr(after, what)[name] == getattr(before, what)[name], f"the {what} of {name} changed"
    assert after.addresses == before.addresses
    assert after.remembered == before.remembered


def ordeal(
    state: Hostile,
    route: Route,
    mover: WatchingMover,
    attempt: Callable[[int], Any],
    check: Callable[[Exception], None],
    untouched: Hostile | None = None,
) -> int:
    """Attempt a move with a trap at its first chance to spring, its second, and so on, until a move gets through.

    Each time the state is as it was, though the error is at hand and could hold a copy; and it goes on training as does
    one that was left `untouched`. The result is how many errors there were.
    """
    before, used = state.snapshot(), memory(route)
    for number in itertools.count(1):
        mover.made.clear()
        try:
            attempt(number)
        except Exception as error:
            assert_untouched(state, before)
            assert mover.alive() == 0
            assert no_more(memory(route), used)
            check(error)
        else:
            break
        if untouched is not None:
            assert_goes_on_as(state, untouched)
            before, used = state.snapshot(), memory(route)
    assert {state.core.first.weight.device, state.core.device} == {route.away}
    return number - 1


def failed_for(cause: type[Exception]) -> Callable[[Exception], None]:
    def check(error: Exception) -> None:
        assert isinstance(error, tm.MoveFailed)
        assert type(error.__cause__) is cause
        assert "nothing has changed" in str(error)

    return check


def assert_goes_on_as(state: Hostile, untouched: Hostile) -> None:
    state.train()
    untouched.train()
    bits = state.bits()
    assert {name: bits[name] for name in untouched.tensors} == untouched.bits()


# ---------------------------------------------------------------- while copying


def allocations_of_a_move(route: Route) -> int:
    state = started(hostile(), route)
    before = torch.twin.allocations()
    route.there(*state.objects)
    return torch.twin.allocations() - before


@pytest.mark.sampled(1)
@on_routes(TO_TWIN, BETWEEN_TWINS)
def test_a_fault_at_any_allocation_changes_nothing(route, twin, mover):
    state = started(hostile(), route)

    def attempt(number: int) -> None:
        twin.fail_at(number)
        route.there(*state.objects)
        twin.fail_at(0)

    failed = ordeal(state, route, mover, attempt, failed_for(torch.OutOfMemoryError))
    assert failed == allocations_of_a_move(route) > 200


@pytest.mark.slow
@on_routes(TO_TWIN, FROM_TWIN, BETWEEN_TWINS)
def test_a_fault_at_any_copy_changes_nothing(route, twin, mover):
    state = started(hostile(), route)

    def attempt(number: int) -> None:
        twin.fail_copy_at(number)
        route.there(*state.objects)
        twin.fail_copy_at(0)

    assert ordeal(state, route, mover, attempt, failed_for(RuntimeError)) > 200


@pytest.mark.slow
@on_routes(FROM_TWIN, FRESH, *ON_CUDA)
def test_a_fault_at_any_storage_changes_nothing(route, mover):
    state = started(hostile(), route)

    def attempt(number: int) -> None:
        mover.fails_at = number
        route.there(*state.objects)

    failed = ordeal(state, route, mover, attempt, failed_for(torch.OutOfMemoryError))
    assert failed == len(mover.made) > 200


@pytest.mark.slow
@pytest.mark.parametrize("special", [False, True], ids=["plain", "special"])
@on_routes(TO_TWIN, BETWEEN_TWINS)
def test_a_fault_at_any_allocation_of_the_digests_changes_nothing(route, special, twin, mover):
    """The digests are taken again on the target, where they need memory, when the commit is all but over."""
    state = started(hostile((), special=special), route)

    def attempt(number: int) -> None:
        plan = tm.plan(*state.objects, to=route.away, verify="bytes")
        twin.fail_at(number)
        tm.apply(plan)
        twin.fail_at(0)

    failed = ordeal(state, route, mover, attempt, failed_for(torch.OutOfMemoryError))
    assert failed > len(mover.made) + 20  # one for each copy, and those of the digests


# ---------------------------------------------------------------- at each step

COPYING = {
    "cutting a window": (_apply, "view_on"),
    "choosing a way": (_apply, "rebinding"),
}
COMMITTING = {
    "looking back": (_held.OldStorages, "record"),
    "rebinding": (_apply, "rebind"),
    "setting data": (rebinding_module, "_set_data"),
    "setting the data of many": (rebinding_module, "_set_all"),
    "swapping": (torch._C, "_swap_tensor_impl"),
    "rebuilding a composite tensor": (_apply, "composite_rebinding"),
    "setting gradients": (rebinding_module.Gradients, "set"),
    "repointing": (_repointing, "_write"),
    "settling": (_apply, "call_overrides"),
    "a module's own _apply": (OwnApply, "_apply"),
    "proving": (chain, "verify_move"),
    "waiting for the copies": (_apply, "synchronize_device"),
}


def is_taken(route: Route, step: str) -> bool:
    """Between unlike devices all is swapped; where the device stays, none is remembered anew."""
    if step.startswith("setting") and "data" in step:
        return route in (BETWEEN_TWINS, FRESH, *ON_CUDA)
    return step != "repointing" or route is not FRESH


def cases() -> Iterator[Any]:
    for route, (step, place), late in itertools.product(ROUTES, {**COPYING, **COMMITTING}.items(), (False, True)):
        if is_taken(route, step) and not (late and step in COPYING):
            marks = [pytest.mark.cuda] if route in ON_CUDA else []
            yield pytest.param(route, *place, late, marks=marks, id=f"{route}-{'after' if late else 'before'} {step}")


@pytest.mark.sampled(30)
@pytest.mark.parametrize(("route", "owner", "name", "late"), list(cases()))
def test_a_fault_at_any_step_changes_nothing(route, owner, name, late, mover, monkeypatch):
    state, untouched = started(hostile(()), route), started(hostile(()), route)
    real = getattr(owner, name)

    def attempt(number: int) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, trapped(real, number, late=late))
            route.there(*state.objects)

    assert ordeal(state, route, mover, attempt, failed_for(Sprung), untouched)


@pytest.mark.parametrize("at_once", [_apply.AT_ONCE, 3], ids=["all at once", "some at a time"])
@on_routes(BETWEEN_TWINS, FRESH, *ON_CUDA)
def test_a_fault_in_the_midst_of_many_changes_nothing(route, at_once, mover, monkeypatch):
    """Some look at their copies by then, one copy is in nobody's hands, the others wait."""
    monkeypatch.setattr(_apply, "AT_ONCE", at_once)
    state, untouched = started(hostile(()), route), started(hostile(()), route)
    real = rebinding_module._set_all

    def attempt(number: int) -> None:
        spring = trapped(lambda window: window, number)
        with monkeypatch.context() as patch:
            patch.setattr(rebinding_module, "_set_all", lambda tensors, windows: real(tensors, map(spring, windows)))
            route.there(*state.objects)

    assert ordeal(state, route, mover, attempt, failed_for(Sprung), untouched) > 5


def test_a_copy_goes_as_soon_as_its_memory_has_a_new_owner():
    tensors = [torch.zeros(3) for _ in range(4)]
    copies = [torch.full((3,), float(number)) for number in range(4)]
    left = [weakref.ref(copy) for copy in copies]
    seen: list[int] = []

    class Watching(torch.Tensor):
        @property
        def data(self):
            return None

        @data.setter
        def data(self, _):
            seen.append(sum(each() is not None for each in left))

    watched = [tensor.as_subclass(Watching) for tensor in tensors]
    before = [tensor.untyped_storage() for tensor in tensors]
    rebinding_module.rebind_dense(watched, copies, before, list, Undo())
    assert seen[-1] <= 2
    assert copies == []


PLANNING = ("survey_objects", "make_plan", "free_memory")


def sprung(error: Exception) -> None:
    """Planning fails with the very error; only once something could have changed does a move say that it was undone."""
    assert Sprung in (type(error), type(error.__cause__))


@pytest.mark.parametrize("name", PLANNING)
@on_every_route
def test_a_fault_while_planning_changes_nothing(route, name, mover, monkeypatch):
    state, untouched = started(hostile(()), route), started(hostile(()), route)
    real = getattr(chain, name)

    def attempt(number: int) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(chain, name, trapped(real, number))
            route.there(*state.objects)

    assert ordeal(state, route, mover, attempt, sprung, untouched)


class Moody:
    """A holder whose reader raises in the middle of one of its readings."""

    def __init__(self) -> None:
        self.tables, self.readings, self.raises_at = [numbers(2), numbers(3)], 0, 0


@tm.register_reader(Moody)
def read_moody(moody: Moody) -> Iterator[Any]:
    moody.readings += 1
    yield tm.item(0, moody.tables[0])
    if moody.readings == moody.raises_at:
        raise Sprung
    yield tm.item(1, moody.tables[1])


@on_every_route
def test_a_reader_that_raises_at_any_reading_changes_nothing(route, mover):
    state, untouched = hostile(()), started(hostile(()), route)
    state.core.moody = moody = Moody()
    state.tensors |= {"first table": moody.tables[0], "second table": moody.tables[1]}
    started(state, route)

    def attempt(number: int) -> None:
        moody.readings, moody.raises_at = 0, number
        route.there(*state.objects)

    assert ordeal(state, route, mover, attempt, sprung, untouched) > 1


# ---------------------------------------------------------------- when the proof finds something


def finds_something(now: Inventory, *_: Any) -> Verdict:
    return Verdict(len(now.tensors), ("all",), (Finding("V101", "model", "its bytes are not what they were", "none"),))


@on_every_route
def test_a_bad_verdict_is_rolled_back(route, mover, monkeypatch):
    state, untouched = started(hostile(), route), started(hostile(), route)
    mover.made.clear()
    gc.collect()
    before, used = state.snapshot(), memory(route)
    with monkeypatch.context() as patch:
        patch.setattr(chain, "verify_move", finds_something)
        with pytest.raises(tm.VerificationError, match="nothing has changed") as caught:
            route.there(*state.objects)
    assert caught.value.verdict.findings
    assert_untouched(state, before)
    del caught
    gc.collect()
    assert no_more(memory(route), used)
    assert mover.alive() == 0
    assert_goes_on_as(state, untouched)
    route.there(*state.objects)


@on_every_route
def test_the_error_of_a_bad_verdict_holds_no_memory(route, mover, monkeypatch):
    state = started(hostile(()), route)
    mover.made.clear()
    monkeypatch.setattr(chain, "verify_move", finds_something)
    with pytest.raises(tm.VerificationError):
        route.there(*state.objects)
    assert mover.alive() == 0


class LyingMover(WatchingMover):
    """Hands out something else than what it was asked for."""

    def __init__(self, lie: Callable[[list[Tensor]], list[Tensor]]) -> None:
        super().__init__()
        self.lie = lie

    def copy(self, cargo: Sequence[Any], advance: Callable[[int], object]) -> list[Tensor]:
        return self.lie(super().copy(cargo, advance))


def elsewhere(copies: list[Tensor]) -> list[Tensor]:
    return [copy.to("twin:1") for copy in copies]


def one_for_all(copies: list[Tensor]) -> list[Tensor]:
    largest = max(copies, key=lambda copy: copy.nbytes)
    return [largest] * len(copies)


def flip_a_bit(number: int) -> Callable[[list[Tensor]], list[Tensor]]:
    def lie(copies: list[Tensor]) -> list[Tensor]:
        copies[number].reshape(-1).view(torch.uint8)[-1] ^= 1
        return copies

    return lie


def assert_found_out(state: Hostile, lie: Callable[[list[Tensor]], list[Tensor]], code: str) -> None:
    before, used, mover = state.snapshot(), torch.twin.bytes_in_use(), LyingMover(lie)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(movers._TABLE, "plain", mover)
        with pytest.raises(tm.VerificationError, match="nothing has changed") as caught:
            tm.move(*state.objects, to="twin:0", verify="bytes")
    assert code in {finding.code for finding in caught.value.verdict.findings}
    assert_untouched(state, before)
    assert mover.alive() == 0
    assert torch.twin.bytes_in_use() <= used


@pytest.mark.parametrize(("lie", "code"), [(elsewhere, "V401"), (one_for_all, "V202")])
def test_a_mover_that_copies_wrongly_is_detected(lie, code):
    assert_found_out(hostile(()), lie, code)


@pytest.mark.parametrize("special", [False, True], ids=["plain", "special"])
def test_a_bit_flipped_in_any_storage_is_detected(special):
    state = hostile((), special=special)
    moves = tm.plan(*state.objects, to="twin:0").moves
    for number in [index for index, move in enumerate(moves) if move.storage.nbytes]:
        assert_found_out(state, flip_a_bit(number), "V101")


# ---------------------------------------------------------------- room


@pytest.mark.parametrize(
    "make",
    [functools.partial(hostile, (), special=False), hostile],
    ids=["plain", "all"],
)
@on_routes(TO_TWIN, BETWEEN_TWINS)
def test_room_that_is_lost_after_planning_is_a_failure_that_changes_nothing(route, make, twin, mover):
    state, untouched = started(make(), route), started(make(), route)
    plan = tm.plan(*state.objects, to=route.away)

    def attempt(number: int) -> None:
        room = plan.nbytes * number // 5
        twin.limit_bytes(twin.bytes_in_use(route.away) + room, route.away)
        try:
            tm.apply(plan)
        finally:
            twin.limit_bytes(-1)

    assert ordeal(state, route, mover, attempt, failed_for(torch.OutOfMemoryError), untouched) == 4


@on_routes(TO_TWIN, BETWEEN_TWINS)
def test_too_little_room_is_refused_and_just_enough_is_enough(route, twin):
    state = started(hostile(), route)
    before, needs = state.snapshot(), tm.plan(*state.objects, to=route.away).nbytes
    twin.limit_bytes(twin.bytes_in_use(route.away) + needs - 1, route.away)
    with pytest.raises(tm.MoveRefused, match=r"R042 .*needs .* KiB, has .* KiB") as caught:
        route.there(*state.objects)
    assert [refusal.code for refusal in caught.value.refusals] == ["R042"]
    assert_untouched(state, before)
    del caught  # it holds the plan, the plan holds parts of sparse tensors, and they hold the old memory
    twin.limit_bytes(twin.bytes_in_use(route.away) + needs, route.away)
    route.there(*state.objects)
    assert state.core.first.weight.device == route.away


@pytest.mark.cuda
@pytest.mark.whole_card
def test_a_card_that_fills_up_after_planning_is_a_failure_that_changes_nothing(mover):
    """There is room for the first of four large tensors, and for no more."""
    state = hostile()
    state.core.large = {f"large{index}": numbers(16 * MIB) for index in range(4)}
    state.tensors |= state.core.large
    before, plan = state.snapshot(), tm.plan(*state.objects, to="cuda:0")
    filling = fill_card(leaving=100 * MIB)
    used = torch.cuda.memory_allocated()
    with pytest.raises(tm.MoveFailed) as caught:
        tm.apply(plan, mover="plain")
    failed_for(torch.OutOfMemoryError)(caught.value)
    assert torch.cuda.memory_allocated() == used
    assert mover.alive() == 0
    assert_untouched(state, before)
    del filling, caught
    torch.cuda.empty_cache()
    tm.move(*state.objects, to="cuda:0")
    assert state.bits() == before.bits
    assert state.core.large["large3"].device == torch.device("cuda:0")


# ---------------------------------------------------------------- single states

Pair = namedtuple("Pair", "device other")


@pytest.mark.parametrize("held", [deque([torch.device("cpu")]), Pair(torch.device("cpu"), 1)], ids=["deque", "named"])
def test_a_device_remembered_where_it_cannot_be_written_does_not_stop_a_move(held, twin):
    model = nn.Linear(2, 2)
    model.held = held
    tm.move(model, to="twin:0")
    assert model.weight.device == torch.device("twin:0")


def test_a_device_remembered_in_a_param_group_moves_along(twin):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD([{"params": model.parameters(), "device": torch.device("cpu")}])
    tm.move(model, optimizer, to="twin:0")
    assert model.weight.device == optimizer.param_groups[0]["device"] == torch.device("twin:0")


def test_a_dict_with_an_entry_for_each_device_loses_none(twin):
    here, there = numbers(1), numbers(2).to("twin:0")
    state = {"found": {torch.device("cpu"): here, torch.device("twin:0"): there}}
    try:
        tm.move(state, to="twin:0")
    except tm.TorchmoveError:
        assert list(state["found"]) == [torch.device("cpu"), torch.device("twin:0")]
    assert {id(entry) for entry in state["found"].values()} == {id(here), id(there)}


def test_an_ordered_dict_keyed_by_device_moves(twin):
    found = OrderedDict({torch.device("cpu"): numbers(1), "other": numbers(2)})
    tm.move(found, to="twin:0")
    assert list(found) == [torch.device("twin:0"), "other"]


def test_nothing_is_raised_once_all_has_moved(twin):
    """A lazy parameter that is no part of the state, and an old storage that is still held."""
    model, lazy = nn.Linear(2, 2), nn.LazyLinear(2)
    held = model.weight.detach()
    receipt = tm.move(model, to="twin:0")
    assert [each.path.what for each in receipt.held] == ["weight"]
    assert held.device.type == lazy.weight.device.type == "cpu"


def test_a_plan_that_was_applied_leaves_no_old_memory_held(twin):
    table = torch.eye(3).to_sparse()
    receipt = tm.apply(tm.plan(table, to="twin:0"))
    assert receipt.held == ()


def test_a_device_that_is_full_when_it_is_first_asked_is_asked_properly(twin):
    has_storage.cache_clear()
    twin.fail_at(1)
    model = nn.Linear(2, 2)
    with pytest.raises((tm.MoveFailed, torch.OutOfMemoryError)):
        tm.move(model, to="twin:0")
    assert has_storage("twin")


@pytest.mark.xfail(reason="Module._apply makes a wrapper parameter anew even if there is nothing to do, parts included")
def test_a_module_with_an_apply_of_its_own_may_have_a_wrapper_parameter(route):
    model = OwnApply(2, 2)
    model.pair = nn.Parameter(TwoTensor(numbers(2), numbers(2)))
    route.start(model)
    route.there(model)
    assert model.pair.device == route.away


def test_a_cache_that_cannot_be_given_back_does_not_hide_the_failure(twin, monkeypatch):
    """As on a card that answers every call with the same error."""
    model = nn.Linear(2, 2)
    monkeypatch.setattr(_apply, "release_cached_memory", trapped(_apply.release_cached_memory, 1))
    twin.fail_at(1)
    with pytest.raises(tm.MoveFailed) as caught:
        tm.move(model, to="twin:0")
    failed_for(torch.OutOfMemoryError)(caught.value)


class Restless(nn.Module):
    """Does something to its weight when it is moved, which the proof finds, or fails on the way."""

    def __init__(self, change: Callable[[Tensor], Tensor], *, fails: bool) -> None:
        super().__init__()
        self.weight, self.change, self.fails = nn.Parameter(torch.arange(6.0).view(2, 3)), change, fails
        self.restless = False

    def _apply(self, *_: Any) -> Any:
        if self.restless:
            self.weight.data = self.change(self.weight.data)
            if self.fails:
                raise RuntimeError("not in the mood")
        return self


CHANGES = {"dtype": lambda data: data.half(), "shape": lambda data: data.repeat(2, 2), "stride": Tensor.t}


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("away", ["twin:1", "twin:0"])
def test_what_a_module_does_to_its_weight_is_undone_with_the_rest(away, change, fails, twin):
    model = Restless(CHANGES[change], fails=fails)
    tm.move(model, to="twin:0")
    model.restless, address = True, model.weight.data_ptr()
    with pytest.raises((tm.VerificationError, tm.MoveFailed)):
        refresh(model) if away == "twin:0" else tm.move(model, to=away)
    weight = model.weight
    assert (weight.device, weight.dtype, weight.data_ptr()) == (torch.device("twin:0"), torch.float32, address)
    assert weight.tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("make", [Tensor.to_sparse, Tensor.to_sparse_csr])
def test_the_digests_cover_sparse_tensors(make, monkeypatch, twin):
    state = {"sparse": make(torch.eye(3))}
    real = Plain.copy

    def copy(self: Plain, load: Any, advance: Any) -> list[Tensor]:
        copies = real(self, load, advance)
        copies[-1].view(torch.uint8)[0] += 1
        return copies

    monkeypatch.setattr(Plain, "copy", copy)
    with pytest.raises(tm.VerificationError, match="V101"):
        tm.move(state, to="twin:0", verify="bytes")
    assert state["sparse"].to_dense().tolist() == torch.eye(3).tolist()


def test_a_window_that_moved_on_since_the_plan_is_refused(twin):
    large = numbers(100_000)
    table = large[:4]
    plan = tm.plan(table, to="twin:0")
    table.set_(large.untyped_storage(), 90_000, (4,), (1,))
    with pytest.raises(tm.MoveRefused, match="R013"):
        tm.apply(plan)
    assert table.tolist() == large[90_000:90_004].tolist()


def test_a_gradient_of_another_dtype_than_its_parameter_moves_along(twin):
    model = nn.Linear(2, 2).bfloat16()
    model.weight.grad_dtype = model.bias.grad_dtype = torch.float32
    model.weight.grad = numbers(2, 2)
    tm.move(model, to="twin:0")
    assert model.weight.grad.device == torch.device("twin:0")
    assert model.weight.grad_dtype is model.bias.grad_dtype is torch.float32


def test_a_gradient_that_torch_would_not_take_again_moves_along_or_fails_properly(twin):
    """`.data =` has made the parameter a double under its gradient."""
    model = nn.Linear(2, 2)
    model.weight.grad = gradient = numbers(2, 2)
    model.weight.data = model.weight.data.double()
    try:
        tm.move(model, to="twin:0")
    except tm.MoveFailed:
        assert model.weight.device.type == "cpu"
    assert model.weight.grad is gradient
    assert model.weight.device == gradient.device
