"""The programs that `make demo` runs say what they should; the one for clusters is run by its page."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
SAYS = {
    "nested_model": ["the same values: True;  still tied: True"],
    "mid_training": ["AdamW keeps its step on the CPU", "SGD with momentum, 50 more on the cpu"],
    "rehearsal": [
        "3 device errors on cuda:0",
        "2 device errors on cuda:0",
        'Fix: torch.randn(3, 4, device="cuda")',
    ],
    "parking": ["the second time", "has answered: True", "20 steps more: loss"],
    "forgotten_buffer": ["V401 layer.table", 'self.register_buffer("table"', "forward works"],
}


def test_every_example_is_run():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*SAYS, "second_device", "cluster"}


@pytest.mark.slow
@pytest.mark.parametrize("example", SAYS)
def test_the_example_prints_its_steps(example):
    ran = subprocess.run([sys.executable, EXAMPLES / f"{example}.py"], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert all(words in ran.stdout for words in SAYS[example]), ran.stdout


@pytest.mark.slow
def test_no_step_of_an_example_waits_on_the_lazy_device_for_the_next():
    """Steps that wait are compiled as one program, which takes minutes."""
    program = """
import torch
from second_device import second_device
weight = torch.nn.Parameter(torch.ones(2, device=second_device()))
optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
for _ in range(3):
    weight.square().sum().backward()
    optimizer.step()
print(torch._C._lazy._get_tensors_text([weight.data]) if weight.device.type == "lazy" else "no need")
"""
    ran = subprocess.run([sys.executable, "-c", program], cwd=EXAMPLES, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    if "no need" in ran.stdout:
        pytest.skip("the machine's accelerator is the second device")
    assert ran.stdout.count("= ") == ran.stdout.count("device_data") == 1, ran.stdout


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not there")
def test_the_demo_says_first_that_it_sets_up_and_then_runs_every_example(tmp_path):
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    command = ["make", "--no-print-directory", "--dry-run", "demo"]  # the tests may have been started by a make too
    would = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    first, *others = would.stdout.splitlines()
    assert "Setting up .venv" in first
    assert {line.split("/")[-1] for line in others if "examples/" in line} == {f"{example}.py" for example in SAYS}
