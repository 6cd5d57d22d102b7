"""The part "park" of speed.py: a state parked and woken, first and later, changed and unchanged; and two that swap."""

from __future__ import annotations

import gc
import itertools
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.fsdp import fully_shard

import torchmove as tm
from torchmove import devices as _devices
from torchmove.bench import (
    CPU,
    HostPeak,
    Link,
    TrainingState,
    by_module_to,
    filled,
    resident_bytes,
    transformer,
    trip,
    warm_up,
)
from torchmove.moving import leftovers as _freeing

TURNS, CYCLES = 3, 20
Tell = Callable[[str], None]


def park(device: torch.device, *, quick: bool, tell: Tell) -> dict[str, Any]:
    nbytes = 6_000_000 if quick else 14_500_000_000
    warm_up(device)
    tell("Module.to and a loop")
    theirs = transformer(nbytes)
    by_module_to(theirs, device)
    usual_seconds = _seconds(partial(by_module_to, theirs, CPU), device)
    del theirs
    gc.collect()
    tell("the first park")
    state = transformer(nbytes)
    tm.move(*state, to=device, progress=False)
    figures = {"bytes": state.nbytes, "tensors": len(state.tensors()), **_cycles(state, device, tell)}
    del state
    gc.collect()
    tm.release()
    link = None if device.type != "cuda" else statistics.median(trip(Link(device), device).back for _ in range(5))
    figures["usual_seconds"] = usual_seconds
    figures["link_gb_per_second"] = None if link is None else (1 << 29) / link / 1e9
    if device.type == "cuda":
        figures["shards"] = _shards(nbytes, device, tell)
    return {**figures, "swap": _swaps(4_000_000 if quick else 8_000_000_000, device, tell)}


def _cycles(state: TrainingState, device: torch.device, tell: Tell) -> dict[str, Any]:
    away = [tensor for tensor in state.tensors() if tensor.device == device]
    _freeing.wait_for_freeing()
    host = resident_bytes()
    seconds: dict[str, Any] = {}
    with HostPeak() as peak:
        parked, seconds["first"] = _parked(state, device)
    found = {"freed_bytes": parked.freed_bytes, "device_bytes": sum(tensor.nbytes for tensor in away)}
    found["host_bytes"] = None if host is None or peak.nbytes is None else peak.nbytes - host
    seconds["first wake"] = _seconds(parked.wake, device)
    for name, part in {"changed": away, "half changed": away[: len(away) // 2], "unchanged": []}.items():
        tell(name)
        laps = [_lap(state, part, device) for _ in range(TURNS)]
        seconds[name], seconds[f"wake {name}"] = (statistics.median(leg) for leg in zip(*laps, strict=True))
    found["unchanged_stages"] = min((_stages(state, device) for _ in range(TURNS)), key=lambda each: sum(each.values()))
    found["half_bytes"] = sum(tensor.nbytes for tensor in away[: len(away) // 2])
    found["found_by_fingerprint"] = _writes_found(state, away[0])
    tell(f"{CYCLES} cycles")
    before = resident_bytes(), _devices.driver_free_memory(device)
    for _ in range(CYCLES):
        _lap(state, away[::50], device)
    after = resident_bytes(), _devices.driver_free_memory(device)
    found["grown_host_bytes"] = None if before[0] is None or after[0] is None else after[0] - before[0]
    found["grown_device_bytes"] = None if before[1] is None or after[1] is None else before[1] - after[1]
    return {**found, "seconds": seconds}


def _shards(nbytes: int, device: torch.device, tell: Tell) -> dict[str, float]:
    """The same state, sharded by FSDP on one rank."""
    tell("shards")
    distributed.init_process_group("nccl", init_method="tcp://localhost:0", rank=0, world_size=1)
    model = transformer(nbytes).model.to(device)
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    state = TrainingState(model, optimizer)
    away = [tensor for tensor in state.tensors() if tensor.device == device]
    parked, first = _parked(state, device)
    parked.wake(progress=False)
    laps = [_lap(state, away, device) for _ in range(TURNS)]
    changed, woken = (statistics.median(leg) for leg in zip(*laps, strict=True))
    distributed.destroy_process_group()
    return {"first": first, "changed": changed, "wake changed": woken}


def _lap(state: TrainingState, part: Sequence[Tensor], device: torch.device) -> tuple[float, float]:
    with torch.no_grad():
        for tensor in part:
            tensor.add_(1)
    parked, seconds = _parked(state, device)
    return seconds, _seconds(parked.wake, device)


def _parked(state: TrainingState, device: torch.device) -> tuple[tm.Parked, float]:
    _devices.synchronize_device(device)
    began = time.perf_counter()
    parked = tm.park(*state, progress=False)
    return parked, time.perf_counter() - began


def _stages(state: TrainingState, device: torch.device) -> dict[str, float]:
    """Seconds in each stage of a park of what has not changed since it was woken."""
    parked, total = _parked(state, device)
    parked.wake(progress=False)
    stages = {name: ended - began for name, began, ended in (*parked.receipt.plan.stages, *parked.receipt.stages)}
    return {**stages, "the rest, mostly memory given back to the driver": total - sum(stages.values())}


def _writes_found(state: TrainingState, tensor: Tensor) -> bool:
    """One element, written past the version counter."""
    tensor.data.view(-1)[-1] += 1
    expected = tensor.detach().cpu().clone()
    with tm.parked(*state, progress=False) as parked:
        return parked.copied_bytes > 0 and torch.equal(tensor.detach(), expected)


def _swaps(nbytes: int, device: torch.device, tell: Tell) -> dict[str, Any]:
    tell("swaps")
    one, other = (_model(nbytes).to(device) for _ in range(2))
    tm.park(one, progress=False).wake()
    resting = tm.park(other, progress=False)
    laps: defaultdict[str, list[float]] = defaultdict(list)
    for turn in range(2 * TURNS):
        for changed, at_once in itertools.product((True, False), (False, True)):
            if changed:
                _change(one)
            _devices.synchronize_device(device)
            began = time.perf_counter()
            if at_once:
                left = tm.swap(out=one, into=resting, progress=False).parked
            else:
                left = tm.park(one, progress=False)
                resting.wake(progress=False)
            if turn:  # both have their places by then
                laps[f"{'at once' if at_once else 'in turn'}{'' if changed else ', unchanged'}"].append(
                    time.perf_counter() - began
                )
            one, other, resting = other, one, left  # the next time it is the other's turn to leave
    return {"bytes": nbytes, "seconds": {name: statistics.median(those) for name, those in laps.items()}}


def _model(nbytes: int) -> nn.Module:
    side = max(8, int((nbytes / 4 / 32) ** 0.5))
    return filled(nn.Sequential(*(nn.Linear(side, side, bias=False, device="meta") for _ in range(32))))


def _change(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)


def _seconds(go: Callable[[], object], device: torch.device) -> float:
    _devices.synchronize_device(device)
    began = time.perf_counter()
    go()
    _devices.synchronize_device(device)
    return time.perf_counter() - began
