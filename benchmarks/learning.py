"""What an optimizer of an unknown class costs the first move: milliseconds to learn where it puts its tensors.

    python benchmarks/learning.py [--modules timm.optim pytorch_optimizer] [--json]

Each class of the modules is subclassed, so that torch's own are unknown too, where it can be made of parameters alone.
Every class is learned once in the process, after two steps on the CPU. The
second figure is the processor's time, which other programs do not change.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import inspect
import io
import json
import time
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from torchmove.planning import learning


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--modules", nargs="+", default=["torch.optim"])
    arguments.add_argument("--json", action="store_true")
    given = arguments.parse_args()
    warnings.simplefilter("ignore")
    rows = [row for kind in classes_in(given.modules) for row in measured(kind)]
    if given.json:
        print(json.dumps(rows))
        return
    for row in rows:
        print(f"{row['class']:60}{row['ms']:8.1f} ms{row['cpu_ms']:8.1f} ms   {row['why_not']}")
    times = sorted(row["cpu_ms"] for row in rows)
    if times:
        failed = sum(bool(row["why_not"]) for row in rows)
        middle = times[len(times) // 2]
        print(f"{len(times)} classes, {failed} not learned; median {middle:.1f} ms, slowest {times[-1]:.1f} ms")


def classes_in(modules: list[str]) -> Iterator[type[Optimizer]]:
    for name in modules:
        for _, kind in inspect.getmembers(importlib.import_module(name), inspect.isclass):
            if issubclass(kind, Optimizer) and kind is not Optimizer:
                yield kind


def measured(kind: Any) -> Iterator[dict[str, Any]]:
    """Nothing, if it makes no step by itself."""
    unknown = type(kind.__name__, (kind,), {"__module__": kind.__module__ + "_"})
    model = nn.Sequential(nn.Linear(32, 64), nn.Linear(64, 8))
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            optimizer = unknown(model.parameters())
            for _ in range(2):
                model(torch.ones(4, 32)).square().mean().backward()
                optimizer.step()
    except Exception:
        return
    start, cpu_start = time.perf_counter(), time.process_time()
    learned = learning.learned_places_of(optimizer, torch.device("cuda:0"))
    took, cpu_took = time.perf_counter() - start, time.process_time() - cpu_start
    name = f"{kind.__module__}.{kind.__qualname__}"
    yield {"class": name, "ms": took * 1e3, "cpu_ms": cpu_took * 1e3, "why_not": learned.why_not}


if __name__ == "__main__":
    main()
