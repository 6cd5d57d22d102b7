"""Digests of the elements of tensors, computed on the tensors' device, equal on every device.

A digest is two sums over the elements as integers, modulo 2**64: a plain sum, which detects any single change, and a
sum weighted by position, which detects swapped elements. A large tensor is summed as a matrix, by rows and by columns,
and only those sums are weighted, so the elements are read at memory bandwidth. This detects what a copy can break; it
does not detect a change that keeps the sum of every row and every column. Small tensors are summed many at a time. The
host synchronizes with the device only at the end.
"""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor

from torchmove.internals.guards import plain_torch
from torchmove.internals.storages import BITS, COPIED_AS_BYTES, has_storage, offset_of
from torchmove.planning.plan import Digest, Moves
from torchmove.surveying.inventory import StateTensors

_COLUMNS = 4096
_SMALL = 16 * _COLUMNS  # elements
_AT_ONCE = 1 << 20
_MIX = -7046029254386353131  # 2**64 divided by the golden ratio: keeps the weights of rows and columns apart


@plain_torch
def digests(entries: StateTensors, *, repeats: bool = False, moves: Moves | None = None) -> tuple[Digest, ...]:
    """The digest of each tensor; identical views are read once. `repeats`: also what an expanded tensor repeats.

    With `moves`: the digests after these moves, which may convert tensors.
    """
    sums = _Sums(repeats)
    metadata = entries.metadata
    converted = {} if moves is None else moves.converted
    for index, (tensor, storage, *view) in enumerate(
        zip(entries.objects, metadata.storage_ids, metadata.dtypes, metadata.shapes, metadata.strides, strict=True)
    ):
        offset = offset_of(tensor) if storage > 0 else 0
        if moves is not None and index in converted:
            after = _cast(tensor, converted[index].dtype, moves.placement[index])
            sums.add((storage, offset, *view), after)
        else:
            sums.add((storage, offset, *view), tensor)
    return sums.all()


def _cast(tensor: Tensor, dtype: torch.dtype, target: torch.device) -> Tensor:
    """A tensor as a move casts it. Devices turn NaN into different bits, and torch casts on the CPU if one side is."""
    data = tensor.data
    on_cpu = target.type == "cpu" and data.device.type != "cpu" and bool(data.isnan().any())
    return (data.cpu() if on_cpu else data).to(dtype)


def makes_dense(moves: Moves) -> bool:
    """Whether expanded tensors become dense ones, as on a device without storages: they are compared with repeats."""
    return not all(has_storage(target.type) for _, target in moves.ways)


class _Sums:
    """Digests being computed: small tensors are gathered, and no result is copied to the host before the end."""

    def __init__(self, repeats: bool) -> None:
        self.repeats = repeats
        self.order: list[object] = []
        self.waiting: defaultdict[tuple[torch.device, torch.dtype], dict[object, Tensor]] = defaultdict(dict)
        self.waiting_elements: defaultdict[tuple[torch.device, torch.dtype], int] = defaultdict(int)
        self.made: list[tuple[list[object], Tensor]] = []  # keys, and a row for each with its digest
        self.seen: set[object] = set()

    def add(self, key: object, tensor: Tensor) -> None:
        self.order.append(key)
        if key in self.seen:
            return
        self.seen.add(key)
        bits = _bits(tensor, repeats=self.repeats)
        if bits.numel() > _SMALL:
            self.made.append(([key], _large(bits)))
            return
        kind = (bits.device, bits.dtype)
        self.waiting[kind][key] = bits
        self.waiting_elements[kind] += bits.numel()
        if self.waiting_elements[kind] > _AT_ONCE:
            self.sum_up(kind)

    def sum_up(self, kind: tuple[torch.device, torch.dtype]) -> None:
        waiting = self.waiting.pop(kind)
        self.waiting_elements.pop(kind)
        self.made.append((list(waiting), _small(list(waiting.values()))))

    def all(self) -> tuple[Digest, ...]:
        for kind in list(self.waiting):
            self.sum_up(kind)
        known: dict[object, Digest] = {}
        for keys, rows in self.made:
            known.update(zip(keys, map(tuple, rows.tolist()), strict=True))
        return tuple([known[key] for key in self.order])


def _large(bits: Tensor) -> Tensor:
    """The digest of a flat tensor, as one row."""
    words, rest = _words(bits)
    rows = words.numel() // _COLUMNS
    matrix, rest = words[: rows * _COLUMNS].view(rows, _COLUMNS), torch.cat([words[rows * _COLUMNS :], rest])
    by_row, by_column = matrix.sum(1), matrix.sum(0)
    weighted = (by_row * _odd(by_row)).sum() + (by_column * _odd(by_column) * _MIX).sum()
    weighted += (rest * (_odd(rest) + 2 * rows) * _MIX).sum()
    return torch.stack([by_row.sum() + rest.sum(), weighted]).unsqueeze(0)


def _words(bits: Tensor) -> tuple[Tensor, Tensor]:
    """A flat tensor as 64-bit words, which sum fastest, and the few elements after the last whole word."""
    each = torch.int64.itemsize // bits.itemsize
    whole = bits.numel() // each * each
    aligned = bits[:whole] if bits.data_ptr() % torch.int64.itemsize == 0 else bits[:whole].clone()
    if aligned.storage_offset() % each:
        aligned = aligned.clone()
    return aligned.view(torch.int64), bits[whole:].long()


def _small(several: list[Tensor]) -> Tensor:
    """The digests of flat tensors of one dtype, as one row each."""
    device = several[0].device
    counts = torch.tensor([each.numel() for each in several], device="cpu")
    ends = counts.cumsum(0)
    owner = torch.repeat_interleave(torch.arange(len(several), device="cpu"), counts).to(device)
    starts, ends = (ends - counts).to(device), ends.to(device)
    values = torch.cat(several).long()
    places = torch.arange(len(values), device=device) - starts[owner]
    return torch.stack([_between(values, starts, ends), _between(values * (2 * places + 1), starts, ends)], dim=1)


def _between(values: Tensor, starts: Tensor, ends: Tensor) -> Tensor:
    """The sums from each start to its end."""
    running = torch.cat([values.new_zeros(1), values.cumsum(0)])
    return running[ends] - running[starts]


def _odd(like: Tensor) -> Tensor:
    """1, 3, 5, ...: as many as `like` has elements."""
    return torch.arange(like.numel(), device=like.device) * 2 + 1


def _bits(tensor: Tensor, *, repeats: bool) -> Tensor:
    """The elements of a tensor as a flat integer tensor."""
    data = tensor.data
    if data.device.type in ("lazy", "xla") or data.is_nested or data.is_quantized or data.layout is not torch.strided:
        data = _readable(data)
    if data.dtype in COPIED_AS_BYTES:
        data = data.view(torch.uint8)
    # An expanded dimension repeats the same bytes: read them once.
    for dimension, step in enumerate(data.stride() if not repeats else ()):
        if step == 0 and data.size(dimension) > 1:
            data = data.narrow(dimension, 0, 1)
    data = data.resolve_conj().resolve_neg().contiguous()
    # A single element is contiguous with any stride, but .view(dtype) needs stride 1.
    return data.as_strided((data.numel(),), (1,)).view(BITS.get(data.dtype.itemsize, torch.int64))


def _readable(data: Tensor) -> Tensor:
    if data.is_nested:
        return torch.cat([part.cpu().flatten() for part in data.unbind()])
    if data.is_quantized:
        return data.int_repr().cpu()
    return data.cpu().to_dense() if data.layout is not torch.strided else data.cpu()
