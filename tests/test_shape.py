"""The shape of the code: who imports whom, where torch's private names are, what is public."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import torchmove as tm

SOURCE = Path(tm.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))

# Imports go one way: a file may import from layers before its own, and from its own where that is said here.
LAYERS: list[set[str]] = [
    {"report", "_everything", "_codes", "_switch"},
    {"_errors", "_paths", "_interrupts", "_collector"},
    {"_records", "_undo"},
    {
        "_stored",
        "_devices",
        "_graphs",
        "_shells",
        "_names",
        "_progress",
        "_pages",
        "_fsdp",
    },
    {"_storage"},
    {"staging", "_blocks", "_freeing", "_carried", "_finds", "_repointing"},
    {"readers", "movers", "_rules", "learning", "_digest", "_held"},
    {"_walk", "_native", "_council"},
    {"_contents", "_places"},
    {"_own_apply", "_diagnostics"},
    {"_survey", "_plan", "_apply", "_verify"},
    {"_keep", "_stale"},
    {"_move"},
    {"rehearsal", "parking"},
    {"distributed"},
    {"__init__"},
    {"testing", "demo", "devices"},
    {"pytest_plugin"},
    {"_trips"},
    {"bench", "checkpoints"},
    {"cli"},
    {"__main__"},
]
TORCH_PRIVATE = {"_storage", "rehearsal", "learning"}


def name_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports_of(path: Path) -> set[str]:
    """The names within torchmove that a file imports when it is loaded; what only a type checker sees is left out."""
    tree = ast.parse(path.read_text())
    hidden = {
        node
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and getattr(block.test, "id", "") == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if node in hidden or not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("torchmove"):
            continue
        parts = (node.module or "").split(".")
        found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
    return found


def layer_of(name: str) -> int:
    return next(index for index, layer in enumerate(LAYERS) if name in layer)


def test_every_file_has_its_layer():
    assert {name_of(path) for path in FILES} == set().union(*LAYERS)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_one_way(path):
    mine = name_of(path)
    for other in imports_of(path) - {mine}:
        assert layer_of(other) < layer_of(mine), f"{mine} imports {other}"


@pytest.mark.parametrize("folder", ["readers", "movers"])
def test_no_reader_imports_a_reader_and_no_mover_a_mover(folder):
    for path in (SOURCE / folder).glob("*.py"):
        if path.name != "__init__.py":
            assert folder not in imports_of(path)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_torchs_private_names_are_in_their_one_file(path):
    code = "\n".join(line.split("#")[0] for line in path.read_text().splitlines())
    named = re.findall(r"(?<![\w\"])torch\._[A-Za-z]\w*", code)
    assert not named or name_of(path) in TORCH_PRIVATE, named


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_what_is_switched_is_opened_twice(path):
    """Opened once, it is not switched."""
    code = path.read_text()
    assert len(re.findall(r"with HeldInterrupts\(\)", code)) == len(
        re.findall(r"with HeldInterrupts\(\) as (\w+), \1:", code)
    )


def test_the_public_names_are_these():
    assert sorted(tm.__all__) == [
        "ByRank",
        "Inventory",
        "MoveFailed",
        "MoveRefused",
        "Parked",
        "Plan",
        "Receipt",
        "Rehearsal",
        "Swap",
        "TorchmoveError",
        "Verdict",
        "VerificationError",
        "apply",
        "attribute",
        "by_rank",
        "item",
        "move",
        "park",
        "parked",
        "plan",
        "register_reader",
        "register_rule",
        "rehearse",
        "release",
        "rewrap",
        "survey",
        "swap",
        "verify",
    ]
