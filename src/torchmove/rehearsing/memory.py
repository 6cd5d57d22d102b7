"""Measure the device memory that a step uses: each storage from its allocation until it is freed.

cuDNN's memory is added as measured: each layer and direction of an LSTM keeps five times its output for the backward
pass, and during a pass uses six times its output, its input, and twice its weights.
`tests/ecosystem/test_rehearsal_real_models.py` compares the peak with that of a GPU.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_ROUND = 512  # torch's CUDA allocator rounds up to a multiple of this


class _Seen(weakref.ref[Any]):
    """A weak reference to a storage; logs when it is freed."""

    __slots__ = ("key", "meter", "nbytes", "number")
    key: int
    meter: Meter
    nbytes: int
    number: int


class Meter:
    """Log of allocations; `peak` splits it by part after the step, when the use of each storage is known."""

    def __init__(self) -> None:
        self.parts: dict[int, str] = {}  # the use of a storage, by its number in the log; others are activations
        self._log: list[tuple[int, int]] = []  # a storage's number, and the bytes allocated, or freed if negative
        self._living: dict[int, _Seen] = {}
        self._count = 0

    def see(self, behind: Tensor, nbytes: int | None = None) -> None:
        """Log the storage of a tensor on the device, once; `nbytes` if it is larger there."""
        storage = behind.untyped_storage()
        key = storage._cdata
        if key in self._living:
            return
        seen = _Seen(storage, _gone)
        seen.key, seen.meter, seen.number = key, self, self._count
        size = storage.nbytes() if nbytes is None else nbytes
        seen.nbytes = -(-size // _ROUND) * _ROUND
        self._count += 1
        self._living[key] = seen
        self._log.append((seen.number, seen.nbytes))

    def take(self, nbytes: int) -> None:
        """Log memory that is allocated and freed at once."""
        self._count += 1
        self._log += [(self._count - 1, _rounded(nbytes)), (self._count - 1, -_rounded(nbytes))]

    def forget(self, seen: _Seen) -> None:
        self._log.append((seen.number, -seen.nbytes))
        if self._living.get(seen.key) is seen:
            del self._living[seen.key]

    @property
    def saw_any(self) -> bool:
        return bool(self._log)

    def mark(self, behind: Tensor, part: str) -> None:
        seen = self._living.get(behind.untyped_storage()._cdata)
        if seen is not None:
            self.parts[seen.number] = part

    def peak(self) -> dict[str, int]:
        """The peak in bytes, by part.

        Optimizer state counts from the beginning: every step after the first starts with it.
        """
        log = sorted(self._log, key=lambda entry: self.parts.get(entry[0]) != "optimizer" or entry[1] < 0)
        now = most = at = 0
        for index, (_, size) in enumerate(log):
            now += size
            if now > most:
                most, at = now, index
        parts: defaultdict[str, int] = defaultdict(int)
        for number, size in log[: at + 1] if most else ():
            parts[self.parts.get(number, "activations")] += size
        return {part: size for part, size in parts.items() if size}


def _gone(seen: _Seen) -> None:
    seen.meter.forget(seen)


def _rounded(nbytes: int) -> int:
    return -(-nbytes // _ROUND) * _ROUND


aten = torch.ops.aten
_KEPT, _TAKEN = 5, 6


def weigh(meter: Meter, func: Any, behind: Sequence[Any], out: Any) -> None:
    """Log the extra memory that an operation needs on the device. `behind`: the arguments without stand-ins."""
    if func is aten.mkldnn_rnn_layer.default:
        meter.take(_passing(behind, out[0]))
        if behind[-1] and out[3] is not None:  # it trains
            meter.see(out[3], _KEPT * out[0].nbytes)
    elif func is aten.mkldnn_rnn_layer_backward.default:
        meter.take(_passing(behind, behind[7]))


def _passing(behind: Sequence[Any], output: Tensor) -> int:
    layer, *weights = behind[:5]
    return int(_TAKEN * output.nbytes + layer.nbytes + 2 * sum(weight.nbytes for weight in weights))
