"""What a rehearsal does not follow: programs that torch makes of a step's code, and forward-mode differentiation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn
from unittest.mock import patch

import torch
from torch.autograd import forward_ad

from torchmove.rehearsal.stage import NotFollowed


@contextmanager
def nothing_traced() -> Iterator[None]:
    with (
        patch.object(torch.export, "export", _refuse),
        patch.object(torch.jit, "trace", _refuse),
        patch.object(forward_ad, "make_dual", _refuse_duals),
    ):
        yield


def _refuse_duals(*_: Any, **__: Any) -> NoReturn:
    raise NotFollowed("forward-mode differentiation keeps tangents in torch's C++, where a rehearsal does not see them")


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise NotFollowed("torch makes a program of the code here, and a rehearsal does not see into that")
