"""What the tests of many ranks run on each of them: torchrun ... program.py CASE...

Each case makes a state twice, moves one of the two in mid-training and compares what becomes of both, bit for bit; or
has something go wrong on one rank and looks at what the others are left with.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

sys.path.append(str(Path(__file__).parents[1]))

import torchmove as tm
from torchmove.moving import agreement as _agreement
from torchmove.moving import apply as _apply
from torchmove.testing import refresh

SECONDS = float(os.environ.get("GROUP_SECONDS", "60"))
DEVICE = os.environ.get("DEVICE", "cpu")  # of all ranks
State = tuple[nn.Module, torch.optim.Optimizer]


def mesh() -> Any:
    return init_device_mesh(DEVICE, (distributed.get_world_size(),))


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 11), nn.Tanh(), nn.Linear(11, 8), nn.Tanh(), nn.Linear(8, 4))


def sharded(**options: Any) -> State:
    model = layers().to(DEVICE)
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh(), **options)
    fully_shard(model, mesh=mesh(), **options)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def tensor_parallel() -> State:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
    parallelize_module(model, mesh(), {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return model, torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)


def replicated() -> State:
    model = DistributedDataParallel(layers(), bucket_cap_mb=1, gradient_as_bucket_view=True)
    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def train(state: State, number: int, *, same_everywhere: bool = False) -> None:
    backward(state, number, same_everywhere=same_everywhere)
    state[1].step()


def backward(state: State, number: int, *, same_everywhere: bool = False) -> None:
    seed = number * 100 + (0 if same_everywhere else distributed.get_rank())
    batch = torch.randn(4, 6, generator=torch.Generator().manual_seed(seed)).to(DEVICE)
    state[1].zero_grad()
    state[0](batch).square().sum().backward()


def bits(state: State) -> list[bytes]:
    tensors = [*state[0].parameters(), *(parameter.grad for parameter in state[0].parameters())]
    tensors += [value for each in state[1].state.values() for value in each.values()]
    return [local(each).numpy().tobytes() for each in tensors if isinstance(each, Tensor)]


def local(tensor: Any) -> Tensor:
    tensor = tensor.detach()
    return (tensor.to_local() if hasattr(tensor, "to_local") else tensor).cpu()


def assert_alike(one: State, other: State) -> None:
    assert bits(one) == bits(other)


def go_on_alike(one: State, other: State, **options: Any) -> None:
    for number in range(1, 11):
        train(one, number, **options)
        train(other, number, **options)
        assert_alike(one, other)


# ---------------------------------------------------------------- moved, and trained on


def say_mesh_is_on(kind: str, state: State) -> None:
    """The twin has no process group. A mesh that only says that it is there makes the way there and back that of a mesh
    on an accelerator."""
    for parameter in state[0].parameters():
        parameter.device_mesh._device_type = kind


def moved_twice(make: Callable[[], State], **options: Any) -> None:
    from twin import install

    install()
    one, other = make(), make()
    train(one, 0, **options)
    train(other, 0, **options)
    refresh(*one)
    assert_alike(one, other)
    go_on_alike(one, other, **options)
    refused_away_from_its_mesh(one)
    say_mesh_is_on("twin", one)
    receipt = tm.move(*one, to="twin:0")
    assert receipt.plan.notes == ()
    assert {local_device(parameter) for parameter in one[0].parameters()} == {"twin:0"}
    table = tm.by_rank(receipt)
    assert [row["rank"] for row in sorted(table.rows, key=lambda row: row["rank"])] == list(
        range(distributed.get_world_size())
    )
    assert "the slowest" in str(table)
    parked = tm.park(*one)
    assert {local_device(parameter) for parameter in one[0].parameters()} == {"cpu"}
    assert_alike(one, other)
    parked.wake()
    assert {local_device(parameter) for parameter in one[0].parameters()} == {"twin:0"}
    swapped = tm.swap(out=one, into=nn.Linear(3, 3))
    assert {local_device(parameter) for parameter in one[0].parameters()} == {"cpu"}
    swapped.parked.wake()
    assert {local_device(parameter) for parameter in one[0].parameters()} == {"twin:0"}
    receipt = tm.move(*one, to="cpu")
    assert [note.code for note in receipt.plan.notes] == ["N048"], receipt.plan.notes
    say_mesh_is_on("cpu", one)
    go_on_alike(one, other, **options)


def refused_away_from_its_mesh(state: State) -> None:
    before = bits(state)
    with refused("R048"):
        tm.move(*state, to="twin:0")
    assert len([each for each in tm.plan(*state, to="twin:0").refusals if each.code == "R048"]) == 1
    assert bits(state) == before
    kept = [state[0], *state[0].parameters(), state[1]]
    assert tm.plan(*state, nn.Linear(2, 2), to="twin:0", keep=kept).ok


def local_device(parameter: Any) -> str:
    return str(parameter.to_local().device)


def fsdp() -> None:
    moved_twice(sharded)


def fsdp_on_a_gpu() -> None:
    one, other = sharded(), sharded()
    train(one, 0)
    train(other, 0)
    for _ in range(2):
        tm.move(*one, to="cpu")
        assert {local_device(parameter) for parameter in one[0].parameters()} == {"cpu"}
        assert_alike(one, other)
        tm.move(*one, to="cuda:0")
        assert {local_device(parameter) for parameter in one[0].parameters()} == {"cuda:0"}
        go_on_alike(one, other)
        with tm.parked(*one) as parked:
            assert parked.copied_bytes
            assert_alike(one, other)
        go_on_alike(one, other)
    for state in (one, other):
        backward(state, 5)
    tm.park(*one).wake()
    for state in (one, other):
        state[1].step()
    go_on_alike(one, other)


def fsdp_in_mixed_precision() -> None:
    moved_twice(lambda: sharded(mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16)))


def fsdp_at_other_moments() -> None:
    """Before the first forward; after one that leaves weights gathered; between backward and step."""
    one, other = sharded(), sharded()
    refresh(*one)
    for state in (one, other):
        with torch.no_grad():
            state[0](torch.ones(2, 6))
    one[0][0].unshard()
    plan = tm.plan(*one, to="cpu")
    assert {refusal.code for refusal in plan.refusals} == {"R028"}, plan
    tm.move(*one, to="cpu")
    for state in (one, other):
        backward(state, 7)
    refresh(*one)
    for state in (one, other):
        state[1].step()
    go_on_alike(one, other)


def fsdp_offloaded_is_refused() -> None:
    state = sharded()
    for layer in state[0]:
        if isinstance(layer, nn.Linear):
            layer.set_requires_gradient_sync(False)
    backward(state, 0)
    with refused("R021"):
        tm.move(*state, to="cpu")
    state = sharded(offload_policy=CPUOffloadPolicy(pin_memory=False))
    with refused("R021"):
        tm.move(*state, to="cpu")


def tensors_in_parallel() -> None:
    moved_twice(tensor_parallel, same_everywhere=True)


def ddp() -> None:
    one, other = replicated(), replicated()
    for state in (one, other):
        train(state, 0)
    with refused("R020"):
        tm.move(*one, to="cpu")
    refresh(one[0].module, one[1])
    again = tm.rewrap(one[0], one[1], to="cpu")
    assert again is not one[0]
    assert again.module is one[0].module
    assert again.gradient_as_bucket_view
    if distributed.get_world_size() > 2:
        # DDP orders its buckets anew after its first step, and many numbers are summed in the order of buckets.
        other = (DistributedDataParallel(other[0].module, bucket_cap_mb=1, gradient_as_bucket_view=True), other[1])
    go_on_alike((again, one[1]), other)
    with again.no_sync(), refused("R020"):
        tm.rewrap(again, one[1], to="cpu")
    try:
        one[0](torch.ones(1, 6))
    except RuntimeError as error:
        said = str(error)
    assert "Fix: model = tm.rewrap(model" in said


# ---------------------------------------------------------------- something goes wrong on one rank


@contextlib.contextmanager
def refused(code: str) -> Iterator[None]:
    try:
        yield
    except tm.MoveRefused as error:
        found = str(error)
    else:
        found = "nothing"
    assert code in found, f"{code} was expected: {found}"


@contextlib.contextmanager
def fails(*words: str) -> Iterator[None]:
    try:
        yield
    except tm.TorchmoveError as error:
        found = str(error)
    else:
        found = "nothing"
    assert all(word in found for word in words), f"{words} were expected: {found}"


def on_the_last_rank() -> bool:
    return distributed.get_rank() == distributed.get_world_size() - 1


def in_mid_training() -> tuple[State, State, list[bytes]]:
    from twin import install

    install()
    one, other = sharded(), sharded()
    for state in (one, other):
        train(state, 0)
    say_mesh_is_on("twin", one)
    return one, other, bits(one)


def broken_at(owner: Any, name: str, call: int) -> Any:
    """The call of that number fails, on the last rank."""
    real, count = getattr(owner, name), iter(range(1, 1 << 30))

    def broken(*args: Any, **options: Any) -> Any:
        if on_the_last_rank() and next(count) == call:
            raise MemoryError("no room here")
        return real(*args, **options)

    setattr(owner, name, broken)
    return real


def a_fault_at_any_stage() -> None:
    from torchmove.moving.movers import copies as plain

    one, other, before = in_mid_training()
    last = distributed.get_world_size() - 1
    copies = len(tm.plan(*one, to="twin:0").moves)
    stages = [
        (plain, "copy_storage", 1),
        (plain, "copy_storage", copies),
        (_apply, "_rebind_all", 1),
        (_apply, "call_overrides", 1),
    ]
    for owner, name, call in stages:
        real = broken_at(owner, name, call)
        words = ("no room here",) if on_the_last_rank() else (f"rank {last}", "no room here")
        with fails(*words):
            tm.move(*one, to="twin:0")
        setattr(owner, name, real)
        assert bits(one) == before
        assert {local_device(parameter) for parameter in one[0].parameters()} == {"cpu"}
    tm.move(*one, to="twin:0")
    tm.move(*one, to="cpu")
    go_on_alike(one, other)


def a_swap_that_fails_on_one_rank() -> None:
    from torchmove.parking import arena

    one, _, before = in_mid_training()
    tm.move(*one, to="twin:0")
    comes = nn.Linear(5, 5)
    real = broken_at(arena.Lane, "copy", 2)
    with fails("no room here"):
        tm.swap(out=one, into=comes)
    arena.Lane.copy = real
    assert bits(one) == before
    assert comes.weight.device.type == "cpu"
    assert {local_device(parameter) for parameter in one[0].parameters()} == {"twin:0"}
    with refused("R050"):
        tm.move(*one, to="cpu", keep=[one[1]] if on_the_last_rank() else [])
    tm.swap(out=one, into=comes)
    assert bits(one) == before


def a_refusal_on_one_rank() -> None:
    one, other, before = in_mid_training()
    last = distributed.get_world_size() - 1
    loss = one[0](torch.ones(2, 6)).sum()
    loss = loss if on_the_last_rank() else loss.detach()
    with fails(f"rank {last}", "R033"):
        tm.move(*one, to="twin:0")
    del loss
    with fails(f"rank {last}", "R011"):
        tm.move(*one, to="twin:0", keep=["nothing.like.it"] if on_the_last_rank() else [])
    assert bits(one) == before
    go_on_alike(one, other)


def an_interrupt_on_one_rank() -> None:
    one, other, before = in_mid_training()
    real = _apply.call_overrides

    def interrupted(*args: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return real(*args)

    if on_the_last_rank():
        _apply.call_overrides = interrupted
    if on_the_last_rank():
        with contextlib.suppress(KeyboardInterrupt):
            tm.move(*one, to="twin:0")
            raise AssertionError("an interrupt was expected")
    else:
        with fails("KeyboardInterrupt"):
            tm.move(*one, to="twin:0")
    _apply.call_overrides = real
    assert bits(one) == before
    go_on_alike(one, other)


def different_calls() -> None:
    one, other, before = in_mid_training()
    began = time.monotonic()
    with refused("R050"):
        tm.move(*one, to="cpu" if on_the_last_rank() else "twin:0")
    with refused("R050"):
        tm.move(*(one[:1] if on_the_last_rank() else one), to="twin:0")
    if on_the_last_rank():
        print(f"different calls were refused after {time.monotonic() - began:.2f} s")
    assert bits(one) == before
    go_on_alike(one, other)


def a_rank_that_never_calls() -> None:
    one, _, before = in_mid_training()
    tm.move(*one, to="cpu")
    if on_the_last_rank():
        time.sleep(SECONDS + 3)
        os._exit(0)
    began = time.monotonic()
    with fails("did not answer"):
        tm.move(*one, to="twin:0")
    spent = time.monotonic() - began
    print(f"a missing rank was told after {spent:.2f} s, the group's timeout is {SECONDS} s")
    assert spent < 2 * SECONDS + 1
    assert bits(one) == before
    os._exit(0)


def a_rank_that_dies() -> None:
    one, _, before = in_mid_training()
    tm.move(*one, to="cpu")
    if on_the_last_rank():
        _agreement.Agreement._vote = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    with fails("did not answer"):
        tm.move(*one, to="twin:0")
    print(f"a rank that was killed was told after {time.monotonic() - began:.2f} s")
    assert bits(one) == before
    assert {local_device(parameter) for parameter in one[0].parameters()} == {"cpu"}
    sys.stdout.flush()
    os._exit(0)


def main() -> None:
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if DEVICE == "cuda":
        torch.cuda.set_device(0)  # all of them on one card
    backend = os.environ.get("BACKEND", "gloo")
    distributed.init_process_group(backend, timeout=datetime.timedelta(seconds=SECONDS))
    for name in sys.argv[1:]:
        globals()[name]()
        distributed.barrier()
        if distributed.get_rank() == 0:
            print(f"done: {name}", flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
