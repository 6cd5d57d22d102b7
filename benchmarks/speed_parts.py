"""The parts of speed.py. Each measures one thing in a process of its own and returns its figures."""

from __future__ import annotations

import gc
import importlib
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from operator import itemgetter
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
from park_parts import park
from torch import nn

import torchmove as tm
from torchmove.bench import (
    CPU,
    ByTorchmove,
    Go,
    TrainingState,
    Trip,
    by_module_to,
    compared,
    filled,
    in_mid_training,
    measure,
    most_bytes,
    of_each,
    take_turns,
    transformer,
    trip,
    warm_up,
    ways_of,
)
from torchmove.reporting import report

TURNS = 5


def tell(line: str) -> None:
    print(f"  {line}", file=sys.stderr, flush=True)


def whole_transformer(device: torch.device, *, quick: bool) -> dict[str, Any]:
    """1.2 billion parameters of float32 in 24 layers with AdamW: 4.8 GB of model, 14.5 GB together."""
    figures = report(measure(device, 6_000_000 if quick else 14_500_000_000, tell=tell)).facts()
    return {"bytes" if name == "nbytes" else name: figure for name, figure in figures.items()}


# ---------------------------------------------------------------- many small tensors


def small(device: torch.device, *, quick: bool) -> dict[str, Any]:
    """24 000 small parameters with AdamW, and where the time of a move goes."""
    mine, theirs = (_small_state(100 if quick else 12_000) for _ in range(2))
    count = len(mine.tensors())
    warm_up(device)
    goes: dict[str, Go] = {"usual": partial(by_module_to, theirs), "move": ByTorchmove(mine)}
    # It is the processor that is measured here, and on a shared machine that has good and bad seconds.
    turns = 2 * TURNS + 1
    trips = take_turns(goes, device, turns=turns, tell=tell)
    figures = of_each(trips, median) | {f"{name}_best": least for name, least in of_each(trips, min).items()}
    laps = [(_stages(goes["move"], device, count), _stages(goes["move"], CPU, count)) for _ in range(TURNS)]
    best = (min(leg, key=itemgetter("total")) for leg in zip(*laps, strict=True))
    return {
        "tensors": count,
        "bytes": mine.nbytes,
        "turns": turns,
        "ways": compared(ways_of(figures, mine.nbytes, {"move": "usual", "move_best": "usual_best"})),
        "us_a_tensor": dict(zip(Trip._fields, best, strict=True)),
    }


def _small_state(layers: int) -> TrainingState:
    return in_mid_training(nn.Sequential(*(nn.Linear(16, 21) for _ in range(layers))))


# Where the work of a stage is done. A name that is not there any more is left out, and its time is in "rest".
STAGES = [
    ("survey", "torchmove.chain", "survey_objects"),
    ("plan", "torchmove.chain", "make_plan"),
    ("sort", "torchmove.moving.apply", "_copy"),
    ("commit", "torchmove.moving.apply", "_commit"),
    ("verify", "torchmove.chain", "verify_move"),
]


def _stages(go: Go, to: torch.device, tensors: int) -> dict[str, float]:
    """Microseconds a tensor in each stage, without what other stages take inside of it."""
    spent: dict[str, float] = defaultdict(float)
    gc.collect()
    with _watched_stages(spent):
        began = time.perf_counter()
        go(to)
        total = time.perf_counter() - began
    spent["rest"] = total - sum(spent.values())
    return {name: seconds / tensors * 1e6 for name, seconds in [*spent.items(), ("total", total)]}


@contextmanager
def _watched_stages(spent: dict[str, float]) -> Iterator[None]:
    stack: list[str] = []
    with ExitStack() as patches:
        for stage, holder, name in [*_named_stages(), *_copying()]:
            patches.enter_context(patch.object(holder, name, _watch(getattr(holder, name), stage, stack, spent)))
        yield


def _watch(work: Callable[..., Any], stage: str, stack: list[str], spent: dict[str, float]) -> Callable[..., Any]:
    def watched(*args: Any, **options: Any) -> Any:
        # The survey that the proof begins with comes in the middle of the commit.
        mine = "verify" if stage == "survey" and stack else stage
        outer = stack[-1] if stack else None
        stack.append(mine)
        began = time.perf_counter()
        try:
            return work(*args, **options)
        finally:
            seconds = time.perf_counter() - began
            stack.pop()
            spent[mine] += seconds
            if outer is not None:
                spent[outer] -= seconds

    return watched


def _named_stages() -> list[tuple[str, Any, str]]:
    found = [(stage, sys.modules.get(module), name) for stage, module, name in STAGES]
    return [each for each in found if hasattr(each[1], each[2])]


def _copying() -> list[tuple[str, Any, str]]:
    modules = [module for name, module in sys.modules.items() if name.startswith("torchmove.moving.movers.")]
    kinds = [(kind, module) for module in modules for kind in vars(module).values() if isinstance(kind, type)]
    return [
        ("copy", kind, "copy") for kind, module in kinds if "copy" in vars(kind) and kind.__module__ == module.__name__
    ]


# ---------------------------------------------------------------- from the smallest to the largest


def sizes(device: torch.device, *, quick: bool) -> dict[str, Any]:
    """A model without an optimizer, in one tensor and in eight, from 1 KiB to 16 GiB."""
    warm_up(device)
    most = most_bytes(device) or 1 << 34
    totals = [1024 * 4**step for step in range(6 if quick else 13)]
    fit = [total for total in totals if total <= most]
    if fit != totals:
        tell(f"left out, more than a quarter of the free memory: {', '.join(map(str, totals[len(fit) :]))} bytes")
    return {"rows": [_size_row(total, pieces, device) for pieces in (1, 8) for total in fit]}


def _size_row(total: int, pieces: int, device: torch.device) -> dict[str, Any]:
    mine, theirs = _pieces(total, pieces), _pieces(total, pieces)
    turns = max(2, min(50, (1 << 32) // total))
    tell(f"{total} bytes in {pieces}, {turns} turns")
    goes: dict[str, Go] = {"usual": theirs.to, "move": lambda to: tm.move(mine, to=to, progress=False)}
    gc.collect()
    best = of_each(take_turns(goes, device, turns=turns), min)
    legs = {leg: {way: getattr(best[way], leg) for way in goes} for leg in Trip._fields}
    within = {leg: seconds["move"] <= 1.1 * seconds["usual"] + 0.002 for leg, seconds in legs.items()}
    return {"bytes": total, "tensors": pieces, "turns": turns, "seconds": legs, "within": within}


def _pieces(total: int, pieces: int) -> nn.Module:
    rows = total // pieces // 4 // 16
    return filled(nn.Sequential(*(nn.Linear(16, rows, bias=False, device="meta") for _ in range(pieces))))


# ---------------------------------------------------------------- beside others


def peers(device: torch.device, *, quick: bool) -> dict[str, Any]:
    """What Lightning and Accelerate move a module and its optimizer with, on one state each."""
    nbytes = 3_000_000 if quick else 3_000_000_000
    found, missing = {}, {}
    for name, find in {"lightning": _lightning, "accelerate": _accelerate}.items():
        try:
            found[name] = find()
        except ImportError as error:
            missing[name] = f"cannot be imported: {error}"
            tell(f"{name} is left out, it {missing[name]}")
    tell(f"making {2 + len(found)} states")
    goes: dict[str, Go] = {
        name: partial(go, transformer(nbytes)) for name, go in {"usual": by_module_to, **found}.items()
    }
    mine = transformer(nbytes)
    goes["move"] = ByTorchmove(mine)
    warm_up(device)
    trips = of_each(take_turns(goes, device, turns=TURNS, tell=tell), median)
    beside = dict.fromkeys([*found, "move"], "usual")
    return {"bytes": mine.nbytes, "ways": compared(ways_of(trips, mine.nbytes, beside)), "missing": missing}


def _lightning() -> Callable[[TrainingState, torch.device], None]:
    """Its strategies send the module by `to`, and the optimizers by a function of their own."""
    try:
        module = importlib.import_module("lightning.fabric.utilities.optimizer")
    except ImportError:
        module = importlib.import_module("lightning_fabric.utilities.optimizer")

    def go(state: TrainingState, to: torch.device) -> None:
        state.model.to(to)
        module._optimizers_to_device([state.optimizer], to)

    return go


def _accelerate() -> Callable[[TrainingState, torch.device], None]:
    """What `Accelerator.prepare` does to the two; `prepare` itself knows no way back."""
    send = importlib.import_module("accelerate.optimizer").move_to_device

    def go(state: TrainingState, to: torch.device) -> None:
        state.model.to(to)
        state.optimizer.load_state_dict(send(state.optimizer.state_dict(), to))

    return go


# ---------------------------------------------------------------- what proof costs


def digests(device: torch.device, *, quick: bool) -> dict[str, Any]:
    """The three degrees of `verify`, taking turns with one state."""
    state = transformer(4_000_000 if quick else 4_000_000_000)
    warm_up(device)
    trip(ByTorchmove(state), device)
    goes: dict[str, Go] = {
        "quick": ByTorchmove(state),
        "bytes": ByTorchmove(state, "bytes"),
        "off": ByTorchmove(state, "off"),
    }
    trips = of_each(take_turns(goes, device, turns=TURNS, tell=tell), median)
    beside = {"bytes": "quick", "off": "quick"}
    return {"bytes": state.nbytes, "ways": compared(ways_of(trips, state.nbytes, beside))}


PARTS: dict[str, Callable[..., dict[str, Any]]] = {
    "transformer": whole_transformer,
    "small": small,
    "sizes": sizes,
    "peers": peers,
    "digests": digests,
    "park": partial(park, tell=tell),
}
