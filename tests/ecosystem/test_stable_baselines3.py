"""stable-baselines3: every algorithm in mid-training, given as it is. It learns on as if it had stayed where it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from laws import bits
from lives import Life, goes_on, library
from torch import Tensor

import torchmove as tm

sb3 = library("stable_baselines3")
gymnasium = library("gymnasium")
ON_POLICY = {"n_steps": 16, "batch_size": 8, "n_epochs": 2}
OFF_POLICY = {"learning_starts": 8, "batch_size": 8, "train_freq": 4, "buffer_size": 64}
ALGORITHMS: dict[str, tuple[str, dict[str, Any]]] = {
    "PPO": ("continuous", ON_POLICY),
    "A2C": ("discrete", {"n_steps": 8}),
    "SAC": ("continuous", {**OFF_POLICY, "use_sde": True}),
    "DQN": ("discrete", {**OFF_POLICY, "target_update_interval": 8}),
    "DDPG": ("continuous", OFF_POLICY),
    "TD3": ("continuous", {**OFF_POLICY, "policy_delay": 2}),
}


class Walk(gymnasium.Env):
    """Deterministic, with three numbers to be seen."""

    observation_space = gymnasium.spaces.Box(-10, 10, (3,), np.float32)

    def __init__(self, kind: str) -> None:
        box = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
        self.action_space = box if kind == "continuous" else gymnasium.spaces.Discrete(2)
        self.steps = 0

    def seen(self) -> Any:
        return np.array([self.steps % 3, self.steps / 10, 1], dtype=np.float32)

    def reset(self, **_: Any) -> Any:
        self.steps = 0
        return self.seen(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self.seen(), float(np.sum(action)) - 0.5, self.steps >= 10, False, {}


def test_every_algorithm_is_here():
    bases = sb3.common.base_class.BaseAlgorithm
    assert {name for name, each in vars(sb3).items() if isinstance(each, type) and issubclass(each, bases)} == {
        *ALGORITHMS
    }


def made(name: str) -> Any:
    kind, named = ALGORITHMS[name]
    small = {"net_arch": [8]}
    return getattr(sb3, name)("MlpPolicy", Walk(kind), device="cpu", seed=0, policy_kwargs=small, **named)


def tensors_of(model: Any) -> dict[str, Tensor]:
    found = dict(model.policy.state_dict(keep_vars=True))
    optimizers = [model.policy.optimizer] if hasattr(model.policy, "optimizer") else []
    optimizers += [
        each.optimizer for each in (model.policy.__dict__.get("_modules") or {}).values() if hasattr(each, "optimizer")
    ]
    for number, optimizer in enumerate(optimizers):
        for index, state in enumerate(optimizer.state.values()):
            found |= {f"{number} {index} {key}": value for key, value in state.items() if value.dim()}
    if getattr(model, "log_ent_coef", None) is not None:
        found["log_ent_coef"] = model.log_ent_coef
    return found


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_learns_on(name, route):
    def make() -> Life:
        model = made(name).learn(16)

        def live() -> Any:
            np.random.seed(1)
            model.learn(40, reset_num_timesteps=False)
            return model.predict(np.ones(3, dtype=np.float32), deterministic=True)[0].tolist()

        return Life((model,), lambda: tensors_of(model), live)

    def says_so(life: Life, device: torch.device) -> None:
        model = life.objects[0]
        buffers = [getattr(model, each) for each in ("rollout_buffer", "replay_buffer") if hasattr(model, each)]
        assert {each.device for each in (model, model.policy, *buffers)} == {device}

    goes_on(make, route, says_so)


def test_noise_that_depends_on_the_state_is_refused_until_the_first_training(twin):
    model = made("SAC")
    assert {each.code for each in tm.plan(model, to="twin:0").refusals} == {"R032", "R033"}
    model.learn(16)
    tm.move(model, to="twin:0")
    assert model.learn(40).device == torch.device("twin:0")


@pytest.mark.parametrize("name", ALGORITHMS)
def test_to_of_the_policy_leaves_the_algorithm_behind(name, twin):
    native, moved = (made(name).learn(40) for _ in range(2))  # the seed is set by the making
    native.policy.to("twin:0")
    assert native.device.type == "cpu"
    tm.move(moved, to="twin:0")
    assert moved.device == torch.device("twin:0")
    ours, theirs = dict(moved.policy.state_dict()), dict(native.policy.state_dict())
    assert {path: (each.device, bits(each)) for path, each in ours.items()} == {
        path: (each.device, bits(each)) for path, each in theirs.items()
    }
    moved.learn(40, reset_num_timesteps=False)
