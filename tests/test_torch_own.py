"""Every module and every optimizer that torch lists for its own tests obeys the laws, and trains on undisturbed."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from laws import assert_same, trace
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch_own import (
    CPU,
    FIRST_STEPS,
    MODULES,
    OPTIMIZERS,
    ModuleCase,
    OptimizerCase,
    Training,
    flag_sets,
    module_cases,
    optimizer_cases,
)

import torchmove as tm

pytestmark = [pytest.mark.twin, pytest.mark.filterwarnings("ignore")]  # torch has much to say about its own samples

# cuBLAS reads this when it is first used; without it, it does not promise the same bits twice.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":16:8")

Places = Sequence[torch.device]
Case = ModuleCase | OptimizerCase

# Names, since the twin is not there yet when tests are collected.
TWIN = ("cpu", "twin:0", "twin:1")
CUDA = ("cpu", "cuda:0")
MODES = {"train": True, "eval": False}


def row(name: str, names: Sequence[str], *values: Any) -> Any:
    marks = [pytest.mark.cuda] if names is CUDA else []
    return pytest.param(*values, names, id=name + ("-cuda" if names is CUDA else ""), marks=marks)


MODULE_ROWS = [
    row(f"{info.name.removeprefix('nn.')}-{mode}", names, info, training)
    for names in (TWIN, CUDA)
    for info, (mode, training) in itertools.product(MODULES, MODES.items())
]
LAZY_ROWS = [row for row in MODULE_ROWS if row.values[0].is_lazy]
# The twin device borrows the CPU's kernels, so it has the fused ones that the CPU has.
OPTIMIZER_ROWS = [
    row("-".join([info.name, *(flag if on else f"no_{flag}" for flag, on in flags.items())]), names, info, flags)
    for names, kernels in ((TWIN, "cpu"), (CUDA, "cuda"))
    for info in OPTIMIZERS
    for flags in flag_sets(info, kernels)
]


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """The samples are small: more threads would mostly wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _the_same_bits_each_time(request: pytest.FixtureRequest) -> Iterator[None]:
    """On CUDA torch has to be asked for them."""
    if request.node.get_closest_marker("cuda") is None:
        yield
        return
    torch.use_deterministic_algorithms(True, warn_only=True)
    with sdpa_kernel(SDPBackend.MATH):
        yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def places(request: pytest.FixtureRequest) -> Places:
    return [torch.device(name) for name in request.param]


def move(training: Training, to: torch.device) -> None:
    """Move; all is what it was, and nothing is left behind."""
    before = trace(training.tensors())
    tm.move(*training.objects, to=to)
    after = trace(training.tensors())
    # cuDNN wants the weights of a recurrent module in one piece of memory, and gets them so.
    flattened = "cuda" in (to.type, *(tensor.device.type for tensor in training.tensors().values()))
    recurrent = any(isinstance(each, nn.RNNBase) for each in training.module.modules())
    assert_same(before, after._replace(aliases=before.aliases) if flattened and recurrent else after)
    assert {tensor.device for tensor in training.tensors().values()} <= {CPU, to}


def assert_goes_on_like(case: Case, training: Training, other: Training, device: torch.device) -> None:
    # What has no parameters is the same at every step.
    steps = 3 if training.optimizer is not None else 1
    for number in range(FIRST_STEPS, FIRST_STEPS + steps):
        assert case.step(training, device, number) == case.step(other, device, number)
    mine, theirs = training.values(), other.values()
    assert mine.keys() == theirs.keys()
    assert [name for name in mine if mine[name] != theirs[name]] == []


def assert_at_home_everywhere(case: Case, places: Places) -> None:
    """After each move of a journey there and back it goes on like one that started there with the same values."""
    journey = [*places, *places[-2::-1]]
    start = next(index for index, place in enumerate(journey) if case.repeats_on(place))
    training = case.start(journey[start])
    for place in journey[start + 1 :]:
        move(training, place)
        if case.repeats_on(place):
            native = case.start(place)
            assert training.placement() == native.placement()
            native.take_values_of(training)
            assert_goes_on_like(case, training, native, place)


def assert_unchanged_by_travel(case: Case, places: Places) -> None:
    """Back from a journey it goes on like one that never left."""
    home = next(place for place in places if case.repeats_on(place))
    training, stayed = case.start(home), case.start(home)
    for place in [*(place for place in places if place != home), home]:
        move(training, place)
    assert training.placement() == stayed.placement()
    assert_goes_on_like(case, training, stayed, home)


@pytest.mark.sampled(32)
@pytest.mark.parametrize(("info", "training", "places"), MODULE_ROWS, indirect=["places"])
def test_a_moved_module_trains_on_as_if_it_had_started_there(info, training, places):
    cases = list(module_cases(info, training))
    assert cases
    for case in cases:
        assert_at_home_everywhere(case, places)


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("info", "training", "places"), LAZY_ROWS, indirect=["places"])
def test_a_lazy_module_moved_before_its_first_forward_wakes_up_there(info, training, places):
    for case, place in itertools.product(module_cases(info, training), places):
        module = case.made()
        asleep = list(module.parameters())
        tm.move(module, to=place)
        case.outputs(module, place)
        awake = list(module.parameters())
        assert list(map(id, awake)) == list(map(id, asleep))
        assert {parameter.device for parameter in awake} == {place}


@pytest.mark.sampled(16)
@pytest.mark.parametrize(("info", "flags", "places"), OPTIMIZER_ROWS, indirect=["places"])
def test_a_moved_optimizer_goes_on_as_if_it_had_started_there(info, flags, places):
    cases = list(optimizer_cases(info, flags))
    assert cases
    for case in cases:
        assert_at_home_everywhere(case, places)


@pytest.mark.sampled(16)
@pytest.mark.parametrize(("info", "flags", "places"), OPTIMIZER_ROWS, indirect=["places"])
def test_an_optimizer_that_came_back_goes_on_as_if_it_had_never_left(info, flags, places):
    for case in optimizer_cases(info, flags):
        assert_unchanged_by_travel(case, places)


@pytest.mark.parametrize("names", [TWIN, CUDA], ids=["twin", "cuda"])
def test_nothing_that_torch_lists_is_left_out(names):
    modules = {row.values[0].name for row in MODULE_ROWS if row.values[-1] is names}
    optimizers = {row.values[0].name for row in OPTIMIZER_ROWS if row.values[-1] is names}
    assert len(modules) == len(MODULES) >= (114 if torch.__version__ >= (2, 13) else 113)
    assert len(optimizers) == len(OPTIMIZERS) >= 15
