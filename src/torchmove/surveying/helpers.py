"""Rules for objects other than optimizers: which attributes stay on the CPU, follow the parameters, or are datasets.

The tables list classes whose libraries compute on the CPU with some tensors and leave them there. `register_rule` adds
rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

Place = Literal["cpu", "parameter", "data"]
HelperRule = Callable[[Any], Place]

# Where objects keep their attributes; `*` stands for all without a row. "cpu": the library computes there and leaves
# the tensors there. "data": a dataset, from which each step sends batches to the device. A class may be named as
# "module:name", so that a class that is not imported costs no import.
HELPERS: dict[type | str, dict[str, Place | HelperRule]] = {
    # A dataset may be any object with a length and items, even a plain list.
    "transformers.trainer:Trainer": {"train_dataset": "data", "eval_dataset": "data"},
    "lightning.pytorch.trainer.connectors.data_connector:_DataLoaderSource": {"instance": "data"},
    "pytorch_lightning.trainer.connectors.data_connector:_DataLoaderSource": {"instance": "data"},
}


def _once_set(attribute: str) -> HelperRule:
    """The rule for diffusers' noise schedulers.

    What the constructor makes is on the CPU; what `set_timesteps(device=)` and later steps make is on the device.
    """

    def place(scheduler: Any) -> Place:
        return "cpu" if vars(scheduler).get(attribute) is None else "parameter"

    return place


_SCHEDULERS = "diffusers.schedulers.scheduling_"
# Made by the constructor, or copied to the CPU again by `set_timesteps`, which uses numpy.
_TABLES = (
    *("alphas", "alphas_cumprod", "betas", "final_alpha_cumprod", "initial_alpha_cumprod", "_init_alpha_cumprod"),
    *("alpha_t", "sigma_t", "lambda_t", "one", "sigmas", "discrete_sigmas"),
)
_set = _once_set("num_inference_steps")
HELPERS[_SCHEDULERS + "utils:SchedulerMixin"] = {"*": _set, **dict.fromkeys(_TABLES, "cpu")}
_timed = _once_set("timesteps")  # these do not store the number of steps
_by_stage: dict[str, Place | HelperRule] = {"sigmas": _set, "sigmas_per_stage": "cpu", "timesteps_per_stage": "cpu"}
_OF_SCHEDULERS: dict[str, dict[str, Place | HelperRule]] = {
    "amused:AmusedScheduler": {"*": _timed},
    "consistency_decoder:ConsistencyDecoderScheduler": {"*": _timed},
    "ddpm_wuerstchen:DDPMWuerstchenScheduler": {"*": _timed, "s": "cpu"},
    "dpmsolver_sde:DPMSolverSDEScheduler": {"mid_point_sigma": "cpu"},
    "flow_map_euler_discrete:FlowMapEulerDiscreteScheduler": {"sigmas": _set},
    "flow_match_euler_discrete:FlowMatchEulerDiscreteScheduler": {"sigmas": _set},
    "flow_match_heun_discrete:FlowMatchHeunDiscreteScheduler": {"sigmas": _set},
    "flow_match_lcm:FlowMatchLCMScheduler": {"sigmas": _set},
    "helios:HeliosScheduler": _by_stage,
    "helios_dmd:HeliosDMDScheduler": _by_stage,
    "heun_discrete:HeunDiscreteScheduler": {"dt": "cpu"},
    "ltx_euler_ancestral_rf:LTXEulerAncestralRFScheduler": {"sigmas": _set},
    "minimax_h3:MiniMaxH3Scheduler": {"sigmas": _set},
    "piflow:PiflowScheduler": {"sigmas": _set},
    "rfd4_proteina:RFD4ProteinaScheduler": {"*": _timed, "_times": "cpu", "_noise": "cpu"},
    "sde_ve:ScoreSdeVeScheduler": {"*": _timed},
}
HELPERS.update((_SCHEDULERS + name, places) for name, places in _OF_SCHEDULERS.items())
HELPERS["diffusers.schedulers.deprecated.scheduling_sde_vp:ScoreSdeVpScheduler"] = {"*": _timed}


def places_of(kind: type) -> Mapping[str, Place | HelperRule]:
    """The rules for the attributes of a class, including those of its base classes."""
    found: dict[str, Place | HelperRule] = {}
    for base in reversed(kind.__mro__):
        found |= HELPERS.get(f"{base.__module__}:{base.__qualname__}", {})
        found |= HELPERS.get(base, {})
    return found
