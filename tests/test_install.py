"""Installing torchmove as the pages say, from a clone: word for word, but without a network and into a folder."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from pages import ROOT, commands_of, pieces_of

INSTALL, WHEEL = "pip install .", "pip wheel --no-deps --wheel-dir wheels ."
BINARIES = Path(sys.executable).parent


def _has_setuptools() -> bool:
    least = re.search(r"setuptools>=(\d+)", (ROOT / "pyproject.toml").read_text())
    try:
        return int(metadata.version("setuptools").split(".")[0]) >= int(least[1])
    except metadata.PackageNotFoundError:
        return False


# Not asked of importlib: setuptools takes whoever looks for pip there for pip itself, and is another one from then on.
needs_pip = pytest.mark.skipif(
    not (BINARIES / "pip").exists() or not _has_setuptools(),
    reason="needs pip, and the setuptools that pyproject.toml builds with",
)


def run(command: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    binaries = os.pathsep.join([str(BINARIES), os.environ.get("PATH", os.defpath)])
    # torch and setuptools are there already, as they would be; 0 is how pip wants to be told not to fetch the latter.
    offline = {
        "PIP_NO_INDEX": "1",
        "PIP_NO_DEPS": "1",
        "PIP_NO_BUILD_ISOLATION": "0",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    everything = {**os.environ, **offline, "PATH": binaries, **environment}
    return subprocess.run(command, shell=True, cwd=folder, env=everything, capture_output=True, text=True, check=False)


def shown(page: str) -> list[str]:
    pieces = pieces_of((ROOT / page).read_text())
    lines = (line for piece in pieces if piece.kind == "console" for line in commands_of(piece))
    return [line.partition(" #")[0].strip() for line in lines]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    made = tmp_path / "clone"
    shutil.copytree(ROOT / "src", made / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, made)
    return made


def try_out(installed: Path, folder: Path) -> None:
    """The command is there, the package is that one, and it has all its files."""
    there = str(installed)
    version = run(f"{installed / 'bin' / 'torchmove'} --version", folder, PYTHONPATH=there)
    assert "torchmove, version 0" in version.stdout, version.stderr
    program = "import torch, torchmove as tm; print(tm.__file__, len(tm.survey(torch.nn.Linear(2, 2)).to_html()))"
    used = run(f"{sys.executable} -c '{program}'", folder, PYTHONPATH=there)
    assert used.stdout.startswith(there), used.stderr
    assert {path.name for path in installed.rglob("browser/*")} == {
        path.name for path in (ROOT / "src/torchmove/reporting/browser").iterdir()
    }


@pytest.mark.slow
@needs_pip
def test_the_readmes_line_installs_the_package_and_the_command(clone, tmp_path):
    assert INSTALL in shown("README.md")
    ran = run(INSTALL, clone, PIP_TARGET=str(tmp_path / "there"))
    assert ran.returncode == 0, ran.stderr
    try_out(tmp_path / "there", tmp_path)


@pytest.mark.slow
@needs_pip
def test_the_wheel_of_the_page_about_ci_is_one_that_any_python_3_takes(clone, tmp_path):
    page = shown("docs/rehearsing-in-ci.md")
    assert WHEEL in page
    install = next(line for line in page if line.startswith("pip install") and "wheels/" in line)
    assert run(WHEEL, clone).returncode == 0
    (wheel,) = (clone / "wheels").iterdir()
    assert wheel.name.endswith("-py3-none-any.whl")
    assert wheel.match(install.split()[-1])
    ran = run(f"pip install {install.split()[-1]}", clone, PIP_TARGET=str(tmp_path / "there"))
    assert ran.returncode == 0, ran.stderr
    try_out(tmp_path / "there", tmp_path)
