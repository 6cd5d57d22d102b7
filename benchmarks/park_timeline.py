"""The memory of a GPU while a training gives it away and has it back, as docs/parking.svg. Needs a CUDA device.

    python benchmarks/park_timeline.py [--write]

A transformer with AdamW, 14.5 GB, trains; it is parked; a second model takes nearly the whole card; it goes, and the
training goes on. Prints when each of them began and ended; --write draws what the driver said was in use meanwhile.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from pathlib import Path

import torch
from torch import nn

import torchmove as tm
from torchmove.bench import TrainingState, transformer

WIDTH, HEIGHT, LEFT, TOP = 700, 180, 60, 30
COLOURS = {"train": "#2f9e63", "park": "#3577e5", "second model": "#c77d2a", "wake": "#3577e5"}


class Memory:
    """What is in use on the card, looked at every 5 ms."""

    def __init__(self) -> None:
        self.began, self.seen = time.perf_counter(), [(0.0, 0)]
        self.stages: list[tuple[str, float, float]] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def now(self) -> float:
        return time.perf_counter() - self.began

    def _watch(self) -> None:
        while not self._done.wait(0.005):
            free, total = torch.cuda.mem_get_info()
            self.seen.append((self.now(), total - free))

    def stage(self, name: str, began: float) -> None:
        torch.cuda.synchronize()
        self.stages.append((name, began, self.now()))
        print(f"{name:>14} {began:7.3f} s to {self.now():7.3f} s")

    def stop(self) -> None:
        self._done.set()
        self._thread.join()


def train(state: TrainingState, steps: int) -> None:
    batch = torch.ones(4, 32, state.model[0].linear1.in_features, device="cuda")
    for _ in range(steps):
        state.optimizer.zero_grad()
        state.model(batch).square().mean().backward()
        state.optimizer.step()
    state.optimizer.zero_grad()


def second_model() -> None:
    rows = int(torch.cuda.mem_get_info()[0] * 0.95) // (4 * 4096)
    model = nn.Linear(4096, rows, bias=False, device="meta").to_empty(device="cuda")
    with torch.inference_mode():
        model.weight.fill_(0.5)
        for _ in range(20):
            model(torch.ones(1, 4096, device="cuda"))
    torch.cuda.synchronize()
    del model
    torch.cuda.empty_cache()


def story(memory: Memory, state: TrainingState) -> None:
    for _ in range(2):  # the second time the memory is there to be parked in
        began = memory.now()
        train(state, 3)
        memory.stage("train", began)
        began = memory.now()
        parked = tm.park(*state, progress=False)
        memory.stage("park", began)
        began = memory.now()
        second_model()
        memory.stage("second model", began)
        began = memory.now()
        parked.wake(progress=False)
        memory.stage("wake", began)
    began = memory.now()
    train(state, 3)
    memory.stage("train", began)


def drawn(memory: Memory) -> str:
    end, most = memory.stages[-1][2], max(used for _, used in memory.seen)
    across, up = (WIDTH - LEFT - 10) / end, HEIGHT / most
    parts = []
    for name, began, ended in memory.stages:
        x, width = LEFT + began * across, max(1.0, (ended - began) * across)
        colour = COLOURS[name]
        parts.append(
            f'<rect x="{x:.1f}" y="{TOP}" width="{width:.1f}" height="{HEIGHT}" fill="{colour}" fill-opacity="0.18"/>'
        )
        turned = f'transform="translate({x + width / 2 + 4:.1f} {TOP + HEIGHT - 6}) rotate(-90)"'
        parts.append(f'<text {turned} fill="{colour}">{name} {ended - began:.2f} s</text>')
    line = ((LEFT + at * across, TOP + HEIGHT - used * up) for at, used in memory.seen if at <= end)
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in line)
    parts.append(f'<polyline points="{points}" fill="none" stroke="#7d7d7d" stroke-width="1.5"/>')
    parts += [
        f'<text x="{LEFT - 6}" y="{TOP + HEIGHT - share * HEIGHT + 4:.0f}" text-anchor="end" fill="#7d7d7d">'
        f"{share * most / 2**30:.0f} GiB</text>"
        for share in (0, 0.5, 1)
    ]
    title = f'<text x="{LEFT}" y="18" fill="#7d7d7d">in use on the card, over {end:.1f} s</text>'
    size = f'viewBox="0 0 {WIDTH} {TOP + HEIGHT + 10}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">\n' + "\n".join(
        [title, *parts, "</svg>\n"]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="into docs/parking.svg")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("refused: this machine has no CUDA device", file=sys.stderr)
        return 2
    state = transformer(14_500_000_000)
    tm.move(*state, to="cuda", progress=False)
    train(state, 1)
    memory = Memory()
    story(memory, state)
    memory.stop()
    if options.write:
        (Path(__file__).resolve().parents[1] / "docs" / "parking.svg").write_text(drawn(memory))
    return 0


if __name__ == "__main__":
    sys.exit(main())
