"""The nouns of the chain: Inventory, Plan, Receipt, Verdict and what they are made of. Frozen data that prints itself.

The small ones are named tuples: a state may have 100 000 tensors, and a named tuple is the cheapest thing to make.
"""

from torchmove._records.inventory import Block, DeviceValue, Inventory, Shell, Slot, Told, Window, Windows, make_slot
from torchmove._records.planned import Digest, Move, Note, Plan, Refusal, Repoint, Room, Stay
from torchmove._records.reading import (
    Bunch,
    Child,
    Fact,
    Level,
    Owner,
    Reader,
    Role,
    attribute,
    item,
    make_bunch,
    make_child,
    make_owner,
)
from torchmove._records.receipt import Advance, Cargo, Held, Mover, Receipt
from torchmove._records.verdict import Finding, Verdict

__all__ = [
    "Advance",
    "Block",
    "Bunch",
    "Cargo",
    "Child",
    "DeviceValue",
    "Digest",
    "Fact",
    "Finding",
    "Held",
    "Inventory",
    "Level",
    "Move",
    "Mover",
    "Note",
    "Owner",
    "Plan",
    "Reader",
    "Receipt",
    "Refusal",
    "Repoint",
    "Role",
    "Room",
    "Shell",
    "Slot",
    "Stay",
    "Told",
    "Verdict",
    "Window",
    "Windows",
    "attribute",
    "item",
    "make_bunch",
    "make_child",
    "make_owner",
    "make_slot",
]
