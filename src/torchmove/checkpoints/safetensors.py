"""A .safetensors file: a length, a header of JSON, and the data. Only the header is read, and all of it is checked."""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple

from torchmove import _paths
from torchmove._paths import Path
from torchmove.checkpoints.contents import NO_DEVICE, Entry, Kept
from torchmove.checkpoints.files import Source
from torchmove.checkpoints.refusing import Unfit, in_a_line

_MOST_HEADER_BYTES = 32 << 20
_LONGEST_NAME = 4_096
_BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}


class _Tensor(NamedTuple):
    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def read(source: Source, file: str, begin: int = 0) -> tuple[list[Entry], list[Kept]]:
    """Its tensors, each with a storage of its own. Storages are counted from `begin` on."""
    tensors = _tensors(source)
    entries = [_entry(tensor, begin + index) for index, tensor in enumerate(tensors)]
    sizes = (entry.nbytes for entry in entries)
    return entries, [
        Kept(file, entry.path.what, NO_DEVICE, size, size) for entry, size in zip(entries, sizes, strict=True)
    ]


def _entry(tensor: _Tensor, storage: int) -> Entry:
    path = Path(_paths.root(""), _paths.ITEM, tensor.name)
    stride = tuple(math.prod(tensor.shape[place + 1 :]) for place in range(len(tensor.shape)))
    return Entry(path, tensor.dtype, tensor.shape, stride, 0, tensor.end - tensor.begin, storage)


def _tensors(source: Source) -> list[_Tensor]:
    if source.nbytes < 8:
        raise Unfit("R062" if not source.nbytes else "R065", "too short for a safetensors file")
    length = int.from_bytes(source.read(0, 8), "little")
    if length > source.nbytes - 8:
        raise Unfit("R065", f"its header should have {length} bytes, and the file ends before")
    if length > _MOST_HEADER_BYTES:
        raise Unfit("R067", f"its header has {length} bytes, and {_MOST_HEADER_BYTES} are the most that is read")
    header = _header(source.read(8, length))
    header.pop("__metadata__", None)
    tensors = [_tensor(name, said) for name, said in header.items()]
    _fill(tensors, source.nbytes - 8 - length)
    return tensors


def _header(raw: bytes) -> dict[str, Any]:
    if not raw.startswith(b"{"):
        raise Unfit("R062", "its header is not that of a safetensors file")
    return parsed(raw, "its header")


def parsed(raw: bytes, what: str) -> dict[str, Any]:
    """A JSON object in which no key is there twice."""
    try:
        found = json.loads(raw.decode("utf-8"), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise Unfit("R065", f"{what} is not the JSON that it should be: {in_a_line(str(error), 80)}") from None
    if not isinstance(found, dict):
        raise Unfit("R065", f"{what} is not a JSON object")
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice")
    return found


def _tensor(name: str, said: Any) -> _Tensor:
    if len(name) > _LONGEST_NAME:
        raise Unfit("R067", f"a tensor has a name of {len(name)} characters")
    where = f"[{in_a_line(name, 100)!r}]"
    if not isinstance(said, dict) or said.keys() != {"dtype", "shape", "data_offsets"}:
        raise Unfit("R065", "is not described by dtype, shape and data_offsets", inside=where)
    dtype, shape, offsets = said["dtype"], said["shape"], said["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _BITS:
        raise Unfit("R065", f"has the dtype {in_a_line(repr(dtype), 40)}, which is none", inside=where)
    if not _counts(shape) or not _counts(offsets) or len(offsets) != 2:
        raise Unfit("R066", "its shape or its offsets are no sizes", inside=where)
    bits, (begin, end) = math.prod(shape) * _BITS[dtype], offsets
    if bits % 8 or (end - begin) * 8 != bits:
        raise Unfit(
            "R066", f"{dtype} of shape {shape[:8]} does not take the {end - begin} bytes it is given", inside=where
        )
    return _Tensor(name, dtype, tuple(shape), begin, end)


def _counts(numbers: Any) -> bool:
    return (
        isinstance(numbers, list)
        and len(numbers) <= 64
        and all(type(each) is int and 0 <= each < 1 << 63 for each in numbers)
    )


def _fill(tensors: list[_Tensor], nbytes: int) -> None:
    """Do the tensors lie one after the other, and take all of the data?"""
    reached = 0
    for tensor in sorted(tensors, key=lambda tensor: (tensor.begin, tensor.end)):
        if tensor.begin != reached:
            how = "overlaps another tensor" if tensor.begin < reached else "comes after a hole"
            raise Unfit("R066", f"{how} at byte {tensor.begin}", inside=f"[{in_a_line(tensor.name, 100)!r}]")
        reached = tensor.end
    if reached != nbytes:
        raise Unfit("R065", f"its tensors take {reached} bytes, and there are {nbytes}")
