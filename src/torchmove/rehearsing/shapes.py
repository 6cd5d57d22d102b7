"""Shape-only mode: infer shapes and dtypes of results without computing their values.

Weights are shapes; a batch, its masks and what is computed from these alone have known values as long as they are
small, because steps mostly branch on these. A result with any unknown input is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchmove.rehearsing.tensors import leaves, mapped

aten = torch.ops.aten
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
_OF_INTEGERS = ("bitwise", "and", "or", "xor", "lshift", "rshift", "gcd", "lcm", "bincount", "embedding", "index_", "put")


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
