"""Is an AdamW step after tm.move as fast as after a native start? Needs a GPU.

    python benchmarks/optimizer_step.py [--parameters 2400] [--json]

For each way AdamW can run: milliseconds a step of a state that started on the GPU, of one that was moved there, and of
one whose tensors were all sent there (what a loop over optimizer.state does); and the ratio of the first two. The three
take turns within one run; each figure is the median over the turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import torch
from torch import nn

import torchmove as tm

WAYS = {
    "default": {},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "capturable": {"capturable": True},
}
TURNS, STEPS = 10, 10
State = tuple[nn.Module, torch.optim.Optimizer]


def trained(parameters: int, device: str, options: dict[str, bool]) -> State:
    model = nn.ParameterList(nn.Parameter(torch.ones(32, 32, device=device)) for _ in range(parameters))
    optimizer = torch.optim.AdamW(model.parameters(), **options)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return model, optimizer


def moved(parameters: int, options: dict[str, bool]) -> State:
    """From the CPU; a capturable optimizer cannot step there, so it comes from the GPU by way of the CPU."""
    state = trained(parameters, "cuda" if "capturable" in options else "cpu", options)
    tm.move(*state, to="cpu")
    tm.move(*state, to="cuda")
    return state


def sent(parameters: int, options: dict[str, bool]) -> State:
    model, optimizer = trained(parameters, "cuda", options)
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


def measure(parameters: int, options: dict[str, bool]) -> dict[str, float]:
    states = {
        "native": trained(parameters, "cuda", options),
        "moved": moved(parameters, options),
        "all sent": sent(parameters, options),
    }
    for state in states.values():
        milliseconds_a_step(state)
    order, spent = list(states), {name: [] for name in states}
    for _ in range(TURNS):
        for name in order:
            spent[name].append(milliseconds_a_step(states[name]))
        order.reverse()  # what comes before a turn is felt in it
    medians = {name: statistics.median(turns) for name, turns in spent.items()}
    return {**medians, "ratio": medians["moved"] / medians["native"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=int, default=2400)
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    rows = {way: measure(options.parameters, flags) for way, flags in WAYS.items()}
    if options.json:
        print(json.dumps(rows))
        return
    print(f"{'AdamW':>12} {'native':>10} {'moved':>10} {'all sent':>10}   ms a step    moved / native")
    for way, row in rows.items():
        print(f"{way:>12} {row['native']:>10.2f} {row['moved']:>10.2f} {row['all sent']:>10.2f} {row['ratio']:>27.3f}")


if __name__ == "__main__":
    main()
