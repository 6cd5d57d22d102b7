"""The nouns of the chain: Inventory, Plan, Receipt, Verdict and what they are made of. Frozen data that prints itself.

The small ones are named tuples, and what there is one of for each tensor is kept in columns: a state may have 100 000.
"""

from torchmove._records.blocks import Block, Blocks, Move, Moves
from torchmove._records.columns import Rows
from torchmove._records.inventory import Also, DeviceValue, Inventory, Shell, Told
from torchmove._records.origins import GradientsOf, Origins, Run, StateOfEach, make_several
from torchmove._records.planned import Adopted, Digest, Note, Plan, Refusal, Repoint, Room, Stay
from torchmove._records.reading import (
    Bunch,
    Child,
    Fact,
    Level,
    Owner,
    Reader,
    Role,
    States,
    attribute,
    item,
    make_bunch,
    make_child,
)
from torchmove._records.receipt import Advance, Cargo, Held, Load, Mover, Receipt
from torchmove._records.slots import Looks, Slot, Slots, Window, shape_of
from torchmove._records.stages import Stage, Stages
from torchmove._records.verdict import Finding, Verdict

__all__ = [
    "Adopted",
    "Advance",
    "Also",
    "Block",
    "Blocks",
    "Bunch",
    "Cargo",
    "Child",
    "DeviceValue",
    "Digest",
    "Fact",
    "Finding",
    "GradientsOf",
    "Held",
    "Inventory",
    "Level",
    "Load",
    "Looks",
    "Move",
    "Mover",
    "Moves",
    "Note",
    "Origins",
    "Owner",
    "Plan",
    "Reader",
    "Receipt",
    "Refusal",
    "Repoint",
    "Role",
    "Room",
    "Rows",
    "Run",
    "Shell",
    "Slot",
    "Slots",
    "Stage",
    "Stages",
    "StateOfEach",
    "States",
    "Stay",
    "Told",
    "Verdict",
    "Window",
    "attribute",
    "item",
    "make_bunch",
    "make_child",
    "make_several",
    "shape_of",
]
