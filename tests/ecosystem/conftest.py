"""Tests against the real libraries. One that is not installed is skipped by name."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from routes import Route
from vision import make_importable

make_importable()
torch.set_num_threads(1)  # it is many small things

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


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """How many objects of each library were tried, one for each test and its parameters, and how that went."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for outcome in ("passed", "failed", "error", "skipped"):
        for report in terminalreporter.stats.get(outcome, ()):
            path, _, name = report.nodeid.partition("::")
            if "ecosystem" in path:
                said = "refused" if outcome == "passed" and "refused" in name else outcome
                counts[Path(path).stem.removeprefix("test_")][said] += 1
    terminalreporter.section("objects of libraries")
    terminalreporter.write_line("| library | tested | correct | refused with reason | wrong | not tested |")
    for library, found in sorted(counts.items()):
        right, refused, wrong = found["passed"], found["refused"], found["failed"] + found["error"]
        row = [library, right + refused + wrong, right, refused, wrong, found["skipped"]]
        terminalreporter.write_line(f"| {' | '.join(map(str, row))} |")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What libraries warn of is theirs. What torchmove sets off by reading them is not."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("error:::torchmove"))
            item.add_marker(pytest.mark.filterwarnings("default"))
