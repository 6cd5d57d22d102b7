"""Any other object: its `__dict__` and its slots. Dataclasses, attrs classes, schedulers and scalers are that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchmove._records import Child, attribute
from torchmove._stored import attributes


def read(holder: Any) -> Iterator[Child]:
    for name, value in attributes(holder):
        yield attribute(name, value)
