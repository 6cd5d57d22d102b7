"""How fast a training state moves: the figures of docs/performance.md. Needs an accelerator.

    python benchmarks/speed.py [--parts transformer small sizes peers digests park] [--device cuda] [--quick] [--write]

    transformer  14.5 GB of transformer and AdamW, first and later, beside Module.to and the pinned link
    small        96 000 small tensors, in the median and at best, and where the time goes
    sizes        from 1 KiB to 16 GiB, in one tensor and in eight
    peers        beside what Lightning and Accelerate do, where they are installed
    digests      what verify="bytes" costs, and verify="off" saves
    park         14.5 GB parked and woken, changed and unchanged; and two of 8 GB that swap

Each part runs in a process of its own: the first move in a process is a figure of its own. Ratios come from one run, in
which the ways take turns. Prints JSON, and what it is doing on stderr. --quick takes a few MB, to see that it runs;
--write puts the figures into docs/performance.json, .svg and .md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from speed_page import write
from speed_parts import PARTS

from torchmove.bench import accelerator, machine
from torchmove.errors import CannotMeasure

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    options = arguments()
    try:
        device = found(options.device)
    except CannotMeasure as error:
        print(f"refused: {error}", file=sys.stderr)
        return 2
    if options.alone:
        print(json.dumps(alone(options.alone, device, quick=options.quick)))
        return 0
    results = {name: in_a_process(name, device, quick=options.quick) for name in options.parts}
    figures = {name: figures for name, figures in results.items() if figures}
    print(json.dumps(figures, indent=1))
    if options.write:
        write(figures, ROOT / "docs")
    return 0 if len(figures) == len(results) else 3


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help="only these")
    parser.add_argument("--device", help="where to move to; twin: the second device of the tests")
    parser.add_argument("--quick", action="store_true", help="a few MB: the figures mean nothing")
    parser.add_argument("--write", action="store_true", help="into docs/")
    parser.add_argument("--alone", choices=PARTS, help=argparse.SUPPRESS)  # a part, in the process made for it
    options = parser.parse_args()
    if options.quick and options.write:
        parser.error("the figures of --quick mean nothing: leave out --write")
    return options


def found(name: str | None) -> torch.device:
    if name and name.startswith("twin"):
        sys.path.append(str(ROOT / "tests"))
        from twin import install

        install()
    return accelerator(name)


def in_a_process(part: str, device: torch.device, *, quick: bool) -> dict[str, Any] | None:
    print(part, file=sys.stderr, flush=True)
    command = [sys.executable, __file__, "--alone", part, "--device", str(device), *(["--quick"] if quick else [])]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        print(f"  {part} failed, its figures are left out", file=sys.stderr)
        return None
    return json.loads(done.stdout)


def alone(part: str, device: torch.device, *, quick: bool) -> dict[str, Any]:
    figures = PARTS[part](device, quick=quick)
    return {"date": datetime.date.today().isoformat(), "machine": machine(device), "device": str(device), **figures}


if __name__ == "__main__":
    sys.exit(main())
