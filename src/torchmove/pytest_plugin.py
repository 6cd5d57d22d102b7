"""A fixture for pytest. In a conftest.py: `pytest_plugins = ["torchmove.pytest_plugin"]`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchmove.testing import assert_movable


@pytest.fixture(name="assert_movable")
def _assert_movable() -> Callable[..., None]:
    """`assert_movable(step, model, optimizer, batch)`: the step would run on a device that need not be there."""
    return assert_movable
