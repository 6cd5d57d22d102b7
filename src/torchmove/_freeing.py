"""Large old copies in host memory, given back in the background.

The kernel takes longer to take gigabytes of small pages back than the link takes to carry them. The state does not need
them any more, so nobody has to wait; except for the next move, which counts what is free.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from torch import Tensor

from torchmove import _pages
from torchmove._storage import is_own, is_sole_owner, plain_torch

_WORTH_BYTES = 256 << 20

_thread: threading.Thread | None = None


def let_go(old: list[Tensor]) -> None:
    """Give back the memory behind tensors that nobody else needs; the list is empty afterwards."""
    global _thread
    large = [tensor for tensor in old if tensor.nbytes >= 1 << 20 and tensor.device.type == "cpu" and is_own(tensor)]
    old.clear()
    if sum(tensor.nbytes for tensor in large) < _WORTH_BYTES:
        return
    wait()
    _thread = threading.Thread(target=_empty, args=(large,), name="torchmove freeing", daemon=True)
    _thread.start()


def wait() -> None:
    """Until all that was let go has been given back."""
    if _thread is not None:
        _thread.join()


def _empty(tensors: Sequence[Tensor]) -> None:
    with plain_torch():
        for tensor in tensors:
            # To unmap memory keeps others from mapping any while its pages are given back: so those first, alone.
            if is_sole_owner(tensor) and not tensor.is_pinned():
                _pages.drop(tensor)
            tensor.set_()  # type: ignore[call-overload]  # without Python's lock, unlike letting go of the object
