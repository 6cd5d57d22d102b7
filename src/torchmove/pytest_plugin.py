"""The pytest fixture `assert_movable`. Enable it in conftest.py: `pytest_plugins = ["torchmove.pytest_plugin"]`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchmove.testing import assert_movable


@pytest.fixture(name="assert_movable")
def _assert_movable() -> Callable[..., None]:
    """`assert_movable(step, model, optimizer, batch)`: assert that the step would run on a device."""
    return assert_movable
