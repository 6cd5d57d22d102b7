"""Park a state: free its device for a while, and bring it back fast.

parked_states  park and wake; swap: park one state while another one wakes
arena_movers   the movers between a device and the arena
host_copies    where each storage's host copy is in the arena, and whether it is current, by its fingerprint
arena          pinned host memory, of the exact size and kept for reuse, and copies from and to it
"""

from __future__ import annotations

from torchmove.moving.movers.ring import release_ring
from torchmove.parking.host_copies import host_copies
from torchmove.parking.parked_states import Parked, Swap, park, parked, swap

__all__ = ["Parked", "Swap", "park", "parked", "release", "swap"]


def release() -> None:
    """Free what torchmove keeps for reuse: threads, and pinned memory that holds no parked state.

    Examples:
        >>> import torchmove as tm
        >>> tm.release()                  # a later move or park creates them again
    """
    host_copies.release()
    release_ring()
