"""Objects of libraries: where they store tensors, and which of these stay on the CPU or are datasets.

Classes are named by strings, so that no library is imported. A row of `TABLE` is the reader of a class; a row of
`BESIDES` runs after the reader that the class inherits; a row of `HELPERS` says where the attributes of objects other
than optimizers belong. Some libraries compute on the CPU with some tensors and leave them there. `register_rule` adds
rows to `HELPERS`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch

from torchmove.internals.stored import attributes
from torchmove.surveying.paths import ATTRIBUTE, ITEM, Child, Diagnostic, Reader

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
# The best values so far begin as infinity on the CPU, and are compared with values of the device.
for _package in ("lightning.pytorch", "pytorch_lightning"):
    HELPERS[f"{_package}.callbacks.early_stopping:EarlyStopping"] = {"best_score": "cpu"}
    HELPERS[f"{_package}.callbacks.model_checkpoint:ModelCheckpoint"] = {"kth_value": "cpu"}


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


def read_moving_average(average: Any) -> Iterator[Child]:
    """torch-ema stores parameters with the graph of their copying and never releases it; nothing runs it backward."""
    for name, value in attributes(average):
        yield Child(ATTRIBUTE, name, value, "computed" if name == "collected_params" else None)


# ---------------------------------------------------------------- additional readers


def other_state_of_accelerate(_: Any) -> Iterator[Child]:
    """The second place where accelerate stores the device: the shared state of PartialState."""
    yield Child(ITEM, "PartialState", vars(sys.modules["accelerate.state"].PartialState)["_shared_state"])


def memory_elsewhere(tensors: Any) -> Iterator[Diagnostic]:
    """A memory-mapped TensorDict, or one in shared memory."""
    for name, value in attributes(tensors):
        if name in _ELSEWHERE and value:
            yield Diagnostic("R035", _ELSEWHERE[name], "td = td.clone(), or keep= it")


_ELSEWHERE = {
    "_is_memmap": "memory-mapped: after a move, writes to it would no longer reach its file",
    "_is_shared": "in shared memory: after a move, writes to it would no longer reach other processes",
}


def paged_state(optimizer: Any) -> Iterator[Diagnostic]:
    """The paged state of bitsandbytes' paged optimizers. On the CPU, and for small parameters, it is not paged."""
    states = (value for state in optimizer.state.values() for value in state.values())
    if optimizer.is_paged and any(getattr(value, "is_paged", False) for value in states):
        yield Diagnostic(
            "R029",
            "a paged optimizer: the CUDA driver moves the paged_state of its state between host and device",
            "make the optimizer of the same kind that is not paged, load_state_dict(paged.state_dict()), move that",
        )


def weight_format(module: Any) -> Iterator[Diagnostic]:
    """The forms of bitsandbytes' weights that only one device can read, or that are not quantized yet."""
    weight = module._parameters["weight"]
    if not type(weight).__module__.startswith("bitsandbytes"):  # replaced by an ordinary parameter
        return
    stored = vars(weight)
    if getattr(stored.get("quant_state"), "packing_format_for_cpu", False):
        yield Diagnostic(
            "R036",
            "packed for the CPU kernels by a forward in eval mode: other devices cannot read this format",
            "call model.state_dict(), which unpacks it in place",
        )
    small = stored.get("bnb_quantized", stored.get("has_fp16_weights") or weight.dtype is torch.int8)
    if not small:
        yield Diagnostic(
            "R037",
            "not quantized yet: the first .to() of its module quantizes it, which tm.move does not call",
            "call model.to(device) once; after that tm.move can move it",
        )


def offloaded_groups(_: Any) -> Iterator[Diagnostic]:
    """diffusers' group offloading keeps copies of the weights, and copies them to and from the device on every call."""
    yield Diagnostic(
        "R024",
        "diffusers' group offloading copies these weights to and from the device on every call",
        'HookRegistry.check_if_exists_or_initialize(model).remove_hook("group_offloading"), from diffusers.hooks',
    )


TABLE: dict[type | str, Reader] = {"torch_ema.ema:ExponentialMovingAverage": read_moving_average}

BESIDES: dict[str, Reader] = {
    "accelerate.state:AcceleratorState": other_state_of_accelerate,
    "bitsandbytes.optim.optimizer:Optimizer8bit": paged_state,
    "diffusers.hooks.group_offloading:ModuleGroup": offloaded_groups,
    "bitsandbytes.nn.modules:Linear4bit": weight_format,
    "bitsandbytes.nn.modules:Embedding4bit": weight_format,
    "bitsandbytes.nn.modules:Linear8bitLt": weight_format,
    "bitsandbytes.nn.modules:Embedding8bit": weight_format,
    "tensordict._td:TensorDict": memory_elsewhere,
    "tensordict._lazy:LazyStackedTensorDict": memory_elsewhere,
}
