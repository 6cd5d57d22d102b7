"""What is read once of each operator: whether it writes to its inputs or returns views of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

aten = torch.ops.aten


class Operator(NamedTuple):
    """What the schema of an operator says.

    Attributes:
        name: as in `aten.<name>`.
        is_pure: its results share nothing with its inputs, and it changes none of them.
        returns_first: it writes to its first input and returns it, with the shape it had.
        only_writes: that, or it writes to its inputs and returns nothing.
        makes: it can make a tensor on a device that it is given.
        views: its one result, or list of results, is a view of its first input; nothing is written.
        role: what else is to be done for it; "" for nearly all.
        draws: it takes a generator of random numbers.
        counts_versions: it writes to lists of tensors, whose versions torch's kernels count themselves.
        lacks: the dtypes that the CPU's kernel takes and CUDA's refuses.
    """

    name: str
    is_pure: bool
    returns_first: bool
    only_writes: bool
    makes: bool
    views: bool
    role: str
    draws: bool
    counts_versions: bool
    lacks: frozenset[torch.dtype]


_known: dict[int, tuple[Any, Operator]] = {}  # by id: an operator's own hash is computed in Python


def operator(func: Any) -> Operator:
    found = _known.get(id(func))
    if found is None:
        found = _known[id(func)] = (func, _read(func))
    return found[1]


def _read(func: Any) -> Operator:
    schema = func._schema
    aliases = [each.alias_info is not None for each in (*schema.arguments, *schema.returns)]
    first = schema.arguments[0].alias_info if schema.arguments else None
    returned = schema.returns[0].alias_info if len(schema.returns) == 1 else None
    written = [each for each in schema.arguments if each.alias_info is not None and each.alias_info.is_write]
    returns_first = (
        first is not None
        and first.is_write
        and len(written) == 1
        and returned is not None
        and returned.is_write
        and torch.Tag.inplace_view not in func.tags
        and func not in _RESIZING
    )
    makes = any(each.name == "device" for each in schema.arguments)
    only_writes = returns_first or (bool(written) and not schema.returns)
    name = func.overloadpacket.__name__
    name = _TOLD_AS.get(name, name)
    draws = any(each.name == "generator" for each in schema.arguments)
    counts_versions = bool(written) and name.startswith(("_foreach_", "_fused_"))
    is_view = returned is not None and not returned.is_write and not written
    views = is_view and first is not None and sum(aliases) == 2 and torch.Tag.inplace_view not in func.tags
    role = _ROLES.get(func, "")
    lacks = _NOT_ON_CUDA.get(func.overloadpacket, frozenset())
    return Operator(
        name, not any(aliases), returns_first, only_writes, makes, views, role, draws, counts_versions, lacks
    )


_ROLES = {
    **dict.fromkeys([aten.lift.default, aten.lift_fresh.default], "lift"),
    aten.empty.memory_format: "empty",
    aten._pack_padded_sequence.default: "pack",
    aten.detach.default: "detach",
    **dict.fromkeys([aten.add.Tensor, aten.add_.Tensor, aten.clone.default], "add"),
    **dict.fromkeys([aten.mkldnn_rnn_layer.default, aten.mkldnn_rnn_layer_backward.default], "weighed"),
}
# Kernels that the CPU has under a name of its own.
_TOLD_AS = {
    "mkldnn_rnn_layer": "lstm",
    "mkldnn_rnn_layer_backward": "lstm_backward",
    "histogram": "histc",
    "_scaled_dot_product_flash_attention_for_cpu": "scaled_dot_product_attention",
    "_scaled_dot_product_flash_attention_for_cpu_backward": "scaled_dot_product_attention_backward",
}
# As torch's own tests declare it, for the operators that these come down to.
_INTEGERS = frozenset([torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
_HALVES = frozenset([torch.float16, torch.bfloat16])
_NOT_ON_CUDA = {
    **dict.fromkeys([aten.mm, aten.bmm, aten.mv, aten.dot, aten.vdot], _INTEGERS),
    **dict.fromkeys([aten.addmm, aten.addmm_, aten.addmv, aten.addmv_, aten.addbmm, aten.addbmm_], _INTEGERS),
    **dict.fromkeys([aten.baddbmm, aten.baddbmm_], _INTEGERS),
    **dict.fromkeys([aten.max_pool2d_with_indices, aten.max_pool3d_with_indices], _INTEGERS),
    **dict.fromkeys([aten.convolution, aten.avg_pool2d, aten.avg_pool3d], frozenset([torch.int64])),
    **dict.fromkeys([aten.upsample_bilinear2d, aten.upsample_bicubic2d], frozenset([torch.uint8])),
    aten._upsample_bilinear2d_aa: frozenset([torch.uint8]),
    **dict.fromkeys([aten.igamma, aten.igammac, aten.angle, aten.histc], _HALVES),
}
# They may change the shape of what they write to, and have no tag that says so.
_RESIZING = {
    aten.set_.source_Tensor,
    aten.set_.source_Storage,
    aten.set_.source_Storage_storage_offset,
    aten.set_.default,
}
