"""The devices that tests run on. Those that take the `route` fixture run on every route of tests/routes.py."""

from __future__ import annotations

import fcntl
import gc
import importlib
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from routes import ROUTES, Route
from tiers import parted
from twin import install

from torchmove.internals import guards as _collector
from torchmove.moving import leftovers as _held
from torchmove.moving.movers import staged

LEFT, NO_TWIN = pytest.StashKey[int](), pytest.StashKey[str]()

collect_ignore = ["corpus", "scripts", "ecosystem/tiny_pipelines.py"]  # programs, not tests


@pytest.fixture(params=ROUTES, ids=repr)
def route(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Route:
    if request.param.name == "pieces":
        monkeypatch.setattr(staged, "_SMALL_BYTES", 0)
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def _share_of_the_card(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests on one GPU run side by side; one that fills it (`whole_card`) runs while no other does."""
    if not request.node.get_closest_marker("cuda"):
        yield
        return
    with (Path(tempfile.gettempdir()) / "torchmove-card.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX if request.node.get_closest_marker("whole_card") else fcntl.LOCK_SH)
        yield


@pytest.fixture(autouse=True)
def _collected_between_tests(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A test that counts memory must not find less of it because the garbage of others was collected meanwhile: the
    collector is on, and has no reason to run."""
    monkeypatch.setattr(_collector, "_SHARE", math.inf)
    thresholds = gc.get_threshold()
    gc.set_threshold(1 << 30)
    yield
    gc.set_threshold(*thresholds)


@pytest.fixture(autouse=True, scope="module")
def _what_was_there_is_frozen(request: pytest.FixtureRequest) -> None:
    """In the quick tier. Moves look through all objects there are: those of torch, of pytest and of the test files are
    many times those of a test. Python shows nobody what is frozen."""
    if request.config.option.quick:
        gc.collect()
        gc.freeze()


@pytest.fixture
def unfrozen(request: pytest.FixtureRequest) -> Iterator[None]:
    """As in a program that freezes nothing."""
    gc.unfreeze()
    yield
    gc.unfreeze()
    if request.config.option.quick:
        gc.freeze()


@pytest.fixture(autouse=True)
def _old_memory_is_searched_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """However little it is, and however long that takes."""
    monkeypatch.setattr(_held, "_WORTH_BYTES", 0)
    monkeypatch.setattr(_held, "_OBJECTS_PER_SECOND", math.inf)


@pytest.fixture
def twin() -> Iterator[Any]:
    """The twin device, with its traps removed before and after."""
    device = install()
    _remove_traps(device)
    yield device
    _remove_traps(device)


def _remove_traps(device: Any) -> None:
    device.fail_at(0)
    device.fail_copy_at(0)
    device.limit_bytes(-1)


def pytest_configure(config: pytest.Config) -> None:
    """The plugin that an installed torchmove registers by itself; a checkout may not be installed, or not again."""
    if not config.pluginmanager.has_plugin("torchmove"):
        config.pluginmanager.register(importlib.import_module("torchmove.pytest_plugin"), "torchmove")


# ---------------------------------------------------------------- which device is there


def needs_twin(item: pytest.Item) -> bool:
    """On the GPU a test that takes a route takes one of those to the GPU."""
    named = item.get_closest_marker("twin") is not None or not {"twin", "route"}.isdisjoint(item.fixturenames)
    return named and not item.get_closest_marker("cuda")


def pytest_collection_finish(session: pytest.Session) -> None:
    """One test that needs the twin is enough: torch counts its devices when the first backward runs, and not again."""
    if any(map(needs_twin, session.items)) and not session.config.option.collectonly:
        session.stash[NO_TWIN] = _registered()


def _registered() -> str:
    """Why the twin device is not there, or nothing."""
    try:
        install()
    except Exception as error:
        return f"the twin device cannot be built, which needs g++: {error}"
    return ""


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test on the GPU does without the twin: torch takes a registered device for the machine's only accelerator."""
    if item.get_closest_marker("cuda") and hasattr(torch, "twin"):
        pytest.fail("the twin device is registered in this process: run the GPU tests on their own, pytest -m cuda")
    if needs_twin(item) and item.session.stash[NO_TWIN]:
        pytest.fail(item.session.stash[NO_TWIN])


# ---------------------------------------------------------------- which tests are run


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="the quick tier: leave the rest to make test-all")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Once `-m` has chosen: of what is left it draws the samples."""
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("cuda"):
                item.add_marker(pytest.mark.skip(reason="needs a GPU"))
    if config.option.quick:
        items[:], left = parted(items)
        config.hook.pytest_deselected(items=left)
        config.stash[LEFT] = len(left)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of xdist tells its controller, which collects nothing itself."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left"] = session.config.stash.get(LEFT, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    node.config.stash[LEFT] = getattr(node, "workeroutput", {}).get("left", 0)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if config.option.quick:
        terminalreporter.section("the quick tier")
        terminalreporter.line(f"{config.stash.get(LEFT, 0)} tests were left to make test-all.")
