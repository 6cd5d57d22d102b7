"""The device memory that a step uses: every storage, from its allocation until nothing holds it.

cuDNN's memory is added as it was measured: for each layer and direction of an LSTM, five times its output is kept for
the backward pass, and during a pass six outputs, the input, and the weights twice.
`tests/ecosystem/test_rehearsal_real_models.py` compares the peak with that of a GPU.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_ROUND = 512  # what torch's allocator for CUDA hands out is a multiple of this


class _Seen(weakref.ref[Any]):
    """A storage; goes to the log when the storage goes."""

    __slots__ = ("key", "meter", "nbytes", "number")
    key: int
    meter: Meter
    nbytes: int
    number: int


class Meter:
    """Keeps a log, so that afterwards, when it is known what each storage was for, the peak can be told by part."""

    def __init__(self) -> None:
        self.parts: dict[int, str] = {}  # what a storage is for, by its number in the log; others are activations
        self._log: list[tuple[int, int]] = []  # a storage's number, and by how many bytes more, or less
        self._living: dict[int, _Seen] = {}
        self._count = 0

    def see(self, behind: Tensor, nbytes: int | None = None) -> None:
        """A tensor on the device; `nbytes` where it would be larger there."""
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
        """Room that is taken for a moment."""
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
        """Bytes by part, at the moment when they were most.

        The state of an optimizer counts from the beginning: what the first step makes, every later one begins with.
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
    """Count what an operation, done with tensors that stand behind others, would keep and take more on the device."""
    if func is aten.mkldnn_rnn_layer.default:
        meter.take(_passing(behind, out[0]))
        if behind[-1] and out[3] is not None:  # it trains
            meter.see(out[3], _KEPT * out[0].nbytes)
    elif func is aten.mkldnn_rnn_layer_backward.default:
        meter.take(_passing(behind, behind[7]))


def _passing(behind: Sequence[Any], output: Tensor) -> int:
    layer, *weights = behind[:5]
    return int(_TAKEN * output.nbytes + layer.nbytes + 2 * sum(weight.nbytes for weight in weights))
