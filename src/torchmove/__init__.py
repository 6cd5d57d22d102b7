"""torchmove changes the device of a PyTorch training state: all of it or none of it, and proves it."""

from torchmove._errors import MoveFailed, MoveRefused, TorchmoveError, VerificationError
from torchmove._move import apply, move, plan, survey, verify
from torchmove._records import Inventory, Plan, Receipt, Verdict, attribute, item
from torchmove._rules import register_rule
from torchmove.distributed import ByRank, by_rank, rewrap
from torchmove.parking import Parked, Swap, park, parked, release, swap
from torchmove.readers import register_reader
from torchmove.rehearsal import Rehearsal, rehearse

__version__ = "0.1.0"

__all__ = [
    "ByRank",
    "Inventory",
    "MoveFailed",
    "MoveRefused",
    "Parked",
    "Plan",
    "Receipt",
    "Rehearsal",
    "Swap",
    "TorchmoveError",
    "Verdict",
    "VerificationError",
    "apply",
    "attribute",
    "by_rank",
    "item",
    "move",
    "park",
    "parked",
    "plan",
    "register_reader",
    "register_rule",
    "rehearse",
    "release",
    "rewrap",
    "survey",
    "swap",
    "verify",
]
