"""The devices that tests run on, and the routes between them.

A route takes a state from one place to another and back. Tests that take the `route` fixture run on every one:

- fresh: from CPU storages to new CPU storages, the way of `tensor.data =` (CUDA's class of device)
- twin: from the CPU to the twin device and back, the way of swapping implementations (XLA's class of device)
- twins: from twin:0 to twin:1 and back
- cuda: from the CPU to the GPU and back; skipped where there is none
- staged, pieces: the same through the ring, in bundles or, as if all were large, in pieces
"""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from twin import install

import torchmove as tm
from torchmove.movers import staged
from torchmove.testing import refresh

collect_ignore = ["corpus"]  # programs, not tests


class Route:
    """From `home` to `away` and back."""

    def __init__(self, name: str, home: str, away: str, mover: str = "auto") -> None:
        self.name, self._home, self._away, self.mover = name, home, away, mover

    # torch knows the name of the twin device only once it is installed.
    @property
    def home(self) -> torch.device:
        return torch.device(self._home)

    @property
    def away(self) -> torch.device:
        return torch.device(self._away)

    def __repr__(self) -> str:
        return self.name

    @property
    def is_fresh(self) -> bool:
        return self._home == self._away

    def start(self, *objects: Any, **options: Any) -> None:
        """Bring a state made on the CPU to where the route begins."""
        if self.home.type != "cpu":
            tm.move(*objects, to=self.home, mover=self.mover, **options)

    def there(self, *objects: Any, **options: Any) -> tm.Receipt:
        return refresh(*objects) if self.is_fresh else tm.move(*objects, to=self.away, mover=self.mover, **options)

    def back(self, *objects: Any, **options: Any) -> tm.Receipt:
        return refresh(*objects) if self.is_fresh else tm.move(*objects, to=self.home, mover=self.mover, **options)


ROUTES = [
    Route("fresh", "cpu", "cpu"),
    Route("twin", "cpu", "twin:0"),
    Route("twins", "twin:0", "twin:1"),
    pytest.param(Route("cuda", "cpu", "cuda:0"), marks=pytest.mark.cuda),
    pytest.param(Route("staged", "cpu", "cuda:0", "staged"), marks=pytest.mark.cuda),
    pytest.param(Route("pieces", "cpu", "cuda:0", "staged"), marks=pytest.mark.cuda),
]


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
