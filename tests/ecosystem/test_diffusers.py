"""diffusers: pipelines of many families beside `pipeline.to()`, and called where they are; averages of weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from laws import bits
from lives import Life, goes_on, library, registered, state_of, told, trained
from torch import Tensor, nn

import torchmove as tm

diffusers = library("diffusers")
library("transformers")
library("diffusers.training_utils")
tiny_pipelines = library("tiny_pipelines")


def made(name: str) -> tuple[Any, dict[str, Any]]:
    torch.manual_seed(0)
    pipeline, called = tiny_pipelines.PIPELINES[name]()
    pipeline.set_progress_bar_config(disable=True)
    for part in modules(pipeline):
        part.eval()
    return pipeline, called


def called(pipeline: Any, named: dict[str, Any]) -> Any:
    """Its first noise is from the CPU's generator, whatever device it is on."""
    return told([torch.from_numpy(each) for each in pipeline(generator=torch.Generator().manual_seed(1), **named)[0]])


def modules(pipeline: Any) -> list[nn.Module]:
    return [part for part in pipeline.components.values() if isinstance(part, nn.Module)]


@pytest.mark.parametrize("name", tiny_pipelines.PIPELINES)
def test_a_pipeline_is_where_to_would_put_it_and_computes_the_same(name, twin):
    (native, named), (moved, _) = made(name), made(name)
    native.to("twin:0")
    tm.move(moved, to="twin:0")
    assert moved.device == native.device == torch.device("twin:0")
    ours, theirs = registered(*modules(moved)), registered(*modules(native))
    assert {path: (each.device, bits(each)) for path, each in ours.items()} == {
        path: (each.device, bits(each)) for path, each in theirs.items()
    }
    assert called(moved, named) == called(native, named)


@pytest.mark.parametrize("name", tiny_pipelines.PIPELINES)
def test_a_pipeline_that_was_called_is_called_again(name, cpu_route):
    def make() -> Life:
        pipeline, named = made(name)
        return Life((pipeline,), lambda: registered(*modules(pipeline)), lambda: called(pipeline, named))

    goes_on(make, cpu_route)


FEATURES: dict[str, Callable[[Any], Any]] = {
    "slices": lambda pipeline: (pipeline.enable_attention_slicing(), pipeline.vae.enable_tiling()),
    "free lunch": lambda pipeline: pipeline.enable_freeu(s1=0.9, s2=0.2, b1=1.2, b2=1.4),
    "fused": lambda pipeline: pipeline.fuse_qkv_projections(),
    "channels last": lambda pipeline: pipeline.unet.to(memory_format=torch.channels_last),
    "small weights": lambda pipeline: pipeline.unet.enable_layerwise_casting(torch.float16, torch.float32),
}


@pytest.mark.parametrize("name", FEATURES)
def test_a_pipeline_with_a_feature_is_called_again(name, cpu_route):
    def make() -> Life:
        pipeline, named = made("stable")
        FEATURES[name](pipeline)
        return Life((pipeline,), lambda: registered(*modules(pipeline)), lambda: called(pipeline, named))

    goes_on(make, cpu_route)


@pytest.mark.parametrize("name", ["enable_model_cpu_offload", "enable_sequential_cpu_offload"])
def test_a_pipeline_whose_weights_travel_by_themselves_is_refused(name, twin):
    pipeline, _ = made("stable")
    getattr(pipeline, name)(device="twin:0")
    assert "R024" in {each.code for each in tm.plan(pipeline, to="twin:0").refusals}


@pytest.mark.parametrize("how", ["leaf_level", "block_level"])
def test_a_model_whose_groups_travel_by_themselves_is_refused_until_they_do_not(how, twin):
    pipeline, named = made("stable")
    cpu = torch.device("cpu")
    blocks = {"num_blocks_per_group": 1} if how == "block_level" else {}
    pipeline.unet.enable_group_offload(onload_device=cpu, offload_device=cpu, offload_type=how, **blocks)
    plan = tm.plan(pipeline, to="twin:0")
    assert {each.code for each in plan.refusals} == {"R024"}
    remedy, _, _ = plan.refusals[0].remedy.partition(", from ")
    exec(remedy, {"model": pipeline.unet, "HookRegistry": library("diffusers.hooks").HookRegistry})
    tm.move(pipeline, to="twin:0")
    assert called(pipeline, named)


def test_an_average_of_diffusers_follows_on(route):
    def make() -> Life:
        model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
        average = diffusers.training_utils.EMAModel(model.parameters(), decay=0.9)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        life = trained(
            model, optimizer, lambda device: model(torch.randn(6, 4).to(device)).square().mean(), None, average
        )
        train, tensors = life.live, life.tensors

        def live() -> Any:
            losses = train()
            average.step(model.parameters())
            average.store(model.parameters())
            return losses

        def with_average() -> dict[str, Tensor]:
            kept = [*average.shadow_params, *(average.temp_stored_params or [])]
            return {**tensors(), **{f"average {index}": each for index, each in enumerate(kept)}}

        life.live, life.tensors = live, with_average
        return life

    goes_on(make, route)


def test_a_training_class_of_a_users_goes_on(route):
    """A model, a schedule that adds noise, an average, an image processor and an optimizer, in one object."""

    class Training:
        def __init__(self) -> None:
            pipeline, _ = made("stable")
            self.unet, self.processor = pipeline.unet, pipeline.image_processor
            self.schedule = diffusers.DDPMScheduler()
            self.average = diffusers.training_utils.EMAModel(self.unet.parameters())
            self.optimizer = torch.optim.AdamW(self.unet.parameters())

        def step(self) -> Any:
            device = next(self.unet.parameters()).device
            pictures, noise = torch.randn(2, 2, 4, 8, 8).to(device)
            times = torch.randint(0, 1000, (2,)).to(device)
            noisy = self.schedule.add_noise(pictures, noise, times)
            loss = (self.unet(noisy, times, torch.randn(2, 7, 32).to(device)).sample - noise).square().mean()
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.average.step(self.unet.parameters())
            return loss.detach()

    def make() -> Life:
        training = Training()
        return Life((training,), lambda: registered(training.unet) | state_of(training.optimizer), training.step)

    goes_on(make, route)
