"""How much longer a rehearsal takes than the step itself, run plainly on the CPU.

    python benchmarks/rehearsal_slowdown.py [--laps 5] [--corpus] [--json]

Each program runs in this process in turn: plainly, with "cpu" for "cuda" in its source, then as a rehearsal in each
mode. The medians of the laps after a first one, which loads what torch loads late, are compared. `set-up` is the
rehearsal of a step that does next to nothing. `--corpus` adds the programs of tests/corpus/clean.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import torch
from torch import nn
from torch.nn import functional

import torchmove as tm

CORPUS = Path(__file__).parents[1] / "tests" / "corpus" / "clean"


class Program(NamedTuple):
    """A step as it runs on the CPU, the same for the simulated device, and what builds the objects."""

    plain: Callable[..., Any]
    step: Callable[..., Any]
    build: Callable[[], Any]
    options: dict[str, Any]


# ---------------------------------------------------------------- programs


def nothing(model: nn.Module, x: torch.Tensor) -> None:
    model(x.to("cuda"))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.first(x)).split(width, dim=2)
        query, key, value = (each.view(batch, length, self.heads, -1).transpose(1, 2) for each in parts)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.second(x))))


class Gpt(nn.Module):
    def __init__(self, words: int = 65, width: int = 128, layers: int = 4, length: int = 64) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def gpt() -> tuple[Any, ...]:
    model = Gpt()
    return model, torch.optim.AdamW(model.parameters()), torch.randint(0, 65, (8, 65))


def gpt_step(model: nn.Module, optimizer: Any, ids: torch.Tensor) -> float:
    ids = ids.to("cuda")
    loss = functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def convolutions() -> tuple[Any, ...]:
    layers: list[nn.Module] = []
    for before, after in [(3, 32), (32, 64), (64, 64), (64, 128), (128, 128)]:
        layers += [nn.Conv2d(before, after, 3, padding=1, stride=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(128, 10))
    return (
        model,
        torch.optim.SGD(model.parameters(), 0.1, momentum=0.9),
        torch.randn(16, 3, 32, 32),
        torch.arange(16) % 10,
    )


def classify(model: nn.Module, optimizer: Any, images: torch.Tensor, labels: torch.Tensor) -> float:
    images, labels = images.to("cuda"), labels.to("cuda")
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    return loss.item()


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.rnn, self.head = nn.Embedding(200, 64), nn.LSTM(64, 128, 2), nn.Linear(128, 200)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(self.embed(ids))[0])


def words() -> tuple[Any, ...]:
    model = Words()
    return model, torch.optim.Adam(model.parameters()), torch.randint(0, 200, (36, 16))


def words_step(model: nn.Module, optimizer: Any, ids: torch.Tensor) -> None:
    ids = ids.to("cuda")
    functional.cross_entropy(model(ids[:-1]).flatten(0, 1), ids[1:].flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()


def policy() -> tuple[Any, ...]:
    model = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
    return model, torch.optim.Adam(model.parameters(), 1e-3), torch.randn(32, 4)


def policy_step(model: nn.Module, optimizer: Any, observations: torch.Tensor) -> None:
    device = next(model.parameters()).device
    kept = []
    for each in observations:
        chosen = torch.distributions.Categorical(logits=model(each.to(device)))
        action = chosen.sample()
        kept.append(chosen.log_prob(action) * float(action.cpu().numpy()))
    loss = -torch.stack(kept).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def autoencoder() -> tuple[Any, ...]:
    model = nn.Sequential(
        nn.Linear(784, 400), nn.ReLU(), nn.Linear(400, 20), nn.Linear(20, 400), nn.ReLU(), nn.Linear(400, 784)
    )
    return model, torch.optim.Adam(model.parameters()), torch.rand(128, 784)


def autoencoder_step(model: nn.Module, optimizer: Any, images: torch.Tensor) -> None:
    images = images.to("cuda")
    functional.mse_loss(model(images), images).backward()
    optimizer.step()
    optimizer.zero_grad()


def arrays() -> tuple[Any, ...]:
    return nn.Linear(64, 64), [numpy.ones((256, 64), dtype=numpy.float32) for _ in range(20)]


def arrays_step(model: nn.Module, arrays: list[Any]) -> None:
    for each in arrays:
        model(torch.from_numpy(each).to("cuda"))


PROGRAMS = {
    "set-up": ("nothing", lambda: (nn.Linear(2, 2), torch.ones(1, 2))),
    "transformer": ("gpt_step", gpt),
    "convolutions": ("classify", convolutions),
    "lstm": ("words_step", words),
    "policy gradient": ("policy_step", policy),
    "autoencoder": ("autoencoder_step", autoencoder),
    "twenty arrays": ("arrays_step", arrays),
}


def read_for(device: str, path: Path, name: str) -> dict[str, Any]:
    """The variables of a program, with this device in the place of "cuda"."""
    module = sys.modules[name] = types.ModuleType(name)
    vars(module).update(__file__=str(path))
    code = compile(path.read_text().replace('"cuda', f'"{device}'), str(path), "exec", dont_inherit=True)
    exec(code, vars(module))
    return vars(module)


def own() -> Iterator[tuple[str, Program]]:
    on_cpu = read_for("cpu", Path(__file__), "on_cpu")
    for name, (step, build) in PROGRAMS.items():
        yield name, Program(on_cpu[step], globals()[step], build, {})


def corpus() -> Iterator[tuple[str, Program]]:
    for path in sorted(CORPUS.glob("*.py")):
        plain, simulated = (read_for(device, path, f"{path.stem}_{device}") for device in ("cpu", "cuda"))
        options = {key: value for key, value in simulated.get("OPTIONS", {}).items() if key != "data"}
        yield path.stem, Program(plain["step"], simulated["step"], simulated["build"], options)


# ---------------------------------------------------------------- measuring


def seconds(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def measured(program: Program, laps: int, modes: list[str]) -> dict[str, float]:
    ways: dict[str, Callable[[], Any]] = {"plain": lambda: program.plain(*objects)}
    for mode in modes:
        ways[mode] = lambda mode=mode: tm.rehearse(program.step, *objects, **{**program.options, "data": mode})
    objects, found = program.build(), {name: [] for name in ways}
    objects = objects if isinstance(objects, tuple) else (objects,)
    for _ in range(laps + 1):
        for name, way in ways.items():
            found[name].append(seconds(way))
    return {name: statistics.median(each[1:]) for name, each in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--laps", type=int, default=5)
    parser.add_argument("--corpus", action="store_true", help="the clean programs of the corpus, too")
    parser.add_argument("--modes", nargs="+", default=["shapes", "real", "auto"])
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = {}
    for name, program in [*own(), *(corpus() if options.corpus else ())]:
        try:
            rows[name] = measured(program, options.laps, options.modes)
        except Exception as error:
            print(f"{name}: not measured: {type(error).__name__}: {error}", file=sys.stderr)
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    print(f"{'milliseconds':40}{'plain':>9}" + "".join(f"{mode:>9}{'times':>7}" for mode in options.modes))
    for name, row in rows.items():
        cells = "".join(f"{1e3 * row[mode]:9.1f}{row[mode] / row['plain']:7.1f}" for mode in options.modes)
        print(f"{name:40}{1e3 * row['plain']:9.2f}{cells}")
    for mode in options.modes:
        middle = statistics.median(row[mode] / row["plain"] for name, row in rows.items() if name != "set-up")
        print(f"median {mode}: {middle:.1f} times the plain step")


if __name__ == "__main__":
    main()
