"""The pytest fixture `assert_movable`, which pytest finds by itself once torchmove is installed.

`-p no:torchmove` leaves it out. Torch is imported when a test uses the fixture.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.fixture(name="assert_movable")
def _assert_movable() -> Callable[..., None]:
    """`assert_movable(step, model, optimizer, batch)`: assert that the step would run on a device not present here."""
    from torchmove.testing import assert_movable

    return assert_movable
