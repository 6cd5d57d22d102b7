"""The pytest plugin as an installed torchmove registers it: found by itself, cheap, and possible to turn off."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEST = """
import sys

def test_that_needs_no_torch(request):
    assert request.config.pluginmanager.has_plugin("torchmove")
    assert "torch" not in sys.modules

def test_with_the_fixture(assert_movable):
    import torch
    model = torch.nn.Linear(2, 2)
    assert_movable(lambda model, x: model(x.to("cuda")), model, torch.ones(1, 2))
"""


@pytest.fixture
def installed(tmp_path):
    """Runs pytest in a folder, where torchmove is installed as far as entry points go."""
    entry = re.search(r"\[project.entry-points.pytest11\]\n(.*)\n", (ROOT / "pyproject.toml").read_text())[1]
    facts = tmp_path / "packages" / "torchmove-0.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: torchmove\nVersion: 0\n")
    (facts / "entry_points.txt").write_text("[pytest11]\n" + entry.replace('"', "") + "\n")
    (tmp_path / "test_it.py").write_text(TEST)
    paths = os.pathsep.join(map(str, (facts.parent, ROOT / "src")))

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
        environment = {**os.environ, "PYTHONPATH": paths}
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)

    return run


def test_the_plugin_is_found_and_imports_torch_on_use(installed):
    ran = installed("-W", "error")
    assert "2 passed" in ran.stdout, ran.stdout + ran.stderr


def test_the_plugin_can_be_turned_off(installed):
    ran = installed("-p", "no:torchmove")
    assert "fixture 'assert_movable' not found" in ran.stdout
