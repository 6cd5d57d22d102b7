"""Installing torchmove: as the pages say, word for word but without a network; and what `make dist` builds."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from pages import ROOT, commands_of, pieces_of

import torchmove

INSTALL, WHEEL = "pip install .", "pip wheel --no-deps --wheel-dir wheels ."
BINARIES = Path(sys.executable).parent
# What a build needs beside src, and what shows readers the project.
METADATA = ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md")


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


def cloned(made: Path) -> Path:
    shutil.copytree(ROOT / "src", made / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    for name in METADATA:
        shutil.copy(ROOT / name, made)
    (made / "tests").mkdir()
    shutil.copy(__file__, made / "tests")  # setuptools takes tests of such names for a part of the source
    return made


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    return cloned(tmp_path / "clone")


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


# ---------------------------------------------------------------- the distributions


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel made of it: that of `make dist`, which names it, or one made here."""
    if "DISTRIBUTIONS" in os.environ:
        return Path(os.environ["DISTRIBUTIONS"]).resolve()
    folder = tmp_path_factory.mktemp("distributions")
    program = f'from setuptools import build_meta; build_meta.build_sdist("{folder}")'
    ran = run(f"{sys.executable} -c '{program}'", cloned(tmp_path_factory.mktemp("of") / "clone"))
    assert ran.returncode == 0, ran.stderr
    ran = run(f"pip wheel --wheel-dir . {one_of(folder, '*.tar.gz')}", folder)
    assert ran.returncode == 0, ran.stderr
    return folder


def one_of(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


def package() -> set[str]:
    """The files of the package, py.typed among them."""
    paths = (path.relative_to(ROOT / "src") for path in (ROOT / "src" / "torchmove").rglob("*") if path.is_file())
    return {path.as_posix() for path in paths if path.suffix != ".pyc"}


@pytest.mark.slow
@needs_pip
def test_the_source_distribution_holds_what_a_build_needs_and_nothing_else(built):
    name = f"torchmove-{torchmove.__version__}"
    with tarfile.open(built / f"{name}.tar.gz") as archive:
        held = {member.name.removeprefix(f"{name}/") for member in archive.getmembers() if member.isfile()}
    generated = {"PKG-INFO", "setup.cfg", *(each for each in held if each.startswith("src/torchmove.egg-info/"))}
    assert held == {*METADATA, *generated, *(f"src/{each}" for each in package())}
    assert "src/torchmove/py.typed" in held


@pytest.mark.slow
@needs_pip
def test_the_wheel_holds_the_package_and_nothing_else(built):
    about = f"torchmove-{torchmove.__version__}.dist-info/"
    with zipfile.ZipFile(one_of(built, "*.whl")) as archive:
        held = set(archive.namelist())
    assert {each for each in held if not each.startswith(about)} == package()
    assert {f"{about}METADATA", f"{about}entry_points.txt", f"{about}licenses/LICENSE"} <= held
    assert "torchmove/py.typed" in held


EVERYTHING = """
import importlib, pkgutil, sys
import torch, torchmove as tm

for module in pkgutil.walk_packages(tm.__path__, "torchmove."):
    if module.name not in ("torchmove.__main__", "torchmove.pytest_plugin"):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:  # of optional dependencies
            if error.name != "libcst" and "which is not installed" not in str(error):
                raise

from torch._lazy import ts_backend
ts_backend.init()
model = torch.nn.Linear(2, 2)
weight, before = model.weight, model.weight.tolist()
assert tm.move(model, torch.optim.AdamW(model.parameters()), to="lazy")
assert model.weight is weight and weight.device.type == "lazy" and weight.cpu().tolist() == before
print(tm.__version__, tm.__file__, "pytest" in sys.modules)
"""


@pytest.mark.slow
@needs_pip
def test_the_wheel_works_beside_its_requirements_and_nothing_else(built, tmp_path):
    """In an environment of its own, with links to the torch that is here and to what torch needs."""
    environment = tmp_path / "environment"
    venv.create(environment, symlinks=True, with_pip=False)
    ran = run(f"pip --python {environment / 'bin' / 'python'} install {one_of(built, '*.whl')}", tmp_path)
    assert ran.returncode == 0, ran.stderr
    site = one_of(environment, "lib/python*/site-packages")
    about = metadata.Distribution.at(one_of(site, "torchmove-*.dist-info"))
    assert about.version == torchmove.__version__
    for name in needed(about.requires):
        link(metadata.distribution(name), site)
    assert f"torchmove, version {torchmove.__version__}" in run("environment/bin/torchmove --version", tmp_path).stdout
    (tmp_path / "program.py").write_text(EVERYTHING)
    used = run("environment/bin/python -I program.py", tmp_path)
    assert used.stdout.split() == [torchmove.__version__, f"{site / 'torchmove' / '__init__.py'}", "False"], used.stderr


def needed(requirements: Iterable[str]) -> set[str]:
    """The distributions that these ask for, with what those ask for; what an extra asks for, where one asks for it."""
    found: set[tuple[str, str]] = set()
    todo = [(Requirement(each), "") for each in requirements]
    while todo:
        need, extra = todo.pop()
        if need.marker is not None and not need.marker.evaluate({"extra": extra}):
            continue
        for asked in {(need.name, wanted) for wanted in ("", *need.extras)} - found:
            found.add(asked)
            todo += [(Requirement(each), asked[1]) for each in metadata.requires(need.name) or ()]
    return {name for name, _ in found}


def link(distribution: metadata.Distribution, site: Path) -> None:
    for name in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
        if not (site / name).exists():
            (site / name).symlink_to(distribution.locate_file(name))


@pytest.mark.slow
@needs_pip
@pytest.mark.skipif(importlib.util.find_spec("readme_renderer") is None, reason="needs readme_renderer: make dist")
def test_the_readme_renders_as_the_long_description(built):
    """Without what a reader need not see. Its links to other files lead somewhere in the repository only."""
    from readme_renderer import markdown

    with zipfile.ZipFile(one_of(built, "*.whl")) as archive:
        about = metadata.PathDistribution(zipfile.Path(archive) / f"torchmove-{torchmove.__version__}.dist-info")
        described = about.metadata
    assert described["Description-Content-Type"] == "text/markdown"
    text = described.get_payload() or described["Description"]
    assert text.strip() == (ROOT / "README.md").read_text().strip()
    page = markdown.render(text)
    assert page is not None
    assert "setup" not in page
    assert page.count("<table>") == len(re.findall(r"^\|[-|]+\|$", text, re.MULTILINE))
