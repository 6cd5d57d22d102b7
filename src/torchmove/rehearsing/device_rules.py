"""The rules of each operator: what its schema says, and which inputs may be on different devices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch

from torchmove.internals.simulation import schema_of
from torchmove.rehearsing.tensors import CPU, Itself, StandIn, leaves

aten = torch.ops.aten


class Operator(NamedTuple):
    """The properties of an operator, read once from its schema.

    Attributes:
        name: as in `aten.<name>`.
        is_pure: its results share nothing with its inputs, and it changes none of them.
        returns_first: it writes to its first input and returns it, with the shape it had.
        only_writes: `returns_first`, or it writes to its inputs and returns nothing.
        makes: it has a `device` argument.
        views: its one result, or list of results, is a view of its first input; nothing is written.
        role: the special handling that it needs; "" for nearly all.
        draws: it takes a random generator.
        counts_versions: it writes to lists of tensors, whose version counters torch's kernels increment.
        lacks: the dtypes that the CPU kernel accepts and CUDA's refuses.
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


_known: dict[int, tuple[Any, Operator]] = {}  # by id: an operator's hash is slow Python code


def operator(func: Any) -> Operator:
    found = _known.get(id(func))
    if found is None:
        found = _known[id(func)] = (func, _read(func))
    return found[1]


def _read(func: Any) -> Operator:
    schema = schema_of(func)
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
# CPU-only operators, and the names to report.
_TOLD_AS = {
    "mkldnn_rnn_layer": "lstm",
    "mkldnn_rnn_layer_backward": "lstm_backward",
    "histogram": "histc",
    "_scaled_dot_product_flash_attention_for_cpu": "scaled_dot_product_attention",
    "_scaled_dot_product_flash_attention_for_cpu_backward": "scaled_dot_product_attention_backward",
}
# As torch's own tests declare, here for the ATen operators that implement the tested functions.
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
# They may change the shape of the tensor that they write to, and have no tag for it.
_RESIZING = {
    aten.set_.source_Tensor,
    aten.set_.source_Storage,
    aten.set_.source_Storage_storage_offset,
    aten.set_.default,
}
Stray = StandIn | Itself

# These copy from one device to another.
_BETWEEN = {aten.copy_, aten._to_copy, aten._copy_from, aten._foreach_copy_, aten.set_data}
_BETWEEN |= {aten._has_compatible_shallow_copy_type}  # Module.to compares a tensor and its copy with this
_BETWEEN |= {aten.diagonal_scatter, aten.select_scatter, aten.slice_scatter, aten.as_strided_scatter}
# Their later tensors are lengths or sizes, which the CPU reads, or are used as a number only.
_FIRST_ONLY = {aten._pack_padded_sequence, aten._pad_packed_sequence, aten._ctc_loss, aten.tensor_split}
_FIRST_TWO = {aten._nested_view_from_jagged, aten._nested_view_from_jagged_copy}
_FILLING = {aten.fill_, aten.fill}
# Elementwise operators accept a 0-dim tensor on the CPU together with tensors on a GPU: all that torch tags as
# pointwise except _STRICT, and those of _LENIENT.
_STRICT = {
    *(aten.addcdiv, aten.addcdiv_, aten.equal, aten.complex, aten.polar, aten.logaddexp, aten.logaddexp2),
    *(aten.clamp, aten.clamp_, aten.clamp_min, aten.clamp_min_, aten.clamp_max, aten.clamp_max_),
    *(aten.nextafter, aten.nextafter_, aten.gcd, aten.gcd_, aten.lcm, aten.lcm_),
    *(aten.igamma, aten.igamma_, aten.igammac, aten.igammac_),
    *(aten.gelu_backward, aten.logit_backward, aten.sigmoid_backward, aten.tanh_backward, aten.threshold_backward),
    aten.native_dropout_backward,
}
_LENIENT = {
    *(aten.bernoulli, aten.bernoulli_),
    *(aten.rsub, aten.floor_divide, aten.floor_divide_, aten.copysign_, aten.heaviside_),
    *(aten.eq_, aten.ne_, aten.lt_, aten.le_, aten.gt_, aten.ge_, aten.__irshift__, aten.__ilshift__),
}
# The positions of the only arguments of these that may be such 0-dim tensors.
_NUMBERS_AT = {
    **dict.fromkeys([aten.masked_fill, aten.masked_fill_, aten.addcmul, aten.addcmul_], (2,)),
    **dict.fromkeys([aten.index_fill, aten.index_fill_], (3,)),
    aten.binary_cross_entropy: (2,),
    aten.binary_cross_entropy_with_logits: (2, 3),
}
_INDEXING = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_, aten._unsafe_index}


def strays(func: Any, args: Sequence[Any], kwargs: dict[str, Any], home: torch.device) -> list[Stray]:
    """The misplaced tensors of an operation; `home` is where all should be."""
    packet = func.overloadpacket
    if packet in _BETWEEN:
        return []
    if packet in _FILLING and len(args) > 1 and getattr(args[1], "dim", lambda: 1)() == 0:
        return []  # reads the value of a 0-dim tensor
    if packet in _FIRST_ONLY:
        return apart(leaves(args[:1]), home)
    if packet in _FIRST_TWO:
        return apart(leaves(args[:2]), home)
    if packet in _INDEXING:
        return _index_strays(packet, args, home)
    name = packet.__name__
    if name.startswith(("_foreach_", "_fused_")):
        return _column_strays(args, kwargs, home, strict=name.startswith("_fused_"))
    if packet in _NUMBERS_AT:
        return apart(_without_numbers(args, _NUMBERS_AT[packet]), home, strict=True)
    written = args[0] if args and name.endswith("_") and not name.startswith("_") else None
    return apart(leaves((args, kwargs)), home, written=written, strict=not _takes_numbers(func))


def _takes_numbers(func: Any) -> bool:
    """Whether any argument may be a 0-dim tensor on the CPU; assumed for operators that are not torch's own."""
    packet = func.overloadpacket
    if packet in _STRICT:
        return False
    return packet in _LENIENT or torch.Tag.pointwise in func.tags or func.namespace != "aten"


def _without_numbers(args: Sequence[Any], positions: tuple[int, ...]) -> list[Any]:
    return [each for at, each in enumerate(args) if at not in positions or not _is_number_on_the_cpu(each)]


def _is_number_on_the_cpu(each: Any) -> bool:
    return not isinstance(each, Stray) or (each.dim() == 0 and each._place is CPU)


def apart(given: Iterable[Any], home: torch.device, *, strict: bool = False, written: Any = None) -> list[Stray]:
    tensors = [each for each in given if isinstance(each, Stray)]
    if len({each._place for each in tensors}) < 2:
        return []
    # A 0-dim tensor on the CPU goes with tensors on any device, unless the operation writes to it.
    weighty = [each for each in tensors if strict or each.dim() > 0 or each._place is not CPU or each is written]
    places = {each._place for each in weighty}
    if len(places) < 2:
        return []
    target = home if home in places else max(places, key=lambda place: (place.type != "cpu", place.index or 0))
    return [each for each in weighty if each._place != target]


def _index_strays(packet: Any, args: Sequence[Any], home: torch.device) -> list[Stray]:
    """The misplaced tensors of indexing. To read, indices are on the CPU or with the tensor; to write, anywhere."""
    source, indices, *values = args
    if packet not in (aten.index, aten._unsafe_index):
        return apart([source, *values[:1]], home)
    found = [each for each in leaves(indices) if isinstance(each, Stray)]
    indexed = source._place if isinstance(source, Stray) else CPU
    wrong = [each for each in found if each._place not in (indexed, CPU)]
    if wrong and indexed is CPU and home is not CPU:
        return [source] if isinstance(source, Stray) else []
    return wrong + apart([source, *values[:1]], home)


def _column_strays(args: Sequence[Any], kwargs: dict[str, Any], home: torch.device, *, strict: bool) -> list[Stray]:
    """The misplaced tensors in lists: the first items must be on one device, then the second, and so on."""
    given = (*args, *kwargs.values())
    lists = [each for each in given if isinstance(each, (list, tuple)) and each]
    single = [] if strict else [each for each in given if isinstance(each, Stray)]  # a learning rate may be anywhere
    found: dict[int, Stray] = {}
    for column in zip(*[each for each in lists if isinstance(each[0], Stray)], strict=False):
        for stray in apart([*column, *single], home, strict=strict):
            found[id(stray)] = stray
    return list(found.values())
