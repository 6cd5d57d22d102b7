"""diffusers: every scheduler there is, in the middle of a sampling.

What `set_timesteps(device=)` and the steps after it make is on the device, what the constructor makes is on the CPU,
and each scheduler decides which of its tensors are which. The library itself is asked: a sampling that began on the
device says where a sampling that moved there has to have each tensor.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from lives import Life, goes_on, library
from torch import Tensor

import torchmove as tm
from torchmove.internals.stored import attributes

diffusers = library("diffusers")
library("torchsde")  # two of the schedulers want it
SHAPE, TOKENS, WORDS = (2, 4, 8, 8), (2, 16), 12


def classes() -> Iterator[Any]:
    """Every class of scheduler, of the old ones too."""
    for package in ("diffusers.schedulers", "diffusers.schedulers.deprecated"):
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__, package + "."):
            importlib.import_module(module.name)
    todo = [importlib.import_module("diffusers.schedulers.scheduling_utils").SchedulerMixin]
    while todo:
        for each in todo.pop().__subclasses__():
            if each.__module__.startswith("diffusers.schedulers"):
                yield each
            todo.append(each)


SCHEDULERS = {each.__name__: each for each in sorted(classes(), key=lambda each: each.__name__)}

# What a constructor, `set_timesteps` and a step want beside the defaults, where they want something.
MADE_WITH: dict[str, dict[str, Any]] = {
    "AmusedScheduler": {"mask_token_id": WORDS - 1},
    "RFD4ProteinaScheduler": {"schedule_mode": "log", "noise_mode": "1/t", "tsr_k": 1.0, "tsr_sigma": 1.0},
    "VQDiffusionScheduler": {"num_vec_classes": WORDS},
}
SET_WITH: dict[str, dict[str, Any]] = {
    "ConsistencyDecoderScheduler": {"num_inference_steps": 2},
    "HeliosScheduler": {"stage_index": 0},
    "HeliosDMDScheduler": {"stage_index": 0},
    "BlockRefinementScheduler": {"block_length": TOKENS[1]},
    "RePaintScheduler": {"jump_length": 2, "jump_n_sample": 2},
    "RFD4ProteinaScheduler": {"num_inference_steps": 40},
    "SCMScheduler": {"num_inference_steps": 2},
}
STEPS = 12


def noise_like(sample: Tensor) -> Tensor:
    """From the CPU's generator, whatever device the sample is on."""
    return torch.randn(sample.shape, dtype=torch.float32).to(sample.device)


def of_tokens(scheduler: Any, step: int, time: Any, sample: Tensor) -> Any:
    logits = torch.randn(*sample.shape, WORDS).to(sample.device)
    named = {"mask_token_id": WORDS - 1} if "mask_token_id" in inspect.signature(scheduler.step).parameters else {}
    return scheduler.step(logits, time, sample, **named)


def of_amused(scheduler: Any, step: int, time: Any, sample: Tensor) -> Any:
    return scheduler.step(torch.randn(*sample.shape, WORDS).to(sample.device), time, sample)


def of_classes(scheduler: Any, step: int, time: Any, sample: Tensor) -> Any:
    logits = torch.randn(sample.shape[0], WORDS - 1, sample.shape[1]).log_softmax(1).to(sample.device)
    return scheduler.step(logits, time, sample)


def of_cogvideox(scheduler: Any, step: int, time: Any, sample: Tensor) -> Any:
    before = scheduler.timesteps[step - 1] if step else None
    return scheduler.step(noise_like(sample), noise_like(sample) if step else None, time, before, sample)


def of_wuerstchen(scheduler: Any, step: int, time: Any, sample: Tensor) -> Any:
    return scheduler.step(noise_like(sample), time.expand(sample.shape[0]), sample)


def of_piflow(scheduler: Any, step: int, time: Any, sample: Tensor) -> Any:
    wide = torch.randn(*sample.shape[:-1], sample.shape[-1] * scheduler.config.n_grid)
    return scheduler.step(wide.to(sample.device), time, sample)


def of_repaint(scheduler: Any, step: int, time: Any, sample: Tensor) -> Any:
    return scheduler.step(noise_like(sample), time, sample, noise_like(sample), torch.ones_like(sample))


def of_proteins(scheduler: Any, step: int, time: Any, sample: Tensor) -> Any:
    return scheduler.step(
        noise_like(sample), time, sample, torch.ones(sample.shape[:2], dtype=torch.bool).to(time.device)
    )


def of_sde_ve(scheduler: Any, step: int, time: Any, sample: Tensor) -> Any:
    if not step:
        scheduler.set_sigmas(STEPS)
    return scheduler.step_pred(noise_like(sample), time, scheduler.step_correct(noise_like(sample), sample).prev_sample)


def of_sde_vp(scheduler: Any, step: int, time: Any, sample: Tensor) -> Any:
    return scheduler.step_pred(noise_like(sample), sample, time.expand(sample.shape[0]))


def of_karras_ve(scheduler: Any, step: int, time: Any, sample: Tensor) -> Any:
    sigma, after = scheduler.schedule[int(time)], scheduler.schedule[int(time) - 1]
    return scheduler.step(noise_like(sample), sigma, after, sample)


def of_helios_dmd(scheduler: Any, step: int, time: Any, sample: Tensor) -> Any:
    return scheduler.step(
        noise_like(sample),
        time,
        sample,
        cur_sampling_step=step,
        dmd_noisy_tensor=noise_like(sample),
        dmd_sigmas=scheduler.sigmas,
        dmd_timesteps=scheduler.timesteps,
        all_timesteps=scheduler.timesteps,
    )


def of_most(scheduler: Any, step: int, time: Any, sample: Tensor) -> Any:
    return scheduler.step(noise_like(sample), time, scheduler.scale_model_input(sample, time) if step < 0 else sample)


STEPPERS: dict[str, Callable[[Any, int, Any, Tensor], Any]] = {
    "AmusedScheduler": of_amused,
    "BlockRefinementScheduler": of_tokens,
    "CogVideoXDPMScheduler": of_cogvideox,
    "DDPMWuerstchenScheduler": of_wuerstchen,
    "DiscreteDDIMScheduler": of_tokens,
    "EntropyBoundScheduler": of_tokens,
    "HeliosDMDScheduler": of_helios_dmd,
    "KarrasVeScheduler": of_karras_ve,
    "PiflowScheduler": of_piflow,
    "RFD4ProteinaScheduler": of_proteins,
    "RePaintScheduler": of_repaint,
    "ScoreSdeVeScheduler": of_sde_ve,
    "ScoreSdeVpScheduler": of_sde_vp,
    "VQDiffusionScheduler": of_classes,
}


class Sampling:
    """A scheduler and a sample, in a training class of a user's."""

    def __init__(self, name: str) -> None:
        self.name, self.step = name, 0
        self.scheduler = SCHEDULERS[name](**MADE_WITH.get(name, {}))
        self.sample = torch.randn(SHAPE)
        if name == "RFD4ProteinaScheduler":
            self.sample = torch.randn(2, 5, 3)
        elif name in ("AmusedScheduler", "VQDiffusionScheduler") or STEPPERS.get(name) is of_tokens:
            self.sample = torch.full(TOKENS, WORDS - 1)

    def begin(self) -> None:
        named = {"num_inference_steps": STEPS, **SET_WITH.get(self.name, {})}
        self.scheduler.set_timesteps(device=self.sample.device, **named)
        self.step = 0

    def go_on(self, steps: int) -> Tensor:
        for _ in range(steps):
            stepper = STEPPERS.get(self.name, of_most)
            found = stepper(self.scheduler, self.step, self.scheduler.timesteps[self.step], self.sample)
            sample = getattr(found, "prev_sample", found)
            self.sample = sample[0] if isinstance(sample, tuple) else sample
            self.step += 1
        return self.sample


def stored(value: Any, name: str = "scheduler", seen: frozenset[int] = frozenset()) -> dict[str, Tensor]:
    """Every tensor in a scheduler, by its path; also in what it holds."""
    if isinstance(value, Tensor):
        return {name: value}
    if id(value) in seen:
        return {}
    inside: dict[str, Any] = {}
    if isinstance(value, dict):
        inside = {key if isinstance(key, str) else str(index): each for index, (key, each) in enumerate(value.items())}
    elif isinstance(value, (list, tuple)):
        inside = {str(index): each for index, each in enumerate(value)}
    elif type(value).__module__.startswith(("diffusers", "torchsde")):
        inside = dict(attributes(value))
    seen |= {id(value)}
    return {path: found for key, each in inside.items() for path, found in stored(each, f"{name}.{key}", seen).items()}


def places(scheduler: Any) -> dict[str, torch.device]:
    return {path: tensor.device for path, tensor in stored(scheduler).items()}


def sampled(name: str, device: str) -> Sampling:
    """That began where it is."""
    torch.manual_seed(0)
    sampling = Sampling(name)
    sampling.sample = sampling.sample.to(device)
    sampling.begin()
    sampling.go_on(1 if name in ("ConsistencyDecoderScheduler", "SCMScheduler") else 3)
    return sampling


def to_be_on_device(name: str, began: str = "cpu") -> set[str]:
    """What is there if the sampling began there; and what shares memory with that, if it began on the CPU."""
    there = {path for path, device in places(sampled(name, "twin:0").scheduler).items() if device.type == "twin"}
    if began != "cpu":
        return there
    memory = {path: each.untyped_storage()._cdata for path, each in stored(sampled(name, "cpu").scheduler).items()}
    assert there <= memory.keys()
    shared = {memory[path] for path in there}
    return {path for path, storage in memory.items() if storage in shared}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_in_mid_sampling_each_tensor_is_where_the_library_would_have_it(name, twin):
    moved = sampled(name, "cpu")
    tm.move(moved, to="twin:0")
    on_device = {path for path, device in places(moved.scheduler).items() if device == torch.device("twin:0")}
    assert on_device == to_be_on_device(name)
    assert moved.sample.device == torch.device("twin:0")


@pytest.mark.parametrize("name", SCHEDULERS)
def test_before_a_sampling_a_scheduler_is_as_it_was_made(name, twin, monkeypatch):
    """Some constructors set the timesteps themselves, on the CPU: those follow, and the next sampling sets its own."""
    set_by_constructor = []
    monkeypatch.setattr(SCHEDULERS[name], "set_timesteps", noted(SCHEDULERS[name].set_timesteps, set_by_constructor))
    sampling = Sampling(name)
    before = places(sampling.scheduler)
    was_set = bool(set_by_constructor) or vars(sampling.scheduler).get("num_inference_steps") is not None
    tm.move(sampling, to="twin:0")
    assert was_set or places(sampling.scheduler) == before
    sampling.begin()
    assert sampling.go_on(1).device == torch.device("twin:0")


def noted(method: Callable[..., Any], calls: list[Any]) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **named: Any) -> Any:
        calls.append(self)
        return method(self, *args, **named)

    return functools.wraps(method)(call)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_sampling_goes_on(name, route):
    on_device = to_be_on_device(name, route.home.type)

    def make() -> Life:
        sampling = Sampling(name)
        few = name in ("ConsistencyDecoderScheduler", "SCMScheduler")
        calls = iter(range(2))

        def live() -> Tensor:
            if next(calls):
                sampling.go_on(1)  # from where it was
                sampling.begin()
            else:
                sampling.begin()
            return sampling.go_on(1 if few else 3).clone()

        def tensors(on: bool) -> dict[str, Tensor]:
            return {path: each for path, each in stored(sampling.scheduler).items() if (path in on_device) is on}

        return Life((sampling,), lambda: {**tensors(True), "sample": sampling.sample}, live, lambda: tensors(False))

    goes_on(make, route)
