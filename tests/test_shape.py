"""The shape of the code: who imports whom, where private names of torch and CPython are, what is public."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from itertools import chain
from pathlib import Path

import pytest

import torchmove as tm
from torchmove import reporting

SOURCE = Path(tm.__file__).parent
FILES = {
    ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(SOURCE.rglob("*.py"))
}

# Imports go one way: a file imports from folders before its own, and from its own.
LAYERS: list[tuple[str, ...]] = [
    ("codes", "errors", "formatting", "results"),
    ("internals",),
    ("progress", "devices"),
    ("surveying",),
    ("planning", "wrong_calls"),
    ("moving",),
    ("verifying",),
    ("chain",),
    ("parking", "checkpoints"),
    ("ranks",),
    ("rehearsing",),
    ("integrations",),
    ("machine", "bench"),
    ("reporting",),
    ("__init__",),
    ("testing", "demo"),
    ("pytest_plugin",),
    ("cli",),
    ("__main__",),
]
LAYER_OF = {name: number for number, layer in enumerate(LAYERS) for name in layer}


def name_of(module: str) -> str:
    """The entry of a module in the layers: the longest one that it is, or is in."""
    parts = module.split(".")[1:] or ["__init__"]
    within = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((name for name in within if name in LAYER_OF), parts[0])


def imports_of(path: Path) -> set[str]:
    """The modules within torchmove that a file imports when it is loaded; what only a type checker sees is left out."""
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
        for alias in node.names:
            inside = f"{node.module}.{alias.name}"
            found.add(inside if inside in FILES else node.module or "")
    return found


GRAPH = {module: imports_of(path) & FILES.keys() - {module} for module, path in FILES.items()}
# The one exception: a result imports what draws it, once it is asked to print.
GRAPH["torchmove.results"] = {each for each in GRAPH["torchmove.results"] if "reporting" not in each}


def test_every_file_has_its_layer():
    assert {name_of(module) for module in FILES} == {*chain.from_iterable(LAYERS)}


@pytest.mark.parametrize("module", GRAPH)
def test_imports_go_one_way(module):
    mine = name_of(module)
    for other in GRAPH[module]:
        theirs = name_of(other)
        assert mine == theirs or LAYER_OF[theirs] < LAYER_OF[mine], f"{module} imports {other}"


def test_no_file_imports_itself_by_way_of_others():
    done: set[str] = set()

    def visit(module: str, way: tuple[str, ...]) -> None:
        assert module not in way, " -> ".join((*way, module))
        if module not in done:
            for other in GRAPH[module]:
                visit(other, (*way, module))
            done.add(module)

    for module in GRAPH:
        visit(module, ())


def test_no_reader_imports_a_reader():
    for module in GRAPH:
        if module.startswith("torchmove.surveying.readers."):
            assert not any(other.startswith("torchmove.surveying.readers") for other in GRAPH[module])


# What named tuples offer, under names that begin with an underscore for lack of others.
OF_NAMED_TUPLES = {"_replace", "_asdict", "_fields", "_make"}
OWN_NAMES = {
    name
    for path in FILES.values()
    for node in ast.walk(ast.parse(path.read_text()))
    for name in (
        [getattr(node, "name", None)]
        if isinstance(node, (ast.FunctionDef, ast.ClassDef))
        else [node.attr]
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        else [node.id]
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        else []
    )
}


def private_names_in(path: Path) -> set[str]:
    """Names of torch and CPython that begin with an underscore: attributes, and what is imported. Those of operators
    (`aten._to_copy`) are how torch's dispatcher calls them."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and re.match(r"_[a-zA-Z]", node.attr):
            if node.attr not in OF_NAMED_TUPLES | OWN_NAMES and getattr(node.value, "id", "") != "aten":
                found.add(node.attr)
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith(("torchmove", "__future__")):
            found |= {alias.name for alias in node.names if alias.name.startswith("_") or "._" in (node.module or "")}
    return found


@pytest.mark.parametrize("module", FILES)
def test_private_names_of_torch_and_cpython_are_in_internals(module):
    assert name_of(module) == "internals" or not private_names_in(FILES[module])


@pytest.mark.parametrize("module", FILES)
def test_what_is_switched_is_opened_twice(module):
    """Opened once, it is not switched."""
    code = FILES[module].read_text()
    assert len(re.findall(r"with HeldInterrupts\(\)", code)) == len(
        re.findall(r"with HeldInterrupts\(\) as (\w+), \1:", code)
    )


@pytest.mark.parametrize(("kind", "file"), reporting._FILES.items())
def test_every_kind_of_result_has_its_report(kind, file):
    assert issubclass(getattr(import_module(f"torchmove.reporting.{file}"), f"{kind}Report"), reporting.Report)


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
        "Summary",
        "Swap",
        "TorchmoveError",
        "Verdict",
        "VerificationError",
        "apply",
        "attribute",
        "by_rank",
        "device",
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


def test_every_folder_of_the_package_has_one_of_tests():
    tests = Path(__file__).parent
    folders = {path.parent.relative_to(SOURCE).parts[0] for path in SOURCE.glob("*/__init__.py")}
    assert not [name for name in folders if not [*(tests / name).glob("test_*.py")]]
