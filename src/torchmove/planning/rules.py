"""What goes where: a state's tensors go to the target, except those that belong elsewhere.

An optimizer's scalars go where the optimizer itself would have put them. That is not always beside the parameter:
Adam's `step` lives on the CPU, unless the update runs on the device as a whole (`capturable`, `fused`), and with all of
them on the device every step waits for it once per parameter. The table says so for torch's own optimizers, one row for
each entry that does not simply follow its parameter. What other classes do is learned (`_native.py`), except where
users have a rule with `register_rule`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import optim

from torchmove.surveying.helpers import HELPERS, HelperRule, Place
from torchmove.surveying.tensors import StateTensor

Group = Mapping[str, Any]
Rule = Callable[[Group], Place]

# The states of torch's own generators: Mersenne twister on the CPU, Philox on accelerators.
_RNG_STATE_BYTES = 5056


def _on_cpu_unless(*flags: str) -> Rule:
    def place(group: Group) -> Place:
        return "parameter" if any(group.get(flag) for flag in flags) else "cpu"

    return place


def _with_parameter(_: Group) -> Place:
    return "parameter"


# The first base of an optimizer's class that has a row decides. `*` stands for the group's own values: lr, betas.
_TABLE: dict[tuple[type, str], Rule] = {
    (optim.Optimizer, "step"): _on_cpu_unless("capturable", "fused"),
    (optim.Optimizer, "*"): _on_cpu_unless("capturable", "fused"),
    (optim.NAdam, "mu_product"): _on_cpu_unless("capturable"),
    (optim.ASGD, "step"): _with_parameter,
    (optim.ASGD, "eta"): _with_parameter,
    (optim.ASGD, "mu"): _with_parameter,
}
_USERS: dict[tuple[type, str], Rule] = {}


def register_rule(kind: type, key: str, place: Place | Rule | HelperRule) -> None:
    """Say where an optimizer keeps a scalar of its state, or where another object keeps an attribute.

    Mostly no rule is needed: a first step of the optimizer's class on a simulated device shows it. A rule goes first.

    Args:
        kind: the class; it holds for those below it too.
        key: of an optimizer: the name in the state of a parameter, or "*" for tensors among the group's own values. Of
            any other object: the name of an attribute, or "*" for all that have no rule of their own.
        place: "cpu", "parameter" (with the parameters), or a function that says one of them: of the group for an
            optimizer, of the object itself for any other. An attribute under the rule "cpu" stays on the CPU if it is
            there; under the rule "data" it is a dataset: it is not entered, and its tensors stay.

    Raises:
        ValueError: that is no place.

    Examples:
        >>> import torch, torchmove as tm
        >>> class Clocked(torch.optim.SGD):
        ...     pass                                  # keeps state["ticks"], a counter, on the CPU
        >>> tm.register_rule(Clocked, "ticks", "cpu")
        >>> tm.register_rule(Clocked, "scale", lambda group: "parameter" if group["fused"] else "cpu")
        >>> class NoiseSchedule:
        ...     pass                                  # computes its sigmas with numpy
        >>> tm.register_rule(NoiseSchedule, "sigmas", "cpu")
        >>> class Experiment:
        ...     pass                                  # its train_set is a list of tensors
        >>> tm.register_rule(Experiment, "train_set", "data")
    """
    if not isinstance(kind, type):
        raise TypeError(f"register_rule takes a class, not {type(kind).__name__}")
    if not callable(place) and place not in ("cpu", "parameter", "data"):
        raise ValueError(f"a tensor is kept on the 'cpu', with its 'parameter' or is 'data', not {place!r}")
    if issubclass(kind, optim.Optimizer) and place == "data":
        raise ValueError(f"{kind.__name__} is an optimizer: what it keeps is no dataset")
    if issubclass(kind, optim.Optimizer):
        _USERS[kind, key] = place if callable(place) else lambda _: place
    else:
        HELPERS.setdefault(kind, {})[key] = place


def users_rule(kind: type, key: str) -> Rule | None:
    """The user's rule for a scalar of this name in an optimizer of this class."""
    return _first(_USERS, kind, key) if _USERS else None


def by_table(kind: type, key: str, group: Group) -> bool:
    """Does the table say that an optimizer of this class keeps its scalar of this name on the CPU?"""
    rule = _first(_TABLE, kind, key)
    return rule is not None and rule(group) == "cpu"


def _first(rules: Mapping[tuple[type, str], Rule], kind: type, key: str) -> Rule | None:
    return next((rules[base, key] for base in kind.__mro__ if (base, key) in rules), None)


def is_rng_state(entry: StateTensor) -> bool:
    """The state of a random number generator: bytes that torch takes back from the CPU only."""
    if entry.tensor.dtype is not torch.uint8 or entry.tensor.dim() != 1:
        return False
    return entry.nbytes == _RNG_STATE_BYTES or any("rng" in name.lower() for name in entry.path.names())
