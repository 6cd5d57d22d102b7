"""For tests: of states that torchmove shall move, and of torchmove itself."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from torchmove import _move
from torchmove._names import names_of
from torchmove._records import Receipt
from torchmove.rehearsal.run import Data, MovedBy, rehearse_named


def assert_movable(
    step: Callable[..., Any],
    *objects: Any,
    to: str | torch.device = "cuda",
    moved_by: MovedBy = "torchmove",
    data: Data = "shapes",
) -> None:
    """That a step would run on a device that need not be there.

    Args:
        step: as for `tm.rehearse`.
        *objects: as for `tm.rehearse`.
        to: as for `tm.rehearse`.
        moved_by: as for `tm.rehearse`.
        data: as for `tm.rehearse`.

    Raises:
        AssertionError: it would not. It says what `tm.rehearse` has found.

    Examples:
        >>> import torch
        >>> from torchmove.testing import assert_movable
        >>> model = torch.nn.Linear(2, 2)
        >>> def step(model, batch):
        ...     model(batch.to("cuda")).sum().backward()
        >>> assert_movable(step, model, torch.ones(3, 2))
    """
    found = rehearse_named(step, objects, names_of(objects, sys._getframe().f_back), to, moved_by, data)
    if not found.ok:
        raise AssertionError(str(found))


def refresh(*objects: Any) -> Receipt:
    """Give a state new storages on the device where it is, by the very chain that moves it elsewhere.

    On a machine without an accelerator this is how to see that a state survives a move to one.

    Args:
        *objects: as for `tm.move`.

    Returns:
        The receipt.

    Raises:
        MoveRefused: as for `tm.move`.

    Examples:
        >>> import torch
        >>> from torchmove.testing import refresh
        >>> model = torch.nn.Linear(2, 2)
        >>> before, address = model.weight.tolist(), model.weight.data_ptr()
        >>> receipt = refresh(model)
        >>> model.weight.tolist() == before, model.weight.data_ptr() == address
        (True, False)
    """
    return _move.refresh(names_of(objects, sys._getframe().f_back))
