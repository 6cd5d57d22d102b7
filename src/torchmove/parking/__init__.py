"""Give a device away for a while and have it back in a moment.

park          park and wake
swapping      one state leaves while another comes
movers        the movers between a device and the arena
host_copies   which storage is where in the arena, and whether its copy is current
fingerprints  computed on the device, to tell whether a host copy is current
lanes         copies between the arena and a device, by runs of memory
arena         page-locked host memory, of the exact size and kept
"""

from __future__ import annotations

from torchmove.moving.movers.ring import release_ring
from torchmove.parking.host_copies import host_copies
from torchmove.parking.park import Parked, park, parked
from torchmove.parking.swapping import Swap, swap

__all__ = ["Parked", "Swap", "park", "parked", "release", "swap"]


def release() -> None:
    """Give back what is kept for the next time: page-locked memory, in which nothing is parked, and threads.

    Examples:
        >>> import torchmove as tm
        >>> tm.release()                  # a later move or park makes them anew
    """
    host_copies.release()
    release_ring()
