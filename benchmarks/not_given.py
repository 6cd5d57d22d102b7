"""Measure what looking for optimizers that were not given adds to a move: `python benchmarks/not_given.py`.

The process holds a million objects that the collector tracks: as data, of which a search sees the beginning, or spread
over the variables, where the search ends at its limit. For each, in a process of its own: the milliseconds of CPU time
added to the first move and, as a median, to the later ones.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import subprocess
import sys
import time
from typing import Any

import torch
from torch import nn

from torchmove.planning.not_given import with_notes
from torchmove.planning.placement import keep_of
from torchmove.planning.plan import Plan
from torchmove.planning.planner import make_plan
from torchmove.surveying.survey import survey_objects


class Record:
    def __init__(self, number: int) -> None:
        self.number, self.parts = number, [number]


def data(count: int) -> dict[str, Any]:
    return {"data": [Record(number) for number in range(count // 2)]}


def variables(count: int) -> dict[str, Any]:
    return {f"kept_{at}": [[Record(at) for _ in range(50)] for _ in range(50)] for at in range(count // 5000)}


KINDS = {"nothing else": lambda _: {}, "data": data, "variables": variables}


def plan_of_a_move() -> Plan:
    """The plan of giving a model new storages, which any machine can make."""
    objects = {"model": nn.Sequential(*[nn.Linear(8, 8) for _ in range(50)])}
    cpu, keep = torch.device("cpu"), keep_of(objects, ())
    return make_plan(survey_objects(objects), cpu, keep=keep, free_bytes=lambda _: None, fresh=True)


def measure(kind: str, count: int, repeats: int) -> None:
    globals().update(KINDS[kind](count))
    plan, times = plan_of_a_move(), []
    for _ in range(repeats):
        began = time.thread_time()
        with_notes(plan)
        times.append((time.thread_time() - began) * 1e3)
    first, *later = times
    objects = len(gc.get_objects())
    print(f"{kind:14} {objects:>9,} objects   first {first:5.1f} ms   later {statistics.median(later):5.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--kind", choices=KINDS, help="measure one kind, in this process")
    options = parser.parse_args()
    if options.kind:
        measure(options.kind, options.objects, options.repeats)
        return
    for kind in KINDS:
        numbers = ["--objects", str(options.objects), "--repeats", str(options.repeats)]
        subprocess.run([sys.executable, __file__, "--kind", kind, *numbers], check=True)


if __name__ == "__main__":
    main()
