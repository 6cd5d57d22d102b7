"""The staged mover: bits, storages, kinds of memory, and what can go wrong in the ring."""

from __future__ import annotations

import gc
import itertools
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import pytest
import torch
from card import fill_card
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from zoo import random_bits

import torchmove as tm
from torchmove.internals.guards import HeldInterrupts
from torchmove.moving.movers import copies as reach
from torchmove.moving.movers import ring as locked
from torchmove.moving.movers import ring as slots
from torchmove.moving.movers import staged, traffic
from torchmove.moving.movers.traffic import Bundle, Bundles, Piece, Pieces, Workers, bundled
from torchmove.planning import placement as _keep
from torchmove.planning import planner as _plan
from torchmove.surveying import survey as _survey

MIB = 1 << 20
on_cuda = pytest.mark.cuda


def bits(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def there_and_back(state: dict[str, Tensor]) -> None:
    before = {name: bits(tensor).clone() for name, tensor in state.items()}
    up = tm.move(state, to="cuda:0", mover="staged")
    assert (up.mover, up.why) == ("staged", "as requested")
    assert {tensor.device for tensor in state.values()} == {torch.device("cuda:0")}
    assert all(torch.equal(bits(tensor), before[name]) for name, tensor in state.items())
    tm.move(state, to="cpu", mover="staged")
    assert {tensor.device.type for tensor in state.values()} == {"cpu"}
    assert all(torch.equal(bits(tensor), before[name]) for name, tensor in state.items())


# ---------------------------------------------------------------- bits and storages

DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.complex64),
    *(torch.complex128, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool, torch.uint16),
]


SHAPES = st.lists(st.integers(1, 4), max_size=3).map(tuple)


@given(
    st.lists(st.tuples(st.sampled_from(DTYPES), SHAPES), min_size=1, max_size=40),
    st.sampled_from([16, 100, 1000, MIB]),
    st.booleans(),
)
def test_bundles_hold_everything_once_and_give_it_back(kinds, most_bytes, with_empty):
    tensors = [random_bits(torch.Size(shape).numel(), dtype).reshape(shape) for dtype, shape in kinds]
    bundles = list(bundled(tensors, kinds, range(100, 100 + len(tensors)), most_bytes))
    assert sorted(key for bundle in bundles for key in bundle.keys) == list(range(100, 100 + len(tensors)))
    for bundle in bundles:
        assert bundle.nbytes <= most_bytes or len(bundle.keys) == 1
        slab = torch.empty(bundle.nbytes // bundle.dtype.itemsize, dtype=bundle.dtype)
        bundle.gather(slab)
        made = bundle.with_empty(torch.device("cpu")) if with_empty else bundle
        for key, copy in zip(bundle.keys, made.spread(slab), strict=True):
            source = tensors[key - 100]
            assert (copy.dtype, copy.shape, copy.stride()) == (source.dtype, source.shape, source.stride())
            assert torch.equal(bits(copy), bits(source))
            assert copy.untyped_storage().nbytes() == source.nbytes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex128], ids=str)
def test_bundles_of_larger_tensors_too(dtype):
    tensors = [random_bits(40_000, dtype).reshape(200, 200) for _ in range(5)]
    (bundle,) = bundled(tensors, [(dtype, torch.Size([200, 200]))] * 5, range(5), 16 * MIB)
    slab = torch.empty(200_000, dtype=dtype)
    bundle.gather(slab)
    assert torch.equal(bits(slab), torch.cat(list(map(bits, tensors))))
    for copy, source in zip(bundle.spread(slab), tensors, strict=True):
        assert torch.equal(bits(copy), bits(source))
        assert (copy.stride(), copy.untyped_storage().nbytes()) == (source.stride(), source.nbytes)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts the threads of the process as Linux does")
def test_a_worker_takes_no_threads_of_its_own():
    ended = subprocess.run(
        [sys.executable, "-c", COUNTS_THREADS], capture_output=True, text=True, timeout=120, check=False
    )
    assert (ended.stdout, ended.returncode) == ("0\n", 0), ended.stderr


COUNTS_THREADS = """
import os, threading, torch
from torchmove.moving.movers.traffic import bundled

torch.set_num_threads(4)
torch.ones(1 << 20).add_(1)  # this thread has its own by now
kind = (torch.float32, torch.Size([200_000]))
(bundle,) = bundled([torch.ones(200_000)] * 8, [kind] * 8, range(8), 1 << 24)
before, after = len(os.listdir("/proc/self/task")), []

def work():
    slab = torch.empty(1_600_000)
    bundle.gather(slab)
    bundle.spread(slab)
    after.append(len(os.listdir("/proc/self/task")) - before - 1)

thread = threading.Thread(target=work)
thread.start()
thread.join()
print(*after)
"""


@pytest.mark.parametrize("cores", range(4, 17))
@pytest.mark.parametrize("slot_bytes", slots._CANDIDATES)
def test_all_slots_are_of_one_size(cores, slot_bytes):
    memory = torch.empty(cores * slots._BYTES_PER_CORE, dtype=torch.uint8)
    made = slots.slots_of(memory, slot_bytes)
    assert {slot.nbytes for slot in made} == {slot_bytes}
    assert len(made) == memory.nbytes // slot_bytes


def test_a_bundle_is_not_too_much_for_one_worker():
    tensors = [torch.ones(1)] * 30_000
    bundles = list(bundled(tensors, [(torch.float32, torch.Size([1]))] * len(tensors), range(len(tensors)), MIB))
    assert [len(bundle.keys) for bundle in bundles] == [8192, 8192, 8192, 5424]


@pytest.mark.parametrize("kind", [staged._Direction, Bundle, Bundles, Pieces, traffic.Traffic])
def test_no_function_that_an_error_keeps_closes_over_what_has_the_copies(kind):
    methods = [each for each in vars(kind).values() if isinstance(each, FunctionType)]
    assert methods
    assert [method.__name__ for method in methods if "self" in method.__code__.co_cellvars] == []


def test_whether_tensors_are_dense_is_found_out_as_far_as_somebody_asks():
    tensors = [torch.ones(2, 3).t() if index % 7 == 0 else torch.ones(2, 3) for index in range(3000)]
    found = reach._Dense(tensors, [True] * 3000, reach._ODD)
    assert (found[8], found[7], len(found._found)) == (True, False, 1000)
    assert found[1502:1506] == [True, True, True, False]
    assert len(found._found) == 2000
    assert found[-1] is found[2999] is True
    assert found[2998:2990:-2] == [True, False, True, True]
    assert [*found] == [index % 7 != 0 for index in range(3000)]
    with pytest.raises(IndexError):
        found[3000]


def test_a_waiting_caller_gets_the_error_of_the_copies(monkeypatch):
    def lost(*_: Any) -> None:
        raise RuntimeError("the card is lost")

    monkeypatch.setattr(traffic, "_drive", lost)
    workers, stream = Workers(0), SimpleNamespace(device=torch.device("cuda:0"))
    bundles = Bundles(traffic.Channel([], workers, stream, int), [], lambda *_: None)
    errors: list[str] = []

    def go() -> None:
        try:
            bundles.to_device()
        except RuntimeError as error:
            errors.append(str(error))

    thread = threading.Thread(target=go, daemon=True)
    thread.start()
    thread.join(60)
    assert errors == ["the card is lost"]


@on_cuda
@pytest.mark.parametrize("batch", [staged._BATCH, 9], ids=["in one batch", "in many"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_bit_of_many_small_tensors_arrives(dtype, batch, monkeypatch):
    monkeypatch.setattr(staged, "_BATCH", batch)
    torch.manual_seed(0)
    shapes = [(), (1,), (3,), (5, 7), (2, 3, 4), (1000,), (333, 3)]
    state = {
        f"{turn} {shape}": random_bits(torch.Size(shape).numel(), dtype).reshape(shape)
        for turn in range(40)
        for shape in shapes
    }
    there_and_back(state)
    assert len({tensor.untyped_storage().data_ptr() for tensor in state.values()}) == len(state)
    assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in state.values())


@on_cuda
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.complex128], ids=str)
def test_every_bit_of_large_tensors_arrives(dtype):
    torch.manual_seed(0)
    slot = slots.shared_ring(torch.device("cuda:0")).slot_bytes // dtype.itemsize
    small = staged._SMALL_BYTES // dtype.itemsize
    counts = [small - 1, small, small + 1, slot - 1, slot, slot + 1, 5 * slot + 17, 100 * MIB // dtype.itemsize]
    there_and_back({str(count): random_bits(count, dtype) for count in counts})


@on_cuda
def test_more_than_the_ring_holds_arrives():
    torch.manual_seed(0)
    there_and_back({str(index): random_bits(96 * MIB + index, torch.uint8) for index in range(8)})


@on_cuda
def test_windows_on_large_storages_arrive():
    torch.manual_seed(0)
    flat = torch.randn(8 * MIB)
    state = {
        "middle": flat[1000 : 3 * MIB],
        "end": flat[6 * MIB :],
        "every other": flat[6 * MIB :: 2],
        "transposed": torch.randn(1500, 1300).t(),
        "channels last": torch.randn(8, 64, 60, 60).to(memory_format=torch.channels_last),
        "expanded": torch.randn(1, 4096).expand(4096, 4096),
    }
    forms = {name: (tensor.shape, tensor.stride()) for name, tensor in state.items()}
    there_and_back(state)
    assert {name: (tensor.shape, tensor.stride()) for name, tensor in state.items()} == forms
    assert state["end"].untyped_storage().data_ptr() == state["every other"].untyped_storage().data_ptr()


# ---------------------------------------------------------------- kinds of host memory


def shared() -> Tensor:
    return torch.randn(3 * MIB).share_memory_()


def page_locked() -> Tensor:
    return torch.randn(3 * MIB).pin_memory()


@on_cuda
@pytest.mark.parametrize("make", [shared, page_locked], ids=lambda make: make.__name__)
def test_memory_of_every_kind_is_a_source(make):
    torch.manual_seed(0)
    there_and_back({"tensor": make(), "small": make()[:100].clone()})


@on_cuda
def test_a_file_is_a_source(tmp_path):
    torch.manual_seed(0)
    path = tmp_path / "weights"
    torch.randn(3 * MIB).numpy().tofile(path)
    there_and_back({"tensor": torch.from_file(str(path), shared=False, size=3 * MIB)})


@on_cuda
def test_the_copies_lie_in_the_callers_memory_pool():
    state = {"large": torch.ones(4 * MIB), **{str(index): torch.ones(300 + index % 3) for index in range(10_000)}}
    tm.move(state, to="cuda:0", mover="staged")
    tm.move(state, to="cpu", mover="staged")
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        tm.move(state, to="cuda:0", mover="staged")
    segments = [(each["address"], each["address"] + each["total_size"]) for each in pool.snapshot()]
    outside = [
        name for name, tensor in state.items() if not any(start <= tensor.data_ptr() < stop for start, stop in segments)
    ]
    assert segments
    assert outside == []
    tm.move(state, to="cpu", mover="staged")


@on_cuda
def test_what_was_written_on_another_stream_is_waited_for():
    state = {"tensor": torch.zeros(64 * MIB, device="cuda:0")}
    other = torch.cuda.Stream()
    other.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(other):
        for _ in range(50):
            state["tensor"].add_(1)
    tm.move(state, to="cpu", mover="staged")
    assert bool((state["tensor"] == 50).all())


# ---------------------------------------------------------------- which mover, and why


def small_state() -> dict[str, Tensor]:
    return {"tensor": torch.ones(100)}


def large_state() -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {str(index): torch.randn(8 * MIB) for index in range(4)}


@pytest.mark.twin
def test_without_cuda_the_plain_mover_is_taken_and_the_receipt_says_why():
    state = small_state()
    receipt = tm.move(state, to="twin:0")
    assert (receipt.mover, receipt.why) == ("plain", "staging applies only to CPU-CUDA")
    assert "plain copy: staging applies only to CPU-CUDA" in str(receipt)
    assert '"why": "staging applies only' in receipt.to_json()
    with pytest.raises(tm.MoveRefused, match=r"R012 mover='staged': staging applies only to CPU-CUDA"):
        tm.move(state, to="cpu", mover="staged")
    assert state["tensor"].device == torch.device("twin:0")


@pytest.mark.twin
def test_there_is_no_such_mover():
    with pytest.raises(tm.MoveRefused, match=r"unknown mover 'quick'; the movers are auto, plain, staged"):
        tm.move(small_state(), to="twin:0", mover="quick")


@pytest.mark.parametrize(
    ("mib", "tensors", "is_worth_it"),
    [(4, 8, False), (15, 1, False), (16, 8, True), (1, 99, False), (1, 100, True)],
)
def test_with_the_ring_there_a_few_tensors_of_a_few_mib_are_not_worth_staging(mib, tensors, is_worth_it, monkeypatch):
    monkeypatch.setattr(staged, "has_ring", lambda: True)
    state = [torch.empty(mib * MIB // tensors, dtype=torch.uint8) for _ in range(tensors)]
    inventory = _survey.survey_objects({"state": state})
    up = _plan.Back([torch.device("cuda:0")] * tensors, ())
    nothing = _keep.keep_of({"state": state}, ())
    plan = _plan.make_plan(inventory, up.placement[0], keep=nothing, free_bytes=lambda _: None, back=up)
    assert staged.is_faster(plan.moves) is is_worth_it


@on_cuda
def test_the_mover_is_chosen_by_size():
    tm.release()
    state = large_state()
    assert tm.move(small_state(), to="cuda:0").why == "too small for staging"
    assert tm.move(state, to="cuda:0").why == "too small for staging"
    # Back into fresh memory, staging is worth it sooner; and the ring is there from then on.
    receipt = tm.move(state, to="cpu")
    assert (receipt.mover, receipt.why) == ("staged", "CPU-CUDA, through pinned memory")
    assert tm.move(state, to="cuda:0").mover == "staged"
    assert tm.move(small_state(), to="cuda:0").mover == "plain"
    assert tm.move(large_state(), to="cuda:0", mover="plain").mover == "plain"


@pytest.fixture
def no_ring() -> Iterator[None]:
    tm.release()
    yield
    tm.release()


@on_cuda
def test_where_memory_cannot_be_locked_the_plain_mover_is_taken(no_ring, monkeypatch):
    def refuse(address: int, nbytes: int) -> None:
        raise locked.CannotLock("the driver refused to page-lock 96 MiB (error 2)")

    monkeypatch.setattr(locked, "lock", refuse)
    state = large_state()
    tm.move(state, to="cuda:0")
    receipt = tm.move(state, to="cpu")
    assert receipt.mover == "plain"
    assert receipt.why == "no ring of page-locked memory: the driver refused to page-lock 96 MiB (error 2)"
    with pytest.raises(tm.MoveRefused, match="refused to page-lock"):
        tm.move(state, to="cuda:0", mover="staged")


@on_cuda
def test_a_ring_that_cannot_be_made_leaves_nothing_locked_and_can_be_made_later(no_ring, monkeypatch):
    threads, state = threading.active_count(), large_state()
    with monkeypatch.context() as patch:
        trap(patch, Piece, "slot_to_device", 1, torch.OutOfMemoryError("the card is full"))
        with pytest.raises(tm.MoveRefused, match="no ring of page-locked memory: the card is full"):
            tm.move(state, to="cuda:0", mover="staged")
    assert threading.active_count() == threads
    assert tm.move(state, to="cuda:0", mover="staged").mover == "staged"


@on_cuda
def test_a_refusal_of_the_driver_leaves_no_error_behind():
    memory = locked.Locked(2 * MIB)
    with pytest.raises(locked.CannotLock, match="refused to page-lock 2 MiB"):
        locked.lock(memory.bytes.data_ptr(), memory.bytes.nbytes)
    memory.unlock()
    memory.unlock()
    assert float(torch.ones(3, device="cuda").sum()) == 3


# ---------------------------------------------------------------- the ring's life


@on_cuda
def test_release_gives_threads_and_memory_back_and_a_later_move_makes_them_anew():
    tm.release()
    threads = threading.active_count()
    for _ in range(3):
        state = large_state()
        tm.move(state, to="cuda:0", mover="staged")
        assert threading.active_count() > threads
        tm.release()
        tm.release()
        assert threading.active_count() == threads
        assert not slots.has_ring()


@on_cuda
def test_moves_in_many_threads_do_not_meet():
    states = [mixed_state() for _ in range(6)]
    expected = {name: bits(tensor) for name, tensor in states[0].items()}

    def work(state: dict[str, Tensor]) -> None:
        for target in ("cuda:0", "cpu", "cuda:0"):
            tm.move(state, to=target, mover="staged")

    threads = [threading.Thread(target=work, args=(state,)) for state in states]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for state in states:
        assert [name for name, tensor in state.items() if not torch.equal(bits(tensor), expected[name])] == []


@on_cuda
def test_a_default_device_changes_nothing(no_ring):
    expected = large_state()
    with torch.device("cuda:0"):
        state = {name: tensor.clone() for name, tensor in expected.items()}
        tm.move(state, to="cuda:0", mover="staged")
        tm.move(state, to="cpu", mover="staged")
    assert all(torch.equal(state[name], expected[name]) for name in expected)


PREPARED = """
import os, torch, torchmove as tm
state = [torch.ones(1 << 20) for _ in range(40)]
def there(): tm.move(state, to="cuda", mover="staged")
def back(): tm.move(state, to="cpu", mover="staged")
"""


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    code = PREPARED + code
    # Forking a process with threads is what Python warns of.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)


@on_cuda
@pytest.mark.parametrize(
    "code",
    [
        "there()",
        "there(); tm.release()",
        "there(); back(); raise SystemExit",
        "os.sched_setaffinity(0, {0, 1}); there(); back()",
        "os.sched_setaffinity(0, {0}); torch.set_num_threads(1); there(); back()",
    ],
)
def test_the_interpreter_ends_quietly(code):
    ended = run_python(code)
    assert (ended.returncode, ended.stderr) == (0, "")


@on_cuda
def test_a_forked_child_has_no_ring_and_leaves_its_parents_alone():
    ended = run_python(
        "from torchmove.moving.movers import ring as slots\n"
        "there()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    assert not slots.has_ring()\n"
        "    tm.release()\n"
        "    from torchmove.testing import refresh\n"
        "    refresh([torch.ones(3)])\n"
        "    os._exit(7)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7\n"
        "back()\n"
        "assert all(bool((each == 1).all()) for each in state)\n"
    )
    assert (ended.returncode, ended.stderr) == (0, "")


# ---------------------------------------------------------------- what goes wrong on the way


def trap(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, at: int, error: BaseException) -> None:
    real, calls = getattr(owner, name), iter(range(1, 1 << 30))

    def call(self: Any, slot: Tensor) -> Any:
        if next(calls) == at:
            raise error
        return real(self, slot)

    monkeypatch.setattr(owner, name, call)


def mixed_state() -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {**large_state(), **{f"small {index}": torch.randn(500) for index in range(9000)}}


STEPS = [
    *[("cpu", Piece, name) for name in ("host_to_slot", "slot_to_device")],
    *[("cuda:0", Piece, name) for name in ("device_to_slot", "slot_to_host")],
    *[(home, Bundle, name) for home in ("cpu", "cuda:0") for name in ("gather", "spread")],
    ("cpu", Bundle, "with_empty"),
]


@on_cuda
@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize(("home", "owner", "name"), STEPS, ids=lambda part: getattr(part, "__name__", part))
def test_a_fault_in_the_ring_changes_nothing(home, owner, name, at, monkeypatch):
    state = mixed_state()
    slots.shared_ring(torch.device("cuda:0"))
    tm.move(state, to=home)
    before = {key: (tensor.data_ptr(), bits(tensor)) for key, tensor in state.items()}
    used = torch.cuda.memory_allocated()
    away = "cuda:0" if home == "cpu" else "cpu"
    with monkeypatch.context() as patch:
        trap(patch, owner, name, at, torch.OutOfMemoryError("no room for this load"))
        with pytest.raises(tm.MoveFailed, match="no room for this load"):
            tm.move(state, to=away, mover="staged")
    assert torch.cuda.memory_allocated() == used
    for key, tensor in state.items():
        address, expected = before[key]
        assert tensor.data_ptr() == address
        assert torch.equal(bits(tensor), expected)
    tm.move(state, to=away, mover="staged")
    assert all(torch.equal(bits(tensor), before[key][1]) for key, tensor in state.items())


@on_cuda
@pytest.mark.parametrize(
    ("home", "away", "step"), [("cpu", "cuda:0", "slot_to_device"), ("cuda:0", "cpu", "device_to_slot")]
)
def test_ctrl_c_in_the_middle_of_the_traffic_changes_nothing(home, away, step, monkeypatch):
    torch.manual_seed(0)
    state = [torch.randn(64 * MIB) for _ in range(8)]
    expected = [bits(tensor[:1000]) for tensor in state]
    tm.move(state, to=away, mover="staged")
    tm.move(state, to=home, mover="staged")
    pieces = sum(tensor.nbytes for tensor in state) // slots.shared_ring(torch.device("cuda:0")).slot_bytes
    outcomes = []
    for moment in range(30):
        places = [tensor.data_ptr() for tensor in state]
        used = torch.cuda.memory_allocated()
        with monkeypatch.context() as patch:
            press_ctrl_c_at(patch, Piece, step, 1 + moment * pieces // 30)
            with pytest.raises(KeyboardInterrupt):
                tm.move(state, to=away, mover="staged")
        moved = state[0].device == torch.device(away)
        assert {tensor.device for tensor in state} == {torch.device(away if moved else home)}
        assert [thread.name for thread in threading.enumerate() if "traffic" in thread.name] == []
        if not moved:
            assert [tensor.data_ptr() for tensor in state] == places
            assert torch.cuda.memory_allocated() == used
        assert all(torch.equal(bits(tensor[:1000]), each) for tensor, each in zip(state, expected, strict=True))
        outcomes.append(moved)
        if moved:
            tm.move(state, to=home, mover="staged")
    assert outcomes.count(False) > 15


@on_cuda
@pytest.mark.parametrize(
    ("home", "away", "step"),
    [
        *[("cpu", "cuda:0", step) for step in ("with_empty", "gather", "spread")],
        *[("cuda:0", "cpu", step) for step in ("gather", "spread")],
    ],
)
def test_ctrl_c_among_bundles_changes_nothing(home, away, step, monkeypatch):
    torch.manual_seed(0)
    state = [torch.randn(500 + index % 3) for index in range(60_000)]
    expected = [bits(tensor) for tensor in state]
    tm.move(state, to=away, mover="staged")
    tm.move(state, to=home, mover="staged")
    for moment in range(1, 16):
        places = [tensor.data_ptr() for tensor in state]
        used = torch.cuda.memory_allocated()
        with monkeypatch.context() as patch:
            press_ctrl_c_at(patch, Bundle, step, moment)
            with pytest.raises(KeyboardInterrupt):
                tm.move(state, to=away, mover="staged")
        assert {tensor.device for tensor in state} == {torch.device(home)}
        assert [tensor.data_ptr() for tensor in state] == places
        assert torch.cuda.memory_allocated() == used
    tm.move(state, to=away, mover="staged")
    assert all(torch.equal(bits(tensor), each) for tensor, each in zip(state, expected, strict=True))


@on_cuda
def test_a_ctrl_c_upon_a_ctrl_c_leaves_no_thread_waiting(monkeypatch):
    state = [torch.randn(500 + index % 3) for index in range(20_000)]
    tm.move(state, to="cuda:0", mover="staged")
    tm.move(state, to="cpu", mover="staged")
    used = torch.cuda.memory_allocated()

    class Late(HeldInterrupts):
        """The second Ctrl-C comes before the first could be seen to."""

        entered = itertools.count(1)

        def __enter__(self):
            if next(Late.entered) == 2:
                raise KeyboardInterrupt
            return super().__enter__()

    with monkeypatch.context() as patch:
        patch.setattr(traffic, "HeldInterrupts", Late)
        trap(patch, Bundle, "with_empty", 2, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            tm.move(state, to="cuda:0", mover="staged")
    for thread in threading.enumerate():
        if "traffic" in thread.name:
            thread.join(60)
            assert not thread.is_alive()
    gc.collect()  # the error that ended the thread, and its frames
    assert {tensor.device.type for tensor in state} == {"cpu"}
    assert torch.cuda.memory_allocated() == used


def press_ctrl_c_at(monkeypatch: pytest.MonkeyPatch, owner: type, step: str, at: int) -> None:
    """Send the process a SIGINT when the traffic comes to a piece or a bundle."""
    real, calls = getattr(owner, step), itertools.count(1)

    def call(load: Any, slot: Tensor) -> Any:
        if next(calls) == at:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        return real(load, slot)

    monkeypatch.setattr(owner, step, call)


@on_cuda
@pytest.mark.whole_card
def test_a_card_with_half_the_room_is_refused_and_room_lost_later_is_rolled_back():
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(32)))
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    tm.move(torch.ones(8 * MIB), to="cuda:0", mover="staged")  # the ring is there
    before = [(tensor.data_ptr(), bits(tensor)) for tensor in everything(model, optimizer)]
    plan = tm.plan(model, optimizer, to="cuda:0")
    filling = fill_card(plan.nbytes // 2)
    with pytest.raises(tm.MoveRefused, match=r"R042 cuda:0: not enough memory: needs .* GiB, has .*") as refused:
        tm.move(model, optimizer, to="cuda:0", mover="staged")
    assert [refusal.code for refusal in refused.value.refusals] == ["R042"]
    used = torch.cuda.memory_allocated()
    with pytest.raises(tm.MoveFailed, match="OutOfMemoryError"):
        tm.apply(plan, mover="staged")
    assert torch.cuda.memory_allocated() == used
    assert [(tensor.data_ptr(), bits(tensor)) for tensor in everything(model, optimizer)] == Same(before)
    del filling
    torch.cuda.empty_cache()
    assert tm.move(model, optimizer, to="cuda:0").mover == "staged"
    assert all(
        torch.equal(bits(tensor), each[1]) for tensor, each in zip(everything(model, optimizer), before, strict=True)
    )


class Same:
    """Equal to a list of addresses and bits that are the same."""

    def __init__(self, expected: list[tuple[int, Tensor]]) -> None:
        self.expected = expected

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, list)
        pairs = zip(self.expected, other, strict=True)
        return all(one[0] == two[0] and torch.equal(one[1], two[1]) for one, two in pairs)

    __hash__ = None  # type: ignore[assignment]


def everything(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    found: list[Tensor] = []
    for parameter in model.parameters():
        assert parameter.grad is not None
        state = optimizer.state[parameter]
        found += [parameter, parameter.grad, state["exp_avg"], state["exp_avg_sq"], state["step"]]
    return found
