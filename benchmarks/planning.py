"""What survey and plan cost: microseconds a tensor, for states of three sizes.

    python benchmarks/planning.py [--tensors 1000 10000 100000] [--json]

Each state is a model of small linear layers with gradients and AdamW in mid-training. Best of several runs.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import torch

from torchmove import Plan
from torchmove._move import plan_for
from torchmove._survey import survey

TENSORS_PER_LAYER = 10  # weight and bias, each with a gradient, exp_avg, exp_avg_sq and step


def state(tensors: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    layers = [torch.nn.Linear(4, 4) for _ in range(tensors // TENSORS_PER_LAYER)]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return model, optimizer


def best_seconds(work: Callable[[], Any], runs: int) -> float:
    """Of several runs; dropping the result is not part of the work."""

    def once() -> float:
        begin = time.perf_counter()
        result = work()
        seconds = time.perf_counter() - begin
        del result
        return seconds

    return min(once() for _ in range(runs))


def planned(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Plan:
    """As tm.plan(model, optimizer, to="cuda"), also where there is none: planning touches no device."""
    return plan_for({"model": model, "optimizer": optimizer}, torch.device("cuda:0"), (), lambda device: None)


def measure(tensors: int) -> dict[str, float]:
    model, optimizer = state(tensors)
    runs = max(15, min(50, 200_000 // tensors))
    alone = best_seconds(lambda: survey({"model": model, "optimizer": optimizer}), runs)
    both = best_seconds(lambda: planned(model, optimizer), runs)
    return {"tensors": tensors, "survey_us": alone / tensors * 1e6, "survey_and_plan_us": both / tensors * 1e6}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tensors", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    rows = [measure(tensors) for tensors in options.tensors]
    growth = rows[-1]["survey_and_plan_us"] / rows[0]["survey_and_plan_us"]
    if options.json:
        print(json.dumps({"rows": rows, "growth": growth}))
        return
    print(f"{'tensors':>10} {'survey':>12} {'survey + plan':>16}   us a tensor")
    for row in rows:
        print(f"{row['tensors']:>10} {row['survey_us']:>12.2f} {row['survey_and_plan_us']:>16.2f}")
    print(f"a tensor costs {growth:.2f} times as much in the largest state as in the smallest")


if __name__ == "__main__":
    main()
