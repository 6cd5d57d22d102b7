"""torchmove changes the device of a PyTorch training state: all of it or none of it, and proves it.

Only a map: what it names is imported when it is asked for, so that `import torchmove` and `torchmove --help` are quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_HOMES = {
    "_errors": ("MoveFailed", "MoveRefused", "TorchmoveError", "VerificationError"),
    "_move": ("apply", "move", "plan", "survey", "verify"),
    "_records": ("Inventory", "Plan", "Receipt", "Verdict", "attribute", "item"),
    "_rules": ("register_rule",),
    "distributed": ("ByRank", "by_rank", "rewrap"),
    "parking": ("Parked", "Swap", "park", "parked", "release", "swap"),
    "readers": ("register_reader",),
    "rehearsal": ("Rehearsal", "rehearse"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'torchmove' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"torchmove.{_HOME[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
