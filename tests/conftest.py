"""The devices that tests run on. Those that take the `route` fixture run on every route of tests/routes.py."""

from __future__ import annotations

import fcntl
import gc
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from routes import ROUTES, Route
from twin import install

from torchmove.internals import collector as _collector
from torchmove.moving import leftovers as _held
from torchmove.moving.movers import staged

collect_ignore = ["corpus", "ecosystem/tiny_pipelines.py"]  # programs, not tests


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


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test on the GPU does without the twin: torch takes a registered device for the machine's only accelerator."""
    if not item.get_closest_marker("cuda"):
        install()
    elif hasattr(torch, "twin"):
        pytest.fail("the twin device is registered in this process: run the GPU tests on their own, pytest -m cuda")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("cuda"):
                item.add_marker(pytest.mark.skip(reason="needs a GPU"))
