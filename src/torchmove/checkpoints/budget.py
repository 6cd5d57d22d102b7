"""How much work a checkpoint may ask for: a fixed amount, and so much for each byte that describes its tensors.

Files of torch.save and safetensors take work in proportion to their length. A file made to do harm is short and takes
work without end: it names one dict from everywhere, calls a function on it again and again, or has keys that all hash
alike. So the readers and the walk spend what they do from one Budget; where nothing is left, the file is refused: R067.

A unit is about a third of a microsecond, or eight bytes of memory. What is spent where:

- a step of a pickle: 1, and more for what it makes (`reading.py`): a list 16, a call 40, a copied text by its length;
- a call: what its arguments hold, since it may go through all of that (`makers.weight`);
- a key: its parts, and each place in the hash table that is taken already (`keys.py`);
- a tensor that is listed: 32, its dimensions, and the length of its path (`walking.py`);
- a bracket of JSON that is read past: 64; the description of a tensor: 64 (`jsontext.py`, `safetensors.py`);
- a record of the zip: 64 (`archive.py`).

A tensor of a state_dict takes at least 80 bytes of pickle, mostly 150: that grants 640 to 1200 units, and about 250 are
spent. Other content has less to spare: a list takes 3 bytes where pickle remembers it, and costs 24; a further name of
a tensor takes 7 bytes and costs 50. A file of nothing else comes near its limit, but the fixed amount pays for 20 000.
"""

from __future__ import annotations

from torchmove.checkpoints.files import Source
from torchmove.checkpoints.refusing import Unfit

_FIXED_UNITS = 1_000_000
_UNITS_PER_BYTE = 8
# Of one file: 2 GB of memory, or somewhat more than a minute. 300 000 tensors take a third of it.
_MOST_UNITS = 250_000_000


class Budget:
    """What is left of the work that a checkpoint may ask for."""

    def __init__(self, nbytes: int = 0) -> None:
        self.left = _FIXED_UNITS + _worth(nbytes)
        self._granted: set[tuple[int, int, int]] = set()

    def grant(self, source: Source, offset: int, nbytes: int) -> None:
        """More work, for a part of a file that describes tensors: once, by however many names the file is given."""
        part = (source.stamp.device, source.stamp.number, offset)
        if part not in self._granted:
            self._granted.add(part)
            self.left += _worth(nbytes)

    def spend(self, units: int) -> None:
        self.left -= units
        if self.left < 0:
            self.refuse()

    def refuse(self) -> None:
        raise Unfit("R067", "it takes far more work to read than a checkpoint of its size: it is made to do harm")


def _worth(nbytes: int) -> int:
    return min(_UNITS_PER_BYTE * nbytes, _MOST_UNITS)
