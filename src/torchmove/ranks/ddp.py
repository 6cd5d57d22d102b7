"""DistributedDataParallel: move what it has wrapped, and wrap it again."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from torchmove.chain import Device, move_named
from torchmove.errors import MoveRefused
from torchmove.internals.ddp import remove_autograd_hooks
from torchmove.internals.frames import frame
from torchmove.moving.agreement import agreement_among
from torchmove.planning.plan import Refusal
from torchmove.surveying.names import names_of


def rewrap(model: DistributedDataParallel, *objects: Any, to: Device, progress: bool = True) -> DistributedDataParallel:
    """Move what DistributedDataParallel has wrapped, and wrap it again with the same settings. Called on every rank.

    Args:
        model: the wrapper. It is of no use afterwards.
        *objects: the optimizer, and whatever else hangs on the model.
        to: the device of this rank.
        progress: as for `tm.move`.

    Returns:
        The new wrapper. All ranks have moved.

    Raises:
        TypeError: the model is not wrapped.
        MoveRefused: as for `tm.move`, on any rank; also within `no_sync()`.
        MoveFailed: as for `tm.move`, on any rank. None has moved.

    Examples:
        >>> import torchmove as tm
        >>> model = tm.rewrap(model, optimizer, to="cuda:1")  # doctest: +SKIP
    """
    if not isinstance(model, DistributedDataParallel):
        raise TypeError(
            f"rewrap takes a DistributedDataParallel model, not a {type(model).__name__}: tm.move moves that"
        )
    if not model.require_backward_grad_sync:
        why = "gradients are not synchronised now (no_sync): the new wrapper would never begin to"
        raise MoveRefused([Refusal("R020", "model", why, "leave the block of no_sync() first")])
    inside: nn.Module = model.module
    named = {"model.module": inside}
    named |= names_of([each for each in objects if each is not inside], frame(0).f_back)
    council = agreement_among(distributed.get_process_group_ranks(model.process_group))
    before = next((parameter.device for parameter in inside.parameters()), torch.device("cpu"))
    receipt = move_named(named, to, progress=progress, council=council)
    try:
        wrapped = DistributedDataParallel(inside, **_settings(model, receipt.plan.target))
    except Exception:
        move_named(named, before, progress=progress, council=council)
        raise
    _let_go(model)
    for hook, state in getattr(model, "_comm_hooks", ()):
        wrapped.register_comm_hook(state, hook)
    wrapped.training = model.training
    return wrapped


def _settings(model: Any, target: torch.device) -> dict[str, Any]:
    """As it was made, but for the device; and without sending the weights around: they are the same everywhere."""
    settings = {name: getattr(model, name) for name in _SETTINGS if hasattr(model, name)}
    known = inspect.signature(DistributedDataParallel.__init__).parameters
    settings["forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"] = (
        model.broadcast_buffers
    )
    settings["bucket_cap_mb"] = model.bucket_bytes_cap / (1 << 20)
    settings["device_ids"] = None if target.type == "cpu" or model.device_ids is None else [target]
    settings["init_sync"] = False
    return settings


_SETTINGS = (
    *("dim", "process_group", "find_unused_parameters"),
    *("gradient_as_bucket_view", "static_graph", "mixed_precision"),
)


def _let_go(model: Any) -> None:
    """The old wrapper must not reduce gradients any more, and so it must not be used: the ranks would train apart."""
    remove_autograd_hooks(model)
    model.forward = _was_exchanged


def _was_exchanged(*_: Any, **__: Any) -> None:
    raise RuntimeError(
        "tm.rewrap has wrapped this model again: use what it returned, the old wrapper trains each rank apart"
    )
