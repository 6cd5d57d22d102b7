"""Park a state: free its device for a while, and bring it back fast.

parked_states  park and wake
swapping       park one state while another one wakes
movers         the movers between a device and the arena
host_copies    where each storage's host copy is in the arena, and whether it is current
fingerprints   computed on the device, to check whether a host copy is current
lanes          copies between the arena and a device, by contiguous runs of memory
arena          pinned host memory, of the exact size and kept for reuse
"""

from __future__ import annotations

from torchmove.moving.movers.ring import release_ring
from torchmove.parking.host_copies import host_copies
from torchmove.parking.parked_states import Parked, park, parked
from torchmove.parking.swapping import Swap, swap

__all__ = ["Parked", "Swap", "park", "parked", "release", "swap"]


def release() -> None:
    """Free what torchmove keeps for reuse: threads, and pinned memory that holds no parked state.

    Examples:
        >>> import torchmove as tm
        >>> tm.release()                  # a later move or park creates them again
    """
    host_copies.release()
    release_ring()
