"""The programs that `make demo` runs say what they should; the one for clusters is run by its page."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SAYS = {
    "nested_model": ["the same values: True;  still tied: True"],
    "mid_training": ["AdamW keeps its step on the CPU", "SGD with momentum, 50 more on the cpu"],
    "rehearsal": [
        "3 places would fail on cuda:0",
        "2 places would fail on cuda:0",
        "fix: torch.randn(..., device=...)",
    ],
    "parking": ["the second time", "has answered: True", "20 steps more: loss"],
    "forgotten_buffer": ["V401 layer.table", 'self.register_buffer("table"', "forward works"],
}


def test_every_example_is_run():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*SAYS, "second_device", "cluster"}


@pytest.mark.parametrize("example", SAYS)
def test_the_example_tells_its_story(example):
    ran = subprocess.run([sys.executable, EXAMPLES / f"{example}.py"], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert all(words in ran.stdout for words in SAYS[example]), ran.stdout
