"""Give a device away for a while and have it back in a moment.

arena          page-locked host memory, exact and kept
lanes          between the arena and a device, by runs of memory
counters       how often was a block written to, as far as torch counts?
fingerprints   are the bytes on the device still those of the host copy?
mirrors        which block is where in the arena, and whether it is true there
segments       room on a device for what wakes
leaving        a block on its way off a device
changes        which blocks have changed there
down, up       the movers
homes          the way back
resting        park and wake
swapping       one leaves while another comes
"""

from __future__ import annotations

from torchmove.moving.movers.ring import release_ring
from torchmove.parking.mirrors import mirrors
from torchmove.parking.resting import Parked, park, parked
from torchmove.parking.swapping import Swap, swap

__all__ = ["Parked", "Swap", "park", "parked", "release", "swap"]


def release() -> None:
    """Give back what is kept for the next time: page-locked memory, in which nothing is parked, and threads.

    Examples:
        >>> import torchmove as tm
        >>> tm.release()                  # a later move or park makes them anew
    """
    mirrors.release()
    release_ring()
