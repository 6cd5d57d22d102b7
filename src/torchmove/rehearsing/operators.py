"""Properties of ATen operators: which inputs may be on different devices, which dtypes they take, and result shapes.

In shape-only mode, shapes and dtypes of results are inferred without computing values. Weights are shapes; a batch, its
masks and what is computed from these alone have known values as long as they are small, because steps mostly branch on
these. A result with any unknown input is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchmove.internals.simulation import schema_of
from torchmove.rehearsing.tensors import CPU, Itself, StandIn, leaves, mapped

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


# ---------------------------------------------------------------- shapes of results

MOST_BYTES = 16 << 20
_SMALL = 8  # a probe keeps sizes up to this, and replaces others by the next numbers
# torch's errors about dtypes.
_OF_DTYPES = re.compile(
    r"type|not implemented for|can't be cast|[Ee]xpected .*([Ll]ong|Float|Bool|Int)|[Bb]ool\w* (tensor|input)"
)
# torch's error where a CPU kernel lacks a dtype.
LACKING = re.compile(r"\"(?P<kernel>\w+)\" not implemented for '(?P<dtype>\w+)'")
# For these dtypes a GPU has the same kernels, as torch's own tests declare, except the operators below; for other
# dtypes it may have more.
_WHOLE = {"Bool", "Byte", "Char", "Short", "Int", "Long", "Float", "Double", "ComplexFloat", "ComplexDouble"}
ONLY_ON_CUDA = {aten.histc, aten.abs, aten.trace}
_BITS = ("bitwise", "and", "or", "xor", "lshift", "rshift", "gcd", "lcm", "bincount")
_OF_INTEGERS = (*_BITS, "embedding", "index_", "put")


class Shape(NamedTuple):
    """Size, stride and dtype of a tensor without values."""

    size: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype

    def made(self) -> Tensor:
        return torch.empty_strided(self.size, self.stride, dtype=self.dtype, device="meta")

    @property
    def nbytes(self) -> int:
        spread = sum((size - 1) * stride for size, stride in zip(self.size, self.stride, strict=True))
        return (spread + 1) * self.dtype.itemsize if 0 not in self.size else 0


Shapes = Shape | tuple["Shapes", ...] | None


def is_known(behind: Tensor) -> bool:
    return not behind.is_meta


def as_shape(behind: Tensor) -> Tensor:
    return torch.empty_strided(behind.size(), behind.stride(), dtype=behind.dtype, device="meta")


class Inference:
    """The shapes of the results of operations, or torch's errors; both are cached.

    torch's shape functions accept some dtypes that its kernels refuse. So the first time that an operation gets a
    combination of dtypes, its kernel is tried on small tensors of zeros.
    """

    def __init__(self) -> None:
        self._known: dict[Any, Shapes] = {}
        self._refused: dict[Any, Exception | None] = {}

    def shapes(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Shapes:
        """The shapes of the results of an operation that is pure or only writes. Raises what torch raises."""
        if not all(map(_has_shape, leaves((args, kwargs)))):
            raise NotImplementedError("what is compressed or nested has no meta tensor")
        key = _key(func, args, kwargs)
        if key is not None and key in self._known:
            return self._known[key]
        self.check_dtypes(func, args, kwargs)
        shapes, named = mapped(without_bytes, (args, kwargs))
        if named.get("device") is not None:
            named = {**named, "device": "meta"}
        if named.get("generator") is not None:
            named = {**named, "generator": None}
        found = _shapes_of(func(*shapes, **named))
        check = _UNCHECKED.get(func.overloadpacket)
        if check is not None:
            check(*shapes)
        if key is not None:
            self._known[key] = found
        return found

    def check_dtypes(self, func: Any, args: Any, kwargs: dict[str, Any]) -> None:
        """Raise what the kernel raises for these dtypes."""
        given = [each for each in leaves((args, kwargs)) if isinstance(each, Tensor)]
        dtypes = [each.dtype for each in given]
        if not dtypes or _is_internal(func):
            return
        if len({*dtypes}) == 1 and dtypes[0].is_floating_point and not _takes_integers(func):
            return
        key = (func, *((each.dtype, each.dim()) for each in given))
        if key not in self._refused:
            self._refused[key] = _refusal(func, args, kwargs)
        refused = self._refused[key]
        if refused is not None:
            raise type(refused)(*refused.args)  # a new error, with its own traceback


def _check_convolution(given: Tensor, weight: Tensor, bias: Tensor | None, *options: Any) -> None:
    transposed, groups = options[3], options[5]
    what = f"Given transposed={int(transposed)}, weight of size {[*weight.size()]}, expected"
    channels, results = (weight.size(0), weight.size(1) * groups) if transposed else (given.size(1), weight.size(0))
    if given.size(1) != channels:
        found = f"to have {channels} channels, but got {given.size(1)} channels instead"
        raise RuntimeError(f"{what} input{[*given.size()]} {found}")
    if bias is not None and bias.size() != (results,):
        found = f"{results} elements, but got bias of size {[*bias.size()]} instead"
        raise RuntimeError(f"{what} bias to be 1-dimensional with {found}")


def _check_product(added: Tensor, first: Tensor, second: Tensor) -> None:
    torch.zeros(()).expand(added.size()).expand(first.size(0), *second.size()[1:])


def _check_put(written: Tensor, indices: Any, values: Tensor, *_: Any) -> None:
    if not any(isinstance(each, Tensor) and each.dtype in (torch.bool, torch.uint8) for each in indices):
        size = aten.index.Tensor(written, indices).size()
        try:
            values.expand(size)
        except RuntimeError:
            what = f"value tensor of shape {[*values.size()]} cannot be broadcast to indexing result of shape {[*size]}"
            raise RuntimeError(f"shape mismatch: {what}") from None


# Checks that torch's shape functions leave to the kernels, with the kernels' error messages.
_UNCHECKED: dict[Any, Callable[..., None]] = {
    aten.convolution: _check_convolution,
    **dict.fromkeys([aten.addmm, aten.addmv], _check_product),
    **dict.fromkeys([aten.index_put, aten.index_put_], _check_put),
}


def made(shapes: Shapes) -> Any:
    """Meta tensors of these shapes."""
    if isinstance(shapes, Shape):
        return shapes.made()
    return None if shapes is None else tuple(map(made, shapes))


def nbytes_of(shapes: Shapes) -> int:
    if isinstance(shapes, Shape):
        return shapes.nbytes
    return sum(map(nbytes_of, shapes or ()))


def _shapes_of(results: Any) -> Shapes:
    if isinstance(results, Tensor):
        return Shape(results.size(), results.stride(), results.dtype)
    return tuple(map(_shapes_of, results)) if isinstance(results, (tuple, list)) else None


def _has_shape(each: Any) -> bool:
    return not isinstance(each, Tensor) or (each.layout in (torch.strided, torch.sparse_coo) and not each.is_nested)


def without_bytes(each: Any) -> Any:
    return as_shape(each) if isinstance(each, Tensor) and not each.is_meta else each


def _key(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The cache key of a call; None if an argument is not hashable."""
    try:
        key = (func, _described(args), *((name, _described((value,))) for name, value in kwargs.items()))
        hash(key)
    except TypeError:
        return None
    return key


def _described(args: Any) -> tuple[Any, ...]:
    found: list[Any] = []
    for each in args:
        if isinstance(each, Tensor):
            found.append((each.size(), each.stride(), each.dtype))
        elif isinstance(each, (list, tuple)):
            found.append(_described(each))
        else:
            found += [type(each), each]  # 1, 1.0 and True are equal
    return tuple(found)


def _takes_integers(func: Any) -> bool:
    return func.overloadpacket.__name__.strip("_").startswith(_OF_INTEGERS)  # type: ignore[no-any-return]


def nobody_has(func: Any, dtype: str) -> bool:
    """Whether a GPU has no kernel for this dtype either. `dtype`: as torch's errors name it."""
    return dtype in _WHOLE and func.overloadpacket not in ONLY_ON_CUDA


def _is_internal(func: Any) -> bool:
    """Whether the kernel does not check its inputs, which come from other kernels: a probe of zeros might crash it."""
    name = func.overloadpacket.__name__
    return "backward" in name or "mkldnn" in name or "unpool" in name or name in _TRUSTING


_TRUSTING = {"_embedding_bag", "_embedding_bag_forward_only", "_pack_padded_sequence", "_ctc_loss", "set_", "resize_"}


def _refusal(func: Any, args: Any, kwargs: dict[str, Any]) -> Exception | None:
    """The error of a kernel for small zeros of these dtypes, if it is about dtypes."""
    numbers: dict[int, int] = {}

    def small(size: int) -> int:
        return size if size <= _SMALL else numbers.setdefault(size, _SMALL + 1 + len(numbers))

    def probe(each: Any) -> Any:
        if isinstance(each, Tensor):
            return torch.zeros([small(size) for size in each.size()], dtype=each.dtype)
        if isinstance(each, torch.device):
            return torch.device("cpu")
        return small(each) if type(each) is int else each

    try:
        probed, named = mapped(probe, (args, kwargs))
        func(*probed, **named)
    except (RuntimeError, IndexError, TypeError, NotImplementedError) as error:
        said = str(error).strip().splitlines()[0] if str(error).strip() else ""
        lacking = LACKING.search(said)
        says_nothing = lacking is not None and not nobody_has(func, lacking["dtype"])
        return type(error)(said) if _OF_DTYPES.search(said) and not says_nothing else None
    return None
