"""torchmove moves a PyTorch training state to another device: all of it or none of it, verified.

Public names are imported on first use, so that `import torchmove` and `torchmove --help` stay fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchmove.chain import apply, device, move, plan, survey, verify
    from torchmove.errors import MoveFailed, MoveRefused, TorchmoveError, VerificationError
    from torchmove.moving.receipt import Receipt
    from torchmove.parking import release
    from torchmove.parking.parked_states import Parked, Swap, park, parked, swap
    from torchmove.planning.placement import register_rule
    from torchmove.planning.plan import Plan
    from torchmove.ranks import ByRank, by_rank, rewrap
    from torchmove.rehearsing.result import Rehearsal
    from torchmove.rehearsing.run import rehearse
    from torchmove.surveying.inventory import Inventory
    from torchmove.surveying.paths import attribute, item
    from torchmove.surveying.readers import register_reader
    from torchmove.surveying.summary import Summary
    from torchmove.verifying.verify import Verdict

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
    "Summary",
    "Swap",
    "TorchmoveError",
    "Verdict",
    "VerificationError",
    "apply",
    "attribute",
    "by_rank",
    "device",
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

_NAMES_BY_MODULE = {
    "chain": ("apply", "device", "move", "plan", "survey", "verify"),
    "errors": ("MoveFailed", "MoveRefused", "TorchmoveError", "VerificationError"),
    "moving.receipt": ("Receipt",),
    "parking": ("Parked", "Swap", "park", "parked", "release", "swap"),
    "planning.plan": ("Plan",),
    "planning.placement": ("register_rule",),
    "ranks": ("ByRank", "by_rank", "rewrap"),
    "rehearsing.result": ("Rehearsal",),
    "rehearsing.run": ("rehearse",),
    "surveying.inventory": ("Inventory",),
    "surveying.paths": ("attribute", "item"),
    "surveying.readers": ("register_reader",),
    "surveying.summary": ("Summary",),
    "verifying.verify": ("Verdict",),
}
_MODULE_OF = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'torchmove' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"torchmove.{_MODULE_OF[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
