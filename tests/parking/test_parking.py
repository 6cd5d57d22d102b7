"""Parking: off the device and back, bit for bit; only what changed travels; nothing is lost when something fails."""

from __future__ import annotations

import gc
import io
import itertools
import os
import random
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from laws import addresses, assert_same, trace
from torch import Tensor, nn
from zoo import ZOO, State

import torchmove as tm
from torchmove.internals.host_memory import HUGE_PAGE
from torchmove.moving import apply as _apply
from torchmove.moving.movers.ring import CannotLock
from torchmove.parking import arena
from torchmove.parking.host_copies import MIB, Fingerprinter, host_copies
from torchmove.reporting import report

pytestmark = pytest.mark.twin

DEVICES = ["twin:0", pytest.param("cuda:0", marks=pytest.mark.cuda)]
WORKS = {
    "AdamW foreach": lambda parameters: torch.optim.AdamW(parameters, foreach=True),
    "AdamW fused": lambda parameters: torch.optim.AdamW(parameters, fused=True),
    "SGD momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.001, momentum=0.9),
}


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    gc.collect()  # what other tests have parked
    tm.release()
    yield torch.device(request.param)
    gc.collect()
    tm.release()


def everywhere(state: State) -> dict[str, Tensor]:
    return {**state.moves, **state.stays}


def trained(device: torch.device, make: Any = WORKS["SGD momentum"]) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 300), nn.Tanh(), nn.Linear(300, 300), nn.Tanh(), nn.Linear(300, 2)).to(device)
    optimizer = make(model.parameters())
    step(model, optimizer, 0)
    return model, optimizer


def step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    place = next(model.parameters()).device
    batch = torch.randn(4, 8, generator=torch.Generator().manual_seed(number)).to(place)
    optimizer.zero_grad()
    model(batch).pow(2).sum().backward()
    optimizer.step()


def tensors_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    found = dict(model.named_parameters())
    for name, parameter in model.named_parameters():
        found |= {f"{name} {key}": value for key, value in optimizer.state[parameter].items() if value is not None}
    return {name: value for name, value in found.items() if isinstance(value, Tensor)}


# ---------------------------------------------------------------- the laws


@pytest.mark.parametrize("name", ZOO)
def test_off_the_device_and_back_is_the_same_state_bit_for_bit(name, device):
    torch.manual_seed(0)
    state = ZOO[name]()
    tm.move(*state.objects, to=device)
    before = trace(everywhere(state))
    for _ in range(2):
        parked = tm.park(*state.objects)
        assert_same(before, trace(everywhere(state)))
        assert {tensor.device.type for tensor in everywhere(state).values()} <= {"cpu"}
        parked.wake()
        assert_same(before, trace(everywhere(state)))
        assert {tensor.device for tensor in state.moves.values()} <= {device}
        assert {tensor.device.type for tensor in state.stays.values()} <= {"cpu"}


@pytest.mark.parametrize("name", ZOO)
def test_unchanged_storages_are_not_copied_again(name, device):
    torch.manual_seed(0)
    state = ZOO[name]()
    tm.move(*state.objects, to=device)
    first = tm.park(*state.objects)
    assert first.unchanged_bytes == 0
    first.wake()
    again = tm.park(*state.objects)
    # The parts of a sparse tensor are new objects at every look: nothing can be kept for them.
    travels = first.copied_bytes if name in ("sparse_coo", "sparse_compressed") else 0
    travels = 32 if name == "sparse_gradient" else travels
    assert (again.copied_bytes, again.unchanged_bytes) == (travels, first.copied_bytes - travels)
    again.wake()


@pytest.mark.parametrize("work", WORKS)
def test_training_with_a_rest_after_every_step_is_training(work, device):
    rested, model = (trained(device, WORKS[work]) for _ in range(2))
    for number in range(1, 51):
        step(*rested, number)
        tm.park(*rested).wake()
        step(*model, number)
    a, b = tensors_of(*rested), tensors_of(*model)
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name].cpu(), b[name].cpu()) for name in a)
    assert {name: value.device for name, value in a.items()} == {name: value.device for name, value in b.items()}


@pytest.mark.whole_card
def test_memory_comes_free_and_is_measured(device):
    module = torch.get_device_module(device)
    model = nn.Linear(2048, 2048).to(device)
    parked = tm.park(model)
    assert parked.freed_bytes >= 2048 * 2048 * 4
    assert parked.receipt.held == ()
    free = module.mem_get_info(device)[0]
    parked.wake()
    assert module.mem_get_info(device)[0] < free
    assert "freed on" in str(parked)
    assert report(parked).facts()["freed_bytes"] == parked.freed_bytes


def test_who_still_holds_memory_is_said(device):
    model = nn.Linear(512, 512).to(device)
    window = model.weight.detach()[3]
    parked = tm.park(model)
    assert [str(held.path) for held in parked.receipt.held] == ["model.weight"]
    assert window.device == device
    parked.wake()


# ---------------------------------------------------------------- what changed


def written(tensor: Tensor) -> None:
    with torch.no_grad():
        tensor[0].add_(1)


def written_past_the_version(tensor: Tensor) -> None:
    tensor.data[0].add_(1)


def written_by_address(tensor: Tensor) -> None:
    """As a kernel does that torch knows nothing of."""
    alias = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(
        tensor.untyped_storage(), 0, tensor.shape, tensor.stride()
    )
    alias[-1, -1] += 1


def two_words_changed_places(tensor: Tensor) -> None:
    flat = tensor.data.view(-1)
    flat[:4] = flat[:4].roll(2)


@pytest.mark.parametrize("write", [written, written_past_the_version, written_by_address, two_words_changed_places])
def test_every_write_is_found(write, device):
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(8))).to(device)
    with tm.parked(model):
        pass
    write(model[3].weight)
    expected = {name: value.detach().cpu().clone() for name, value in model.named_parameters()}
    with tm.parked(model) as parked:
        assert parked.copied_bytes >= model[3].weight.nbytes
        assert all(torch.equal(value, expected[name]) for name, value in model.named_parameters())
    assert all(torch.equal(value.cpu(), expected[name]) for name, value in model.named_parameters())


def test_frozen_weights_are_not_copied_again(device):
    model = nn.Sequential(nn.Linear(600, 600), nn.Linear(600, 600)).to(device)
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
    with tm.parked(model, optimizer):
        pass
    model(torch.ones(2, 600, device=device)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    with tm.parked(model, optimizer) as parked:
        assert parked.unchanged_bytes == sum(each.nbytes for each in model[0].parameters())
        assert parked.copied_bytes == sum(each.nbytes for each in model[1].parameters())


@pytest.mark.parametrize("by_rows", [False, True])
def test_the_fingerprint_finds_any_bit_and_any_exchange(by_rows):
    torch.manual_seed(0)
    flat = torch.randint(0, 256, (3 * MIB + 12345,), dtype=torch.uint8)
    fingerprint = Fingerprinter(torch.device("cpu"), by_rows=by_rows).take
    before = fingerprint(flat)
    assert before.shape == (4,)
    for at in [0, 1, 4095, 4096, MIB - 1, MIB, 3 * MIB, len(flat) - 1]:
        changed = flat.clone()
        changed[at] ^= 1 << random.Random(at).randrange(8)
        differs = fingerprint(changed) != before
        assert differs.nonzero().flatten().tolist() == [at // MIB]
    words = flat[: 3 * MIB].view(torch.int64)
    for at, change in itertools.product([0, 77, 131071, 131072], [-1, 1 << 63, 1 << 32, 1, 0x80000000]):
        changed = words.clone()
        changed[at] ^= change if change < 1 << 63 else -(1 << 63)
        assert (fingerprint(changed.view(torch.uint8)) != before[:3]).nonzero().flatten().tolist() == [at // 131072]
    for one, other in [(0, 1), (0, 256), (0, 512), (5, 513), (1023, 131071)]:
        for given in (words, words.clone().index_fill_(0, torch.tensor([other]), int(words[one]) ^ -(1 << 63))):
            changed = given.clone()
            changed[[one, other]] = given[[other, one]]
            found, was = (fingerprint(each.view(torch.uint8)) for each in (changed, given))
            assert (found != was).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
@pytest.mark.parametrize("side", [64, 1024])
def test_rows_of_a_table_that_change_places_are_found(dtype, side, device):
    """Its rows and columns have the same sums as before."""
    table = nn.Parameter(torch.eye(side).to(dtype).to(device), requires_grad=False)
    tm.park(table).wake()
    exchanged = torch.eye(side).to(dtype)[[2, 1, 0, *range(3, side)]]
    table.data.copy_(exchanged)
    with tm.parked(table) as parked:
        assert parked.copied_bytes
        assert torch.equal(table.detach(), exchanged)


# ---------------------------------------------------------------- while it is parked


def test_a_parked_state_can_be_read_saved_surveyed_and_trained(device):
    model, optimizer = trained(device)
    with tm.parked(model, optimizer):
        assert {slot.device.type for slot in tm.survey(model, optimizer).tensors} == {"cpu"}
        file = io.BytesIO()
        torch.save(model[0].weight, file)
        assert len(file.getvalue()) < model[0].weight.nbytes + 5000
        step(model, optimizer, 1)
        expected = {name: value.detach().clone() for name, value in tensors_of(model, optimizer).items()}
    assert all(torch.equal(value.cpu(), expected[name]) for name, value in tensors_of(model, optimizer).items())
    assert {value.grad.device for value in model.parameters()} == {device}
    step(model, optimizer, 2)


def test_what_was_read_while_it_was_parked_belongs_to_the_reader(device):
    model = nn.Linear(64, 64).to(device)
    with tm.parked(model):
        kept = model.state_dict()
    before = kept["weight"].clone()
    with torch.no_grad():
        model.weight.fill_(3)
    with tm.parked(model):
        assert torch.equal(kept["weight"], before)
        assert torch.equal(model.weight.detach(), torch.full((64, 64), 3.0))
    assert torch.equal(kept["weight"], before)


def test_a_host_copy_that_user_code_could_write_to_is_copied_again(device):
    model = nn.Linear(64, 64).to(device)
    before = model.weight.detach().cpu().clone()
    with tm.parked(model):
        kept = model.state_dict()
    kept["weight"].zero_()
    del kept
    with tm.parked(model):
        assert torch.equal(model.weight.detach(), before)
    assert torch.equal(model.weight.detach().cpu(), before)


def test_what_is_new_wakes_beside_what_it_belongs_to(device):
    model = nn.Linear(8, 8).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    with tm.parked(model, optimizer):
        model(torch.ones(1, 8)).sum().backward()
        optimizer.step()
    assert model.weight.grad.device == device
    assert optimizer.state[model.weight]["exp_avg"].device == device
    assert optimizer.state[model.weight]["step"].device.type == "cpu"


def test_remembered_devices_are_as_before(device):
    model = nn.Linear(4, 4).to(device)
    model.device, model.extra_device = device, str(device)
    with tm.parked(model):
        assert model.device == torch.device("cpu")
    assert (model.device, model.extra_device) == (device, str(device))


def test_what_is_kept_stays_and_what_was_elsewhere_goes_back_there(twin):
    models = [nn.Linear(8, 8).to(place) for place in ("twin:0", "twin:1", "cpu", "twin:0")]
    models[1].device = torch.device("twin:1")
    with tm.parked(models, keep=[models[3]]) as parked:
        assert [str(model.weight.device) for model in models] == ["cpu", "cpu", "cpu", "twin:0"]
        assert models[1].device == torch.device("cpu")
    assert [str(model.weight.device) for model in models] == ["twin:0", "twin:1", "cpu", "twin:0"]
    assert models[1].device == torch.device("twin:1")
    assert {str(device) for device in parked.freed} == {"twin:0", "twin:1"}


def test_a_second_wake_and_a_second_park_do_nothing(device):
    model = nn.Linear(4, 4).to(device)
    parked = tm.park(model)
    nothing = tm.park(model)
    assert nothing.freed_bytes == 0
    assert "nothing to park" in str(nothing)
    nothing.wake()
    assert model.weight.device.type == "cpu"
    receipt = parked.wake()
    places = addresses(dict(model.named_parameters()))
    assert parked.wake() is receipt
    assert addresses(dict(model.named_parameters())) == places


def test_a_state_moved_back_by_hand_needs_no_wake(device):
    model = nn.Linear(4, 4).to(device)
    parked = tm.park(model)
    tm.move(model, to=device)
    assert not parked.wake().plan.moves
    assert model.weight.device == device


def test_reports_kept_in_the_state_are_no_part_of_it(device):
    class Trainer:
        def __init__(self):
            self.model = nn.Linear(4, 4).to(device)

    trainer = Trainer()
    trainer.handle = tm.park(trainer)
    trainer.handle.wake()
    trainer.receipt = tm.move(trainer, to="cpu")
    tm.move(trainer, to=device)
    assert tm.verify(trainer, on=device).ok
    with pytest.raises(TypeError, match="cannot search Parked"):
        tm.park(trainer.handle)


def test_new_state_wakes_beside_its_parameter(twin):
    model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 4).to("twin:0"), nn.Linear(4, 4).to("twin:1"))
    optimizer = torch.optim.Adam(model.parameters())
    with tm.parked(model, optimizer):
        model[2](model[1](model[0](torch.tensor([1, 2])))).sum().backward()
        optimizer.step()
    for layer in model:
        for key, value in optimizer.state[layer.weight].items():
            assert value.device == (torch.device("cpu") if key == "step" else layer.weight.device)
        assert layer.weight.grad.device == layer.weight.device


def test_what_is_new_in_something_kept_is_kept(device):
    model, ema = nn.Linear(4, 4).to(device), nn.Linear(4, 4)
    with tm.parked(model, ema, keep=[ema]):
        ema.load_state_dict({"weight": torch.ones(4, 4), "bias": torch.ones(4)}, assign=True)
    assert ema.weight.device.type == "cpu"


def test_a_block_that_cannot_wake_hands_the_state_over(device):
    model, alive = nn.Linear(4, 4).to(device), []

    def work(error: type[Exception] | None) -> None:
        with tm.parked(model):
            alive.append(model(torch.ones(1, 4)).sum())
            if error is not None:
                raise error

    with pytest.warns(UserWarning, match="still parked"), pytest.raises(KeyError) as raised:
        work(KeyError)
    alive.clear()
    raised.value.parked.wake()
    assert model.weight.device == device
    with pytest.raises(tm.MoveRefused, match="R033") as refused:
        work(None)
    alive.clear()
    refused.value.parked.wake()
    assert model.weight.device == device


def test_the_block_wakes_on_exceptions_too(device):
    model = nn.Linear(4, 4).to(device)
    with pytest.raises(KeyError), tm.parked(model):
        raise KeyError
    assert model.weight.device == device


# ---------------------------------------------------------------- what can go wrong


def test_no_room_at_wake_time(twin):
    model = nn.Linear(64, 64).to("twin:0")
    before = trace(dict(model.named_parameters()))
    parked = tm.park(model)
    twin.limit_bytes(1000)
    with pytest.raises(tm.MoveRefused, match=r"needs .* has .*still parked"):
        parked.wake()
    assert parked.is_parked
    assert model.weight.device.type == "cpu"
    twin.limit_bytes(-1)
    parked.wake()
    assert not parked.is_parked
    assert_same(before, trace(dict(model.named_parameters())))


def make_it_fail(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, at: int) -> None:
    """The call of that number fails, once."""
    real, calls = getattr(owner, name), iter(range(1, 1 << 30))

    def failing(*args: Any, **options: Any) -> Any:
        if next(calls) == at:
            raise RuntimeError("out of order")
        return real(*args, **options)

    monkeypatch.setattr(owner, name, failing)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("way", ["park", "wake"])
def test_a_fault_on_the_way_changes_nothing(way, share, device, monkeypatch):
    monkeypatch.setattr(arena, "_are_neighbors", lambda *_: False)  # so that there are pieces to fail at
    model, optimizer = trained(device, WORKS["AdamW foreach"])
    tensors = tensors_of(model, optimizer)
    tm.park(model, optimizer).wake()
    step(model, optimizer, 1)
    before = trace(tensors)
    pieces = sum(1 for value in tensors.values() if value.device == device)
    with monkeypatch.context() as patch:
        if way == "park":
            make_it_fail(patch, arena.Lane, "copy", max(1, int(pieces * share)))
            with pytest.raises(tm.MoveFailed, match="out of order"):
                tm.park(model, optimizer)
            assert {value.device for value in model.parameters()} == {device}
        else:
            parked = tm.park(model, optimizer)
            make_it_fail(patch, arena.Lane, "copy", max(1, int(pieces * share)))
            with pytest.raises(tm.MoveFailed, match="out of order"):
                parked.wake()
            assert parked.is_parked
            assert {value.device.type for value in model.parameters()} == {"cpu"}
        assert_same(before, trace(tensors))
        if way == "wake":
            parked.wake()
        else:
            tm.park(model, optimizer).wake()
    assert_same(before, trace(tensors))
    step(model, optimizer, 2)


@pytest.mark.parametrize("step", ["call_overrides", "_wait_for"])
def test_an_error_that_is_kept_holds_no_memory(step, device, monkeypatch):
    model = nn.Linear(1000, 600).to(device)
    tm.park(model).wake()
    with monkeypatch.context() as patch:
        make_it_fail(patch, _apply, step, 1)
        with pytest.raises(tm.MoveFailed) as kept:
            tm.park(model)
    receipt = tm.move(model, to="cpu", mover="plain")
    assert receipt.held == ()
    assert kept.value.__cause__ is not None


def test_a_tensor_on_a_larger_storage_at_the_same_address_is_parked(twin):
    count = 3 << 17  # elements of 4 bytes: one and a half MiB
    tensor = torch.randn(count).to("twin:0")
    tm.park(tensor).wake()
    tensor.data = torch.randn(2 * count, device="twin:0")[:count]
    # As if the new storage lay where the old one was, which happens when it pleases the allocator.
    host_copy, address = host_copies.of(tensor), tensor.data_ptr()
    run = host_copy.baseline.run
    run.piece, run.members = run.piece._replace(address=address), [(address, tensor.nbytes)]
    host_copy.baseline = host_copy.baseline._replace(address=address)
    expected = tensor.cpu()
    with tm.parked(tensor):
        assert torch.equal(tensor, expected)
    assert torch.equal(tensor.cpu(), expected)


def test_every_allocation_of_a_wake_may_fail(twin):
    model, optimizer = trained(torch.device("twin:0"), WORKS["AdamW foreach"])
    tensors = tensors_of(model, optimizer)
    before = trace(tensors)
    parked = tm.park(model, optimizer)
    used = twin.bytes_in_use()
    failures = 0
    for number in range(1, 100):
        twin.fail_at(number)
        try:
            parked.wake()
        except tm.MoveFailed:
            failures += 1
            assert twin.bytes_in_use() == used
            assert_same(before, trace(tensors))
        else:
            break
    twin.fail_at(0)
    assert failures > 10
    assert_same(before, trace(tensors))


@pytest.mark.parametrize("way", ["park", "wake"])
def test_ctrl_c_changes_nothing(way, device):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has it ignored in what runs in the background
    model, optimizer = trained(device, WORKS["AdamW foreach"])
    tensors = tensors_of(model, optimizer)
    chance = random.Random(0)
    before = trace(tensors)
    broken_off = 0
    for _ in range(60):
        parked = tm.park(model, optimizer) if way == "wake" else None
        timer = threading.Timer(chance.uniform(0, 0.02), os.kill, (os.getpid(), signal.SIGINT))
        try:
            timer.start()
            parked = tm.park(model, optimizer) if parked is None else parked
            if way == "wake":
                parked.wake()
            timer.join()
        except KeyboardInterrupt:
            broken_off += 1
        timer.join()
        assert_same(before, trace(tensors))
        places = {value.device.type for value in model.parameters()}
        assert len(places) == 1
        if places == {"cpu"}:
            tm.move(model, optimizer, to=device)
    assert broken_off


@pytest.mark.cuda
def test_what_cannot_be_locked_goes_to_ordinary_memory(monkeypatch):
    tm.release()
    device = torch.device("cuda:0")
    monkeypatch.setattr(arena, "CHUNK", HUGE_PAGE)
    calls = iter(range(100))
    real = arena.lock

    def refuse(address: int, nbytes: int) -> None:
        if next(calls):
            raise CannotLock("the driver refused")
        real(address, nbytes)

    monkeypatch.setattr(arena, "lock", refuse)
    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(4))).to(device)
    before = trace(dict(model.named_parameters()))
    parked = tm.park(model)
    assert parked.ordinary_bytes > 0
    assert "ordinary memory" in str(parked)
    assert_same(before, trace(dict(model.named_parameters())))
    parked.wake()
    assert_same(before, trace(dict(model.named_parameters())))


def test_a_budget_of_host_memory_is_kept(device):
    model = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(4))).to(device)
    before = trace(dict(model.named_parameters()))
    parked = tm.park(model, host_bytes=3 * 64 * 64 * 4)
    assert host_copies.arena.nbytes <= 3 * 64 * 64 * 4
    assert parked.ordinary_bytes == 64 * 64 * 4
    assert "host_bytes" in str(parked)
    parked.wake()
    assert_same(before, trace(dict(model.named_parameters())))
    with pytest.raises(ValueError, match="host_bytes"):
        tm.park(model, host_bytes=-1)


def test_the_host_has_to_have_room_too_unless_it_is_kept(device, monkeypatch):
    kept, other = (nn.Linear(64, 64).to(device) for _ in range(2))
    tm.park(kept).wake()
    park_module = sys.modules["torchmove.parking.parked_states"]
    real = park_module.free_memory
    monkeypatch.setattr(park_module, "free_memory", lambda each: 1000 if each.type == "cpu" else real(each))
    with pytest.raises(tm.MoveRefused, match="R042"):
        tm.park(other)
    with tm.parked(kept):
        assert kept.weight.device.type == "cpu"
    assert kept.weight.device == other.weight.device == device


# ---------------------------------------------------------------- the arena


def in_use(device: torch.device) -> int:
    module = torch.get_device_module(device)
    return module.memory_allocated(device) if device.type == "cuda" else module.bytes_in_use()


@pytest.mark.slow
def test_a_thousand_cycles_take_no_more_memory_than_one(device):
    model, optimizer = trained(device)
    tm.park(model, optimizer).wake()
    used, kept = in_use(device), host_copies.arena.nbytes
    for _ in range(1000 if device.type != "cuda" else 100):
        tm.park(model, optimizer).wake()
    assert in_use(device) == used
    assert host_copies.arena.nbytes == kept


def test_no_span_crosses_from_one_locked_chunk_into_the_next(monkeypatch):
    """Torch, and whoever else copies what is parked, knows nothing of them."""
    monkeypatch.setattr(arena, "CHUNK", 10_000)
    chance, made = random.Random(0), arena.Arena()
    spans: list[arena.Span] = []
    for _ in range(200):
        spans += [each for each in made.take([chance.randrange(1, 15_000) for _ in range(20)], locked=False) if each]
        for span in spans:
            start, stop = span.offset, span.offset + span.nbytes
            assert not any(start < border < stop for border in span.extent.borders)
        taken = sorted((id(span.extent), span.offset, span.nbytes) for span in spans)
        assert all(one[0] != other[0] or one[1] + one[2] <= other[1] for one, other in itertools.pairwise(taken))
        chance.shuffle(spans)
        made.give_back(spans[:15])
        del spans[:15]
    made.give_back(spans)
    made.shrink()
    assert made.nbytes == 0


def test_the_memory_of_states_that_are_gone_is_used_again(device):
    for _ in range(5):
        model = nn.Linear(300, 300).to(device)
        tm.park(model).wake()
        size = host_copies.arena.nbytes
        assert size <= 300 * 301 * 4 + 2 * arena.LINE
        del model
        gc.collect()


def test_what_grows_does_not_leave_its_old_places_behind(device):
    model = nn.Module()
    for size in range(1, 20):
        model.replay = torch.zeros(size << 16, device=device)
        with tm.parked(model):
            assert host_copies.arena.nbytes <= 2 * model.replay.nbytes


def test_release_gives_back_all_but_what_is_parked(device):
    awake, parked = nn.Linear(300, 300).to(device), nn.Linear(200, 200).to(device)
    before = trace(dict(parked.named_parameters()))
    tm.park(awake).wake()
    handle = tm.park(parked)
    tm.release()
    assert host_copies.arena.nbytes < 250 * 250 * 4
    assert_same(before, trace(dict(parked.named_parameters())))
    tm.release()
    handle.wake()
    assert_same(before, trace(dict(parked.named_parameters())))
    tm.release()
    assert host_copies.arena.nbytes == 0


def test_threads_park_states_of_their_own(device):
    errors: list[BaseException] = []

    def go(seed: int) -> None:
        try:
            model = nn.Linear(100 + seed, 100).to(device)
            before = trace(dict(model.named_parameters()))
            for _ in range(10):
                with tm.parked(model, progress=False):
                    assert_same(before, trace(dict(model.named_parameters())))
            assert_same(before, trace(dict(model.named_parameters())))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=go, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


@pytest.mark.filterwarnings("ignore")
def test_a_forked_child_reads_what_is_parked_and_may_end(device):
    model = nn.Linear(64, 64).to(device)
    expected = float(model.weight.detach().cpu().sum())
    parked = tm.park(model)
    child = os.fork()
    if child == 0:
        os._exit(0 if float(model.weight.detach().sum()) == expected else 1)
    assert os.waitpid(child, 0)[1] == 0
    parked.wake()
    assert float(model.weight.detach().cpu().sum()) == expected


# ---------------------------------------------------------------- swap


def test_swap(device):
    policy, reward = (nn.Sequential(nn.Linear(300, 300), nn.Linear(300, 3)).to(device) for _ in range(2))
    traces = [trace(dict(each.named_parameters())) for each in (policy, reward)]
    resting = tm.park(reward)
    for _ in range(2):
        swapped = tm.swap(out=policy, into=resting)
        assert swapped.at_once
        assert {value.device for value in reward.parameters()} == {device}
        assert {value.device.type for value in policy.parameters()} == {"cpu"}
        again = tm.swap(out=reward, into=swapped.parked)
        assert {value.device for value in policy.parameters()} == {device}
        resting = again.parked
        for each, before in zip((policy, reward), traces, strict=True):
            assert_same(before, trace(dict(each.named_parameters())))
    assert again.parked.unchanged_bytes
    assert "swapped" in str(again)
    assert report(again).facts()["at_once"]


def test_swap_with_one_that_was_never_parked(device):
    leaves, comes = nn.Linear(30, 30).to(device), nn.Linear(20, 20)
    swapped = tm.swap(out=[leaves], into=comes)
    assert comes.weight.device == device
    assert leaves.weight.device.type == "cpu"
    tm.swap(out=comes, into=swapped.parked)
    assert leaves.weight.device == device


def test_a_swap_of_objects_that_overlap_is_refused(device):
    model = nn.Linear(3, 3).to(device)
    with pytest.raises(ValueError, match="in common"):
        tm.swap(out=model, into=[model])
    with pytest.raises(ValueError, match=r"both hold"):
        tm.swap(out=model, into=nn.Sequential(model, nn.Linear(3, 3)))
    with pytest.raises(TypeError, match="cannot search generator"):
        tm.swap(out=model.parameters(), into=nn.Linear(2, 2))


def test_swap_where_there_is_room_for_one(twin):
    policy, reward = nn.Linear(100, 100).to("twin:0"), nn.Linear(100, 100).to("twin:0")
    resting = tm.park(reward)
    twin.limit_bytes(60000)
    swapped = tm.swap(out=policy, into=resting)
    assert not swapped.at_once
    assert reward.weight.device == torch.device("twin:0")
    twin.limit_bytes(10)
    with pytest.raises(tm.MoveRefused, match="R042"):
        tm.swap(out=nn.Linear(2, 2).to("cpu"), into=swapped.parked)
    assert policy.weight.device.type == "cpu"


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_swap_that_fails_swaps_nothing(number, device, monkeypatch):
    policy, reward = (nn.Linear(300, 300).to(device) for _ in range(2))
    before = [trace(dict(each.named_parameters())) for each in (policy, reward)]
    resting = tm.park(reward)
    monkeypatch.setattr(arena, "_are_neighbors", lambda *_: False)
    with monkeypatch.context() as patch:
        make_it_fail(patch, arena.Lane, "copy", number)
        with pytest.raises(tm.MoveFailed, match="out of order"):
            tm.swap(out=policy, into=resting)
    assert resting.is_parked
    assert {value.device for value in policy.parameters()} == {device}
    assert {value.device.type for value in reward.parameters()} == {"cpu"}
    tm.swap(out=policy, into=resting)
    for each, was in zip((policy, reward), before, strict=True):
        assert_same(was, trace(dict(each.named_parameters())))
