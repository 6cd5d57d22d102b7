"""For tests of states that torchmove moves, and of torchmove itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchmove.chain import refresh_named
from torchmove.internals.frames import frame
from torchmove.moving.receipt import Receipt
from torchmove.rehearsing.run import Data, MovedBy, Options, rehearse_for
from torchmove.surveying.names import names_of


def assert_movable(
    step: Callable[..., Any],
    *objects: Any,
    to: str | torch.device = "cuda",
    moved_by: MovedBy = "torchmove",
    data: Data = "auto",
    state: tuple[Any, ...] | list[Any] = (),
    strict_devices: bool = False,
    confirm_errors: bool = False,
) -> None:
    """Assert that a step would run on a device that need not be there.

    Args:
        step: as for `tm.rehearse`.
        *objects: as for `tm.rehearse`.
        to: as for `tm.rehearse`.
        moved_by: as for `tm.rehearse`.
        data: as for `tm.rehearse`.
        state: as for `tm.rehearse`.
        strict_devices: as for `tm.rehearse`.
        confirm_errors: as for `tm.rehearse`.

    Raises:
        AssertionError: it would not, or the rehearsal did not reach the end of the step. It says what was found.

    Examples:
        >>> import torch
        >>> from torchmove.testing import assert_movable
        >>> model = torch.nn.Linear(2, 2)
        >>> def step(model, batch):
        ...     model(batch.to("cuda")).sum().backward()
        >>> assert_movable(step, model, torch.ones(3, 2))
    """
    options = Options(to, moved_by, data, tuple(state), strict_devices, confirm_errors)
    found = rehearse_for(step, objects, options, frame(0).f_back)
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
    return refresh_named(names_of(objects, frame(0).f_back))
