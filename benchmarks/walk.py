"""Count the files and functions that a move goes through: `python benchmarks/walk.py [--files]`.

A small model with AdamW in mid-training moves to the accelerator, or to torch's lazy device where there is none; the
second move of the process is counted. A change of file is a call into another file than that of the call before. The
search for what was not given counts as one call: its length depends on the variables of the program.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

import torchmove as tm
from torchmove.planning.not_given import with_notes

SOURCE = Path(tm.__file__).parent
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))


class Walk:
    """The calls of a function within torchmove, in order. A generator that goes on is no call."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []
        self.search: FrameType | None = None

    def note(self, frame: FrameType, event: str, _: object) -> None:
        file = Path(frame.f_code.co_filename)
        if event == "call" and frame.f_lasti <= 0 and SOURCE in file.parents and self.search is None:
            self.calls.append((str(file.relative_to(SOURCE)), frame.f_code.co_firstlineno))
            if frame.f_code is with_notes.__code__:
                self.search = frame
        elif event == "return" and frame is self.search:
            self.search = None

    def through(self, work: Callable[[], Any]) -> None:
        sys.setprofile(self.note)
        try:
            work()
        finally:
            sys.setprofile(None)

    @property
    def files(self) -> list[str]:
        return [file for file, _ in self.calls]

    @property
    def changes(self) -> int:
        return sum(one != other for one, other in zip(self.files, self.files[1:], strict=False))


def in_mid_training() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--files", action="store_true", help="List the files in the order of their first calls.")
    given = options.parse_args()
    from second_device import second_device

    device = second_device()
    tm.move(*in_mid_training(), to=device)
    model, optimizer = in_mid_training()
    walk = Walk()
    walk.through(lambda: tm.move(model, optimizer, to=device))
    files = dict.fromkeys(walk.files)
    print(f"{len(files)} files, {len({*walk.calls})} functions, {walk.changes} changes of file")
    if given.files:
        print(*files, sep="\n")


if __name__ == "__main__":
    main()
