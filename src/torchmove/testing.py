"""Helpers for tests: `assert_movable` rehearses a step on a simulated device, `refresh` moves a state in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchmove.chain import refresh_named
from torchmove.internals.frames import frame
from torchmove.moving.receipt import Receipt
from torchmove.rehearsing.run import Data, MovedBy, Options, rehearse_for
from torchmove.surveying.paths import check, names_of


def assert_movable(
    step: Callable[..., Any],
    *objects: Any,
    to: str | torch.device = "cuda",
    moved_by: MovedBy = "torchmove",
    data: Data = "auto",
    state: tuple[Any, ...] | list[Any] = (),
    strict_devices: bool = False,
    confirm_errors: bool = False,
    max_memory: str | int | None = None,
) -> None:
    """Assert that a step would run on a device, which this machine need not have.

    Args:
        step: as for `tm.rehearse`.
        *objects: as for `tm.rehearse`.
        to: as for `tm.rehearse`.
        moved_by: as for `tm.rehearse`.
        data: as for `tm.rehearse`.
        state: as for `tm.rehearse`.
        strict_devices: as for `tm.rehearse`.
        confirm_errors: as for `tm.rehearse`.
        max_memory: as for `tm.rehearse`.

    Raises:
        AssertionError: the step would fail there or needs more than `max_memory`, or the rehearsal did not reach its
            end. The message is the rehearsal.

    Examples:
        >>> import torch
        >>> from torchmove.testing import assert_movable
        >>> model = torch.nn.Linear(2, 2)
        >>> def step(model, batch):
        ...     model(batch.to("cuda")).sum().backward()
        >>> assert_movable(step, model, torch.ones(3, 2))
    """
    options = Options(to, moved_by, data, tuple(state), strict_devices, confirm_errors, max_memory)
    found = rehearse_for(step, objects, options, frame(0).f_back)
    if not found.ok:
        raise AssertionError(str(found))


def refresh(*objects: Any) -> Receipt:
    """Give a state new storages on its own device, by the same steps that move it elsewhere.

    Use it to test, on a machine without an accelerator, that a state survives a move.

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
    check(objects)
    return refresh_named(names_of(objects, frame(0).f_back))
