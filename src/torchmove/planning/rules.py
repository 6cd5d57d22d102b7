"""Where optimizers keep their scalars, and which tensors are random states.

An optimizer's scalars go where the optimizer itself would put them, which is not always the device of the parameter:
Adam keeps `step` on the CPU, unless the whole update runs on the device (`capturable`, `fused`). With the steps on the
device, each update would synchronize once per parameter. The table covers torch's own optimizers, with a row for each
entry that does not follow its parameter. For other classes a simulated first step shows it (`learning`), unless the
user calls `register_rule`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import optim

from torchmove.surveying.helpers import HELPERS, HelperRule, Place
from torchmove.surveying.inventory import StateTensor

Group = Mapping[str, Any]
Rule = Callable[[Group], Place]

# The size of a CPU generator's state (Mersenne Twister); accelerators use Philox.
_RNG_STATE_BYTES = 5056


def _on_cpu_unless(*flags: str) -> Rule:
    def place(group: Group) -> Place:
        return "parameter" if any(group.get(flag) for flag in flags) else "cpu"

    return place


def _with_parameter(_: Group) -> Place:
    return "parameter"


# The first class in an optimizer's method resolution order with a row decides. `*` stands for values of the group: lr,
# betas.
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

    Mostly no rule is needed: a simulated first step of the optimizer's class shows it. A rule takes precedence.

    Args:
        kind: the class; the rule also holds for its subclasses.
        key: for an optimizer, the name in a parameter's state, or "*" for tensors among the values of a group. For
            any other object, the name of an attribute, or "*" for all attributes without a rule.
        place: "cpu", "parameter" (the device of the parameters), or a function that returns one of them: it gets the
            group of an optimizer, or the object itself. With "cpu", an attribute stays on the CPU if it is there. With
            "data", an attribute is a dataset: it is not searched, and its tensors stay.

    Raises:
        ValueError: `place` is not one of these.

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
        raise TypeError(f"register_rule needs a class, not {type(kind).__name__}")
    if not callable(place) and place not in ("cpu", "parameter", "data"):
        raise ValueError(f"place must be 'cpu', 'parameter', 'data' or a function, not {place!r}")
    if issubclass(kind, optim.Optimizer) and place == "data":
        raise ValueError(f"{kind.__name__} is an optimizer: its place cannot be 'data'")
    if issubclass(kind, optim.Optimizer):
        _USERS[kind, key] = _checked(place) if callable(place) else lambda _: place
    else:
        HELPERS.setdefault(kind, {})[key] = place


def _checked(rule: Rule) -> Rule:
    """A user's rule, whose answer has to be a place."""

    def place_of(group: Group) -> Place:
        place = rule(group)
        if place not in ("cpu", "parameter"):
            raise ValueError(f"a rule of tm.register_rule returned {place!r}. Fix: return 'cpu' or 'parameter'")
        return place

    return place_of


def users_rule(kind: type, key: str) -> Rule | None:
    """The user's rule for a scalar of this name in an optimizer of this class."""
    return _first(_USERS, kind, key) if _USERS else None


def by_table(kind: type, key: str, group: Group) -> bool:
    """Whether the table says that an optimizer of this class keeps its scalar of this name on the CPU."""
    rule = _first(_TABLE, kind, key)
    return rule is not None and rule(group) == "cpu"


def _first(rules: Mapping[tuple[type, str], Rule], kind: type, key: str) -> Rule | None:
    return next((rules[base, key] for base in kind.__mro__ if (base, key) in rules), None)


def is_rng_state(entry: StateTensor) -> bool:
    """Whether this is the state of a random number generator, which torch accepts from the CPU only."""
    if entry.tensor.dtype is not torch.uint8 or entry.tensor.dim() != 1:
        return False
    return entry.nbytes == _RNG_STATE_BYTES or any("rng" in name.lower() for name in entry.path.names())
