"""Large blocks travel in pieces, each as much as a slot holds."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

from torch import Tensor


class Piece(NamedTuple):
    """Bytes at an address in host memory, and their place on the device. `owner` keeps the address valid."""

    owner: Tensor
    address: int
    device: Tensor
    nbytes: int

    def host_to_slot(self, slot: Tensor) -> None:
        ctypes.memmove(slot.data_ptr(), self.address, self.nbytes)

    def slot_to_device(self, slot: Tensor) -> None:
        self.device.copy_(slot if slot.nbytes == self.nbytes else slot[: self.nbytes], non_blocking=True)

    def device_to_slot(self, slot: Tensor) -> None:
        (slot if slot.nbytes == self.nbytes else slot[: self.nbytes]).copy_(self.device, non_blocking=True)

    def slot_to_host(self, slot: Tensor) -> None:
        ctypes.memmove(self.address, slot.data_ptr(), self.nbytes)
