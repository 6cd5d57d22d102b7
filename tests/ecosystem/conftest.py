"""Tests against the real libraries. One that is not installed is skipped by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from routes import Route
from vision import make_importable

make_importable()

# Each state is made and lives at the route's home, is moved away and back, and lives on at home.
ROUTES = [
    Route("fresh", "cpu", "cpu"),
    Route("twin", "cpu", "twin:0"),
    Route("twins", "twin:0", "twin:1"),
    pytest.param(Route("cuda", "cuda:0", "cpu"), marks=pytest.mark.cuda),
]


@pytest.fixture(params=ROUTES, ids=repr)
def route(request: pytest.FixtureRequest) -> Route:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(params=[each for each in ROUTES if repr(each) != "twins"], ids=repr)
def cpu_route(request: pytest.FixtureRequest) -> Route:
    """For states whose library has no kernels for a device that it does not know: they live on the CPU, or a GPU."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def _the_same_every_time(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two runs of one training on a GPU differ in the last bits, unless asked not to."""
    if not request.node.get_closest_marker("cuda"):
        yield
        return
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True):
        yield
    torch.use_deterministic_algorithms(False)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What libraries warn of is theirs. What torchmove sets off by reading them is not."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("error:::torchmove"))
            item.add_marker(pytest.mark.filterwarnings("default"))
