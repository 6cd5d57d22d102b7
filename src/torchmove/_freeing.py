"""Large old copies in host memory, given back in the background.

The kernel takes longer to take gigabytes of small pages back than the link takes to carry them. The state does not need
them any more, so nobody has to wait; except for the next move, which counts what is free.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import compress

import torch
from torch import UntypedStorage

from torchmove import _pages
from torchmove._storage import is_sole_owner, plain_torch

_LARGE_BYTES = 1 << 20  # of a storage
_WORTH_BYTES = 256 << 20  # of all of them

_thread: threading.Thread | None = None


def large(storages: Sequence[UntypedStorage], sizes: Sequence[int]) -> list[UntypedStorage]:
    """Those of which it may matter when they are given back."""
    of_size = compress(storages, map(_LARGE_BYTES.__le__, sizes))
    return [each for each in of_size if each.device.type == "cpu" and each.resizable()]


def let_go(large: list[UntypedStorage]) -> None:
    """Give back storages that nobody else needs. Whatever happens, nobody is told: the state is where it should be."""
    global _thread
    if sum(storage.nbytes() for storage in large) < _WORTH_BYTES:
        large.clear()
        return
    wait()
    # No daemon: at exit Python ends one wherever it is, and in the midst of torch that aborts the process. Once Python
    # has waited for its threads, nobody waits for a new one.
    thread = threading.Thread(target=_empty, args=(large,), name="torchmove freeing", daemon=False)
    if threading.main_thread().is_alive() and _started(thread):
        _thread = thread
    else:
        large.clear()


def _started(thread: threading.Thread) -> bool:
    try:
        thread.start()
    except RuntimeError:  # as many as the system allows
        return False
    return True


def wait() -> None:
    """Until all that was let go has been given back."""
    # The collector may run somebody's code, which moves, in that thread.
    if _thread is not None and _thread is not threading.current_thread():
        _thread.join()


@plain_torch
def _empty(storages: list[UntypedStorage]) -> None:
    while storages:
        window = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storages.pop())
        # To unmap memory keeps others from mapping any while its pages are given back: so those first, alone.
        if is_sole_owner(window) and not window.is_pinned():
            _pages.drop(window)
        window.set_()  # type: ignore[call-overload]  # without Python's lock, unlike letting go of the object
