"""The site that `make docs` builds: strictly, and to be read without a network."""

from __future__ import annotations

import importlib.util
import inspect
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import torchmove as tm
from torchmove import testing

ROOT = Path(__file__).parents[1]
BUILDERS = ("mkdocs", "material", "mkdocstrings", "mkdocstrings_handlers")
needs_mkdocs = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, BUILDERS)), reason="mkdocs is not installed: make docs installs it"
)
PUBLIC = {**{f"torchmove.{name}": getattr(tm, name) for name in tm.__all__}}
PUBLIC |= {f"torchmove.testing.{name}": getattr(testing, name) for name in ("assert_movable", "refresh")}
# They need their libraries: tests/ecosystem looks at what they say.
CALLBACKS = [f"torchmove.integrations.{name}.TorchmoveCallback" for name in ("lightning", "transformers")]
FUNCTIONS = {name: each for name, each in PUBLIC.items() if not isinstance(each, type) or name == "torchmove.parked"}


def build(source: Path, into: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(into)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("site")
    built = build(ROOT, into)
    assert built.returncode == 0, built.stderr
    return into


@pytest.mark.slow
@needs_mkdocs
def test_every_page_is_built_and_can_be_reached_from_the_first(site):
    start = (site / "index.html").read_text()
    for page in (ROOT / "docs").glob("*.md"):
        html = page.with_suffix(".html").name
        assert (site / html).exists()
        assert f'href="{html}"' in start


@pytest.mark.slow
@needs_mkdocs
def test_no_page_fetches_anything_from_elsewhere(site):
    for page in site.glob("*.html"):
        for tag in re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*>", page.read_text()):
            assert not re.search(r'(?:src|href)="(?:https?:)?//', tag), f"{page.name}: {tag}"


@pytest.mark.slow
@needs_mkdocs
def test_the_reference_has_every_public_name_with_what_it_takes(site):
    html = (site / "api.html").read_text()
    for name in (*PUBLIC, *CALLBACKS, *(f"{name}.parked" for name in CALLBACKS)):
        assert f'id="{name}"' in html, name
    assert "as for <code>tm.move</code>" in html  # its docstrings were read


@pytest.mark.slow
@needs_mkdocs
@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("index.md", "[gone](gone.md)"),
        ("index.md", "[gone](tutorial.md#gone)"),
        ("index.md", "::: torchmove.gone"),
        ("new.md", "# A page that nobody leads to"),
    ],
)
def test_a_broken_link_fails_the_build(page, words, tmp_path):
    for name in ("docs", "src"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    with (tmp_path / "docs" / page).open("a") as file:
        file.write(f"\n\n{words}\n")
    assert build(tmp_path, tmp_path / "site").returncode != 0


# ---------------------------------------------------------------- the first page, with or without mkdocs


def test_the_first_pages_table_leads_to_every_page_of_the_site_in_its_order_of_chapters():
    listed = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M)
    table = re.findall(r"^\| .* \| (.*) \|$", (ROOT / "docs" / "index.md").read_text(), re.M)
    linked = [link for cell in table for link in re.findall(r"\]\((\S+\.md)\)", cell)]
    assert listed == ["index.md", *linked]


# ---------------------------------------------------------------- the docstrings, with or without mkdocs


def test_the_page_of_the_api_names_everything_public_once():
    named = re.findall(r"^::: ([\w.]+)$", (ROOT / "docs" / "api.md").read_text(), re.M)
    assert sorted(named) == sorted([*PUBLIC, *CALLBACKS])


@pytest.mark.parametrize("name", PUBLIC)
def test_everything_public_says_what_it_is(name):
    assert inspect.getdoc(PUBLIC[name])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_public_function_says_what_it_takes_gives_and_raises_and_shows_it(name):
    function = FUNCTIONS[name]
    doc, signature = inspect.getdoc(function) or "", inspect.signature(function)
    for parameter in signature.parameters.values():
        star = "*" if parameter.kind is parameter.VAR_POSITIONAL else ""
        assert f"\n    {star}{parameter.name}: " in doc, parameter.name
    gives = signature.return_annotation not in ("None", signature.empty)
    assert ("\nReturns:\n" in doc) == gives
    assert "\nExamples:\n    >>> " in doc
