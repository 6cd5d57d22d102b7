"""What FSDP2 and DistributedDataParallel keep for themselves.

Each shard of FSDP is a view of a flat, padded tensor that FSDP gathers from. If the two move together, FSDP's records
stay valid.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

SHARDED_MODULE = "torch.distributed.fsdp:FSDPModule"


def is_sharded(module: Any) -> bool:
    return any(f"{base.__module__}:{base.__qualname__}" == SHARDED_MODULE for base in type(module).__mro__)


def is_fsdp_hook(hook: Any) -> bool:
    """Whether FSDP put this hook on a module. Such a hook holds FSDP's records, and no tensors of the state."""
    return str(getattr(hook, "__module__", "")).startswith("torch.distributed.fsdp.")


def shards_of(module: Any) -> Iterator[Any]:
    """FSDP's records of this module, one for each parameter that it shards."""
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)  # torch before 2.12 has a single group, or None
    for group in [state._fsdp_param_group] if groups is None else groups:
        yield from group.fsdp_params if group is not None else ()


def flat_of(shard: Any) -> tuple[str, Tensor]:
    """The name of a parameter, and the flat tensor that its shard is a view of."""
    return shard._module_info.param_name, shard._sharded_param_data


def whole_of(shard: Any) -> Tensor | None:
    """The unsharded parameter that a forward uses, if it is trained. It has memory only while it is gathered."""
    whole: Tensor | None = getattr(shard, "_unsharded_param", None)
    return whole if whole is not None and whole.requires_grad else None


def fsdp_obstacle(shard: Any) -> str:
    """Why a shard cannot move now, or an empty string."""
    if shard.offload_to_cpu:
        return "CPUOffloadPolicy: FSDP itself moves this shard to the device and back in every step"
    whole = getattr(shard, "_unsharded_param", None)
    if shard.unsharded_accumulated_grad is not None or (whole is not None and whole.grad is not None):
        return "gradients are accumulated without reduction: only FSDP's records hold them, not the parameters"
    return ""


def is_gathered(shard: Any) -> bool:
    """Whether the full parameter is registered instead of the shard, as FSDP leaves it after some forwards."""
    return getattr(shard.sharded_state, "name", "SHARDED") != "SHARDED"


def remove_autograd_hooks(model: Any) -> None:
    """Stop the wrapper from reducing gradients."""
    model._remove_autograd_hooks()


def timeout_of(group: Any, kind: str) -> datetime.timedelta | None:
    """The timeout of a process group's backend for a device type."""
    found = group._get_backend(torch.device(kind)).options._timeout
    return found if isinstance(found, datetime.timedelta) else None
