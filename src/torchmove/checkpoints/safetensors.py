"""Read .safetensors files: a length, a JSON header, and the data. Only the header is read, and all of it is checked."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from torchmove.checkpoints.untrusted import Budget, InputFile, JsonText, Unfit, in_a_line

_MOST_HEADER_BYTES = 32 << 20
_LONGEST_NAME = 4_096
_LONGEST_DESCRIPTION = 4_096  # more than twice the length of 64 sizes of 19 digits
_BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}


# The names of torch; dtypes that torch lacks keep the name that the file has.
_DTYPES = {
    **{f"{kind}{bits}": f"{name}{bits}" for kind, name in (("F", "float"), ("I", "int")) for bits in (16, 32, 64)},
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    "I8": "int8",
    "BOOL": "bool",
    "BF16": "bfloat16",
    "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
}


class HeaderTensor(NamedTuple):
    """A tensor as the header describes it: its bytes are from `begin` to `end` of the data."""

    name: str
    dtype: str  # its name in torch, if torch has it
    shape: tuple[int, ...]
    begin: int
    end: int


class Header(NamedTuple):
    """What a .safetensors file describes: its tensors in order, and the texts in its `__metadata__`."""

    tensors: list[HeaderTensor]
    metadata: dict[str, str]


def header_of(source: InputFile, budget: Budget) -> Header:
    if source.nbytes < 8:
        raise Unfit("R062" if not source.nbytes else "R065", "too short for a safetensors file")
    length = int.from_bytes(source.read(0, 8), "little")
    if length > source.nbytes - 8:
        raise Unfit("R065", f"the file is truncated: its header should have {length} bytes")
    if length > _MOST_HEADER_BYTES:
        raise Unfit("R067", f"its header has {length} bytes; the limit is {_MOST_HEADER_BYTES}")
    budget.grant(source, 8, length)
    metadata: dict[str, str] = {}
    tensors = [*_described(source.read(8, length), budget, metadata)]
    _fill(tensors, source.nbytes - 8 - length)
    return Header(tensors, metadata)


def _described(raw: bytes, budget: Budget, metadata: dict[str, str]) -> Iterator[HeaderTensor]:
    if not raw.startswith(b"{"):
        raise Unfit("R062", "its header is not that of a safetensors file")
    header = JsonText(raw, "its header", budget)
    for name in header.members():
        if name == "__metadata__":
            metadata.update(_texts(header, budget))
        else:
            budget.spend(64)
            yield _tensor(name, header.flat(_LONGEST_DESCRIPTION))
    header.end()


def _texts(header: JsonText, budget: Budget) -> Iterator[tuple[str, str]]:
    """The members of an object of texts. Of anything else that a file may have there, the first characters."""
    if header.next() != "{":
        header.skip()
        return
    for key in header.members():
        budget.spend(16)
        yield key, header.string() if header.next() == '"' else header.skip()


def _tensor(name: str, described: Any) -> HeaderTensor:
    if len(name) > _LONGEST_NAME:
        raise Unfit("R067", f"a tensor has a name of {len(name)} characters")
    where = f"[{in_a_line(name, 100)!r}]"
    if not isinstance(described, dict) or described.keys() != {"dtype", "shape", "data_offsets"}:
        raise Unfit("R065", "does not have exactly dtype, shape and data_offsets", inside=where)
    dtype, shape, offsets = described["dtype"], described["shape"], described["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _BITS:
        raise Unfit("R065", f"has the unknown dtype {in_a_line(repr(dtype), 40)}", inside=where)
    if not _counts(shape) or not _counts(offsets) or len(offsets) != 2:
        raise Unfit("R066", "has an invalid shape or invalid offsets", inside=where)
    bits, (begin, end) = math.prod(shape) * _BITS[dtype], offsets
    if bits % 8 or (end - begin) * 8 != bits:
        raise Unfit(
            "R066", f"{dtype} of shape {shape[:8]} does not take the {end - begin} bytes it is given", inside=where
        )
    return HeaderTensor(name, _DTYPES.get(dtype, dtype), tuple(shape), begin, end)


def _counts(numbers: Any) -> bool:
    return (
        isinstance(numbers, list)
        and len(numbers) <= 64
        and all(type(each) is int and 0 <= each < 1 << 63 for each in numbers)
    )


def _fill(tensors: list[HeaderTensor], nbytes: int) -> None:
    """Raise Unfit unless the tensors are adjacent and cover all of the data."""
    reached = 0
    for tensor in sorted(tensors, key=lambda tensor: (tensor.begin, tensor.end)):
        if tensor.begin != reached:
            how = "overlaps another tensor" if tensor.begin < reached else "follows unused bytes"
            raise Unfit("R066", f"{how} at byte {tensor.begin}", inside=f"[{in_a_line(tensor.name, 100)!r}]")
        reached = tensor.end
    if reached != nbytes:
        raise Unfit("R065", f"its tensors take {reached} bytes, but the file has {nbytes}")
