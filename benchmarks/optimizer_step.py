"""Is an AdamW step after tm.move as fast as after a native start? Needs a GPU.

    python benchmarks/optimizer_step.py [--parameters 2400] [--side 32] [--json]

For each way AdamW can run: milliseconds a step of a state that started on the GPU, of one that was moved there, and
of one whose tensors were all sent there (what a loop over optimizer.state does). A step this small is bound by
Python, and it matters which state was made first: two native ones differ by several per cent. So there are two of
them, the states are made anew, each of them first in turn, and take turns; `moved / native` and `native / native` are
medians over the orders.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

import torchmove as tm

WAYS = {
    "default": {},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "capturable": {"capturable": True},
}
ROUNDS, TURNS, STEPS = 2, 4, 5
State = tuple[nn.Module, torch.optim.Optimizer]
Shape = tuple[int, int]  # how many parameters, and rows and columns of each


def trained(shape: Shape, device: str, options: dict[str, bool]) -> State:
    count, side = shape
    model = nn.ParameterList(nn.Parameter(torch.ones(side, side, device=device)) for _ in range(count))
    optimizer = torch.optim.AdamW(model.parameters(), **options)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return model, optimizer


def moved(shape: Shape, options: dict[str, bool]) -> State:
    """From the CPU; a capturable optimizer cannot step there, so it comes from the GPU by way of the CPU."""
    state = trained(shape, "cuda" if "capturable" in options else "cpu", options)
    tm.move(*state, to="cpu")
    tm.move(*state, to="cuda")
    return state


def sent(shape: Shape, options: dict[str, bool]) -> State:
    model, optimizer = trained(shape, "cuda", options)
    for state in optimizer.state.values():
        for key, value in state.items():
            state[key] = value.to("cuda")
    return model, optimizer


def milliseconds_a_step(state: State) -> float:
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(STEPS):
        state[1].step()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / STEPS * 1e3


def measure(shape: Shape, options: dict[str, bool]) -> dict[str, float]:
    makers: dict[str, Callable[[], State]] = {
        "native": lambda: trained(shape, "cuda", options),
        "native too": lambda: trained(shape, "cuda", options),
        "moved": lambda: moved(shape, options),
    }
    names = [*makers, *makers]
    orders = (names[start : start + len(makers)] for start in range(len(makers)))
    rounds = [take_turns({name: makers[name]() for name in order}) for order in orders for _ in range(ROUNDS)]
    natives = [math.sqrt(each["native"] * each["native too"]) for each in rounds]
    return {
        "native": statistics.median(natives),
        "moved": statistics.median(each["moved"] for each in rounds),
        "all sent": take_turns({"all sent": sent(shape, options)})["all sent"],
        "ratio": statistics.median(each["moved"] / native for each, native in zip(rounds, natives, strict=True)),
        "control": statistics.median(
            max(each["native"], each["native too"]) / min(each["native"], each["native too"]) for each in rounds
        ),
    }


def take_turns(states: dict[str, State]) -> dict[str, float]:
    """Milliseconds a step of each, the median over the turns."""
    for state in states.values():
        milliseconds_a_step(state)
    order, spent = list(states), {name: [] for name in states}
    for _ in range(TURNS):
        for name in order:
            spent[name].append(milliseconds_a_step(states[name]))
        order.reverse()  # what comes before a turn is felt in it
    return {name: statistics.median(turns) for name, turns in spent.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=int, default=2400)
    parser.add_argument("--side", type=int, default=32, help="rows and columns of each")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    rows = {way: measure((options.parameters, options.side), flags) for way, flags in WAYS.items()}
    if options.json:
        print(json.dumps(rows))
        return
    print(
        f"{'AdamW':>12} {'native':>10} {'moved':>10} {'all sent':>10}   ms a step    moved / native    native / native"
    )
    for way, row in rows.items():
        spent = " ".join(f"{row[name]:>10.2f}" for name in ("native", "moved", "all sent"))
        print(f"{way:>12} {spent} {row['ratio']:>27.3f} {row['control']:>18.3f}")


if __name__ == "__main__":
    main()
