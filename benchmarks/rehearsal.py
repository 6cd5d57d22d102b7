"""What it costs to rehearse a training step of a model of 70 billion parameters, built on meta.

    python benchmarks/rehearsal.py [--layers 80] [--json]

Prints the parameters, whether the step would run, the peak foretold, the seconds, and the most memory that this process
had in use.
"""

from __future__ import annotations

import argparse
import json
import resource
import time

import torch
from torch import Tensor, nn
from torch.nn import functional

import torchmove as tm


class Block(nn.Module):
    def __init__(self, width: int = 8192, hidden: int = 28672, heads: int = 64, shared: int = 8) -> None:
        super().__init__()
        self.heads, self.shared = heads, shared
        self.query, self.out = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.key, self.value = (nn.Linear(width, width // heads * shared, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)
        self.before, self.between = nn.RMSNorm(width), nn.RMSNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.before(x)
        parts = (self.query(y), self.key(y), self.value(y))
        query, key, value = (each.unflatten(-1, (-1, 128)).transpose(1, 2) for each in parts)
        key, value = (each.repeat_interleave(self.heads // self.shared, 1) for each in (key, value))
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        y = self.between(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


def step(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: Tensor) -> None:
    tokens = tokens.to("cuda")
    functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()


def measure(layers: int) -> dict[str, object]:
    with torch.device("meta"):
        body = (Block() for _ in range(layers))
        model = nn.Sequential(nn.Embedding(128256, 8192), *body, nn.Linear(8192, 128256, bias=False)).to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters())
    began = time.perf_counter()
    found = tm.rehearse(step, model, optimizer, torch.zeros(1, 2049, dtype=torch.long))
    seconds = time.perf_counter() - began
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "ok": found.ok,
        "peak": found.peak,
        "seconds": seconds,
        "resident_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=80)
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    facts = measure(options.layers)
    print(json.dumps(facts) if options.json else "\n".join(f"{name}: {value}" for name, value in facts.items()))


if __name__ == "__main__":
    main()
