"""What goes where: a state's tensors go to the target, except those that belong elsewhere.

An optimizer's scalars go where the optimizer itself would have put them. That is not always beside the parameter:
Adam's `step` lives on the CPU, unless the update runs on the device as a whole (`capturable`, `fused`), and with all of
them on the device every step waits for it once per parameter. The table says so for torch's own optimizers, one row for
each entry that does not simply follow its parameter. What other classes do is learned (`_native.py`), except where
users have a rule with `register_rule`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import optim

from torchmove._records import Slot

Place = Literal["cpu", "parameter", "data"]
Group = Mapping[str, Any]
Rule = Callable[[Group], Place]
HelperRule = Callable[[Any], Place]

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


# Where other objects keep their attributes, `*` for all that have no row: "cpu" of helpers that compute there, and
# whose library leaves their tensors there; "data" of what a loader delivers from, which a step takes to the device
# batch by batch. A class may be named as "module:name", so that a class that nobody imported costs no import.
_HELPERS: dict[type | str, dict[str, Place | HelperRule]] = {
    # Anything with a length and items may be one, a plain list too.
    "transformers.trainer:Trainer": {"train_dataset": "data", "eval_dataset": "data"},
    "lightning.pytorch.trainer.connectors.data_connector:_DataLoaderSource": {"instance": "data"},
    "pytorch_lightning.trainer.connectors.data_connector:_DataLoaderSource": {"instance": "data"},
}


def _once_set(attribute: str) -> HelperRule:
    """diffusers' noise schedulers: what the constructor makes is on the CPU; what `set_timesteps(device=)` and the
    steps after it make is on the device."""

    def place(scheduler: Any) -> Place:
        return "cpu" if vars(scheduler).get(attribute) is None else "parameter"

    return place


_SCHEDULERS = "diffusers.schedulers.scheduling_"
# Made by the constructor, or taken to the CPU again by `set_timesteps`, which goes through numpy.
_TABLES = (
    *("alphas", "alphas_cumprod", "betas", "final_alpha_cumprod", "initial_alpha_cumprod", "_init_alpha_cumprod"),
    *("alpha_t", "sigma_t", "lambda_t", "one", "sigmas", "discrete_sigmas"),
)
_set = _once_set("num_inference_steps")
_HELPERS[_SCHEDULERS + "utils:SchedulerMixin"] = {"*": _set, **dict.fromkeys(_TABLES, "cpu")}
_timed = _once_set("timesteps")  # these do not note the number of steps
_stages: dict[str, Place | HelperRule] = {"sigmas": _set, "sigmas_per_stage": "cpu", "timesteps_per_stage": "cpu"}
_OF_SCHEDULERS: dict[str, dict[str, Place | HelperRule]] = {
    "amused:AmusedScheduler": {"*": _timed},
    "consistency_decoder:ConsistencyDecoderScheduler": {"*": _timed},
    "ddpm_wuerstchen:DDPMWuerstchenScheduler": {"*": _timed, "s": "cpu"},
    "dpmsolver_sde:DPMSolverSDEScheduler": {"mid_point_sigma": "cpu"},
    "flow_map_euler_discrete:FlowMapEulerDiscreteScheduler": {"sigmas": _set},
    "flow_match_euler_discrete:FlowMatchEulerDiscreteScheduler": {"sigmas": _set},
    "flow_match_heun_discrete:FlowMatchHeunDiscreteScheduler": {"sigmas": _set},
    "flow_match_lcm:FlowMatchLCMScheduler": {"sigmas": _set},
    "helios:HeliosScheduler": _stages,
    "helios_dmd:HeliosDMDScheduler": _stages,
    "heun_discrete:HeunDiscreteScheduler": {"dt": "cpu"},
    "ltx_euler_ancestral_rf:LTXEulerAncestralRFScheduler": {"sigmas": _set},
    "minimax_h3:MiniMaxH3Scheduler": {"sigmas": _set},
    "piflow:PiflowScheduler": {"sigmas": _set},
    "rfd4_proteina:RFD4ProteinaScheduler": {"*": _timed, "_times": "cpu", "_noise": "cpu"},
    "sde_ve:ScoreSdeVeScheduler": {"*": _timed},
}
_HELPERS.update((_SCHEDULERS + name, places) for name, places in _OF_SCHEDULERS.items())
_HELPERS["diffusers.schedulers.deprecated.scheduling_sde_vp:ScoreSdeVpScheduler"] = {"*": _timed}


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
        _HELPERS.setdefault(kind, {})[key] = place


def places_of(kind: type) -> Mapping[str, Place | HelperRule]:
    """Where objects of a class keep their attributes, those that have rules."""
    found: dict[str, Place | HelperRule] = {}
    for base in reversed(kind.__mro__):
        found |= _HELPERS.get(f"{base.__module__}:{base.__qualname__}", {})
        found |= _HELPERS.get(base, {})
    return found


def users_rule(kind: type, key: str) -> Rule | None:
    """The user's rule for a scalar of this name in an optimizer of this class."""
    return _first(_USERS, kind, key) if _USERS else None


def by_table(kind: type, key: str, group: Group) -> bool:
    """Does the table say that an optimizer of this class keeps its scalar of this name on the CPU?"""
    rule = _first(_TABLE, kind, key)
    return rule is not None and rule(group) == "cpu"


def _first(rules: Mapping[tuple[type, str], Rule], kind: type, key: str) -> Rule | None:
    return next((rules[base, key] for base in kind.__mro__ if (base, key) in rules), None)


def is_rng_state(slot: Slot) -> bool:
    """The state of a random number generator: bytes that torch takes back from the CPU only."""
    if slot.tensor.dtype is not torch.uint8 or slot.tensor.dim() != 1:
        return False
    return slot.nbytes == _RNG_STATE_BYTES or any("rng" in name.lower() for name in slot.path.names())
