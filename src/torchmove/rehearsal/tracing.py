"""Programs that a step has torch make of its code: a rehearsal does not follow that, and torch.export would crash."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn
from unittest.mock import patch

import torch

from torchmove.rehearsal.stage import NotFollowed


@contextmanager
def nothing_traced() -> Iterator[None]:
    with patch.object(torch.export, "export", _refuse), patch.object(torch.jit, "trace", _refuse):
        yield


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise NotFollowed("torch makes a program of the code here, and a rehearsal does not see into that")
