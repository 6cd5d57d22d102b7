"""The routes between devices. A route takes a state from one place to another and back.

- fresh: from CPU storages to new CPU storages, the way of `tensor.data =` (CUDA's class of device)
- twin: from the CPU to the twin device and back, the way of swapping implementations (XLA's class of device)
- twins: from twin:0 to twin:1 and back
- cuda: from the CPU to the GPU and back; skipped where there is none
- staged, pieces: the same through the ring, in bundles or, as if all were large, in pieces
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import torchmove as tm
from torchmove.testing import refresh


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
