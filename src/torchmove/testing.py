"""For tests: of states that torchmove shall move, and of torchmove itself."""

from __future__ import annotations

import sys
from typing import Any

from torchmove import _move
from torchmove._names import names_of
from torchmove._records import Receipt


def refresh(*objects: Any) -> Receipt:
    """Give a state new storages on the device where it is, by the very chain that moves it elsewhere.

    On a machine without an accelerator this is how to see that a state survives a move to one:

    >>> import torch
    >>> from torchmove.testing import refresh
    >>> model = torch.nn.Linear(2, 2)
    >>> before, address = model.weight.tolist(), model.weight.data_ptr()
    >>> receipt = refresh(model)
    >>> model.weight.tolist() == before, model.weight.data_ptr() == address
    (True, False)
    """
    return _move.refresh(names_of(objects, sys._getframe(1)))
