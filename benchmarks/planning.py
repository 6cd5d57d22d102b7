"""What survey and plan cost: microseconds a tensor, for states of three sizes.

    python benchmarks/planning.py [--tensors 1000 10000 100000] [--ranks 1024] [--json]

Each state is a model of small linear layers with gradients and AdamW in mid-training. Best of several runs.

--ranks simulates, in threads of one process, how so many ranks agree on a move of each state, once in peace and once
with a rank on which it fails, and counts what they say to each other.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import pickle
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from torchmove.chain import plan_for
from torchmove.errors import TorchmoveError
from torchmove.moving.agreement import Agreement
from torchmove.planning.plan import Plan
from torchmove.surveying.survey import survey_objects

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
    alone = best_seconds(lambda: survey_objects({"model": model, "optimizer": optimizer}), runs)
    both = best_seconds(lambda: planned(model, optimizer), runs)
    return {"tensors": tensors, "survey_us": alone / tensors * 1e6, "survey_and_plan_us": both / tensors * 1e6}


# ---------------------------------------------------------------- agreement


class Hall:
    """Where simulated ranks hear each other: each exchange is a gather of what all say."""

    def __init__(self, ranks: int) -> None:
        self.said: list[Any] = [None] * ranks
        self.nbytes: list[int] = []  # of each word, in the order of the exchanges
        self._all_there, self._all_heard = threading.Barrier(ranks), threading.Barrier(ranks)

    def gather(self, rank: int, word: Any) -> list[Any]:
        self.said[rank] = word
        if self._all_there.wait() == 0:
            self.nbytes.append(max(len(pickle.dumps(each)) for each in self.said))
        heard = list(self.said)
        self._all_heard.wait()
        return heard


def agreement(tensors: int, ranks: int) -> dict[str, Any]:
    plan = planned(*state(tensors))
    peace, trouble = ([0] * ranks for _ in range(2))
    hall = Hall(ranks)
    simulate(hall, plan, ranks, peace, failing=None)
    exchanges = len(hall.nbytes)
    simulate(hall, plan, ranks, trouble, failing=ranks // 2)
    return {
        "tensors": tensors,
        "ranks": ranks,
        "exchanges": exchanges,
        "collectives": 2 * exchanges,  # all_gather_object gathers the sizes first
        "bytes_said": sum(hall.nbytes[:exchanges]),
        "bytes_heard": ranks * sum(hall.nbytes[:exchanges]),
        "committed_in_peace": sum(peace),
        "committed_in_trouble": sum(trouble),
    }


def simulate(hall: Hall, plan: Plan, ranks: int, committed: list[int], failing: int | None) -> None:
    def rank_of(rank: int) -> None:
        agreement = Agreement(range(ranks), lambda word: hall.gather(rank, word))
        with contextlib.suppress(TorchmoveError, MemoryError):
            agreement.agree("move", plan)
            with agreement.voting() as consent:
                if rank == failing:
                    raise MemoryError("no room")
                consent()
                committed[rank] = 1

    threads = [threading.Thread(target=rank_of, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def print_agreement(row: dict[str, Any]) -> None:
    print(
        f"{row['ranks']} ranks with {row['tensors']} tensors each agree in {row['exchanges']} exchanges "
        f"({row['collectives']} small collectives); a rank says {row['bytes_said']} bytes and hears "
        f"{row['bytes_heard']}. "
        f"In peace {row['committed_in_peace']} commit, with one that fails {row['committed_in_trouble']}."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tensors", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--ranks", type=int, help="simulate the agreement of so many")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    if options.ranks is not None:
        found = [agreement(tensors, options.ranks) for tensors in options.tensors]
        print(json.dumps(found)) if options.json else [print_agreement(row) for row in found]
        return
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
