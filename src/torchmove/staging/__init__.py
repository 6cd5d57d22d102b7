"""Between host memory and a CUDA device near the speed of the link, through a small ring of page-locked slots.

A copy from ordinary memory waits for the driver, which stages it itself, with one thread and one small buffer. Here
many threads fill slots while the copy engine empties others; or, the other way, it fills and they empty, and take the
page faults of fresh memory side by side.

    locked    page-locked memory
    workers   threads that copy host memory
    traffic   through slots, and how it ends
    pieces    of large blocks, and their traffic
    bundles   of small blocks, and their traffic
    slots     the ring of them, with workers and streams: the one of this process
"""

from __future__ import annotations

from torchmove.staging.bundles import Bundle, Bundles, bundled
from torchmove.staging.locked import CannotLock, lock, unlock
from torchmove.staging.pieces import Piece, Pieces
from torchmove.staging.slots import NoRing, Ring, is_ready, release, ring
from torchmove.staging.workers import cores

__all__ = [
    "Bundle",
    "Bundles",
    "CannotLock",
    "NoRing",
    "Piece",
    "Pieces",
    "Ring",
    "bundled",
    "cores",
    "is_ready",
    "lock",
    "release",
    "ring",
    "unlock",
]
