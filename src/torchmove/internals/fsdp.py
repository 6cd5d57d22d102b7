"""What FSDP (`fully_shard`) remembers about the shards of a module, besides the parameters that it registers.

Each shard is a window on a flat, padded piece of memory that FSDP gathers from. If the two move together, everything
that FSDP remembers is true where they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

SHARDED_MODULE = "torch.distributed.fsdp:FSDPModule"


def is_sharded(module: Any) -> bool:
    return any(f"{base.__module__}:{base.__qualname__}" == SHARDED_MODULE for base in type(module).__mro__)


def is_fsdp_hook(hook: Any) -> bool:
    """One that FSDP has put on a module, a few for every shard: it holds FSDP's records, and nothing of the state's."""
    return str(getattr(hook, "__module__", "")).startswith("torch.distributed.fsdp.")


def shards_of(module: Any) -> Iterator[Any]:
    """FSDP's records, one for each parameter that it shards in this module."""
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)  # one of them before torch 2.12, or none
    for group in [state._fsdp_param_group] if groups is None else groups:
        yield from group.fsdp_params if group is not None else ()


def flat_of(shard: Any) -> tuple[str, Tensor]:
    """The piece of memory behind a shard, and the name of its parameter."""
    return shard._module_info.param_name, shard._sharded_param_data


def whole_of(shard: Any) -> Tensor | None:
    """The parameter that a forward computes with, if it is trained; its memory is there while it is gathered."""
    whole: Tensor | None = getattr(shard, "_unsharded_param", None)
    return whole if whole is not None and whole.requires_grad else None


def fsdp_obstacle(shard: Any) -> str:
    """Why a shard cannot move now, if so."""
    if shard.offload_to_cpu:
        return "CPUOffloadPolicy: FSDP itself moves this shard, to the device and back, in every step"
    whole = getattr(shard, "_unsharded_param", None)
    if shard.unsharded_accumulated_grad is not None or (whole is not None and whole.grad is not None):
        return "gradients are accumulated over the whole parameter, without reduction: FSDP holds them, not the state"
    return ""


def is_gathered(shard: Any) -> bool:
    """Is the whole parameter registered now, instead of the shard? FSDP leaves it so after some forwards."""
    return getattr(shard.sharded_state, "name", "SHARDED") != "SHARDED"
