"""The same pickle, with some of its texts said differently: nothing else in it changes by a byte.

A pickle says a text once and remembers it; where the text is needed again, it only points back. So a storage's device
and a text of the user's may be one and the same memory. Each step that places a tensor is replaced by the new text,
which is not remembered; and where the old one was remembered there, the first step that still needs it says it anew.
"""

from __future__ import annotations

import pickle
from collections.abc import Collection, Iterator
from struct import pack

from torchmove.checkpoints.opcodes import GET, PUT, TEXT, Step, steps


def rewritten(pickled: bytes, places: Collection[int], text: str) -> bytes:
    """The pickle with `text` at each of the places, which are where a text is pushed."""
    said = text.encode()
    new = pickle.BINUNICODE + pack("<I", len(said)) + said
    return b"".join(_pieces(pickled, frozenset(places), new))


def _pieces(pickled: bytes, places: frozenset[int], new: bytes) -> Iterator[bytes]:
    forgotten: dict[int, bytes] = {}  # what the memo should hold and does not, with the step that makes it remembered
    copied, before = 0, Step(0, None, 0, 0)
    for step in steps(pickled):
        placed, remembers = before.start in places and before.code in TEXT, step.code in PUT
        if step.start in places:
            yield pickled[copied : step.start] + new
            copied = step.end
        elif placed and remembers:
            forgotten[step.argument] = pickled[before.start : step.end]
            yield pickled[copied : step.start]
            copied = step.end
        elif remembers:
            forgotten.pop(step.argument, None)
        elif step.code in GET and step.argument in forgotten:
            yield pickled[copied : step.start] + forgotten.pop(step.argument)
            copied = step.end
        before = step
    yield pickled[copied:]
