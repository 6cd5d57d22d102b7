"""torchrl: every loss that takes an actor, a value or a Q network, in training; target networks; replay buffers."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from lives import Life, goes_on, library, state_of
from torch import Tensor, nn

import torchmove as tm

tensordict = library("tensordict")
torchrl = library("torchrl")
objectives = library("torchrl.objectives")
modules = library("torchrl.modules")
data = library("torchrl.data")
nets = library("tensordict.nn")
SEEN, DONE, BATCH, HORIZON = 4, 3, 6, 5


@pytest.fixture(autouse=True)
def _as_torchrl_sets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It switches validation off when it is imported, and another library on again."""
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", False)


def actor(kind: str) -> Any:
    """Of each kind that losses want: drawn from a distribution, decided, or by the values of actions."""
    keys = ["observation"]
    if kind == "decided":
        return modules.Actor(nn.Sequential(nn.Linear(SEEN, DONE), nn.Tanh()), in_keys=keys)
    if kind == "categorical":
        spec = data.OneHot(DONE)
        logits = nets.TensorDictModule(nn.Linear(SEEN, DONE), in_keys=keys, out_keys=["logits"])
        drawn = torch.distributions.OneHotCategorical
        return modules.ProbabilisticActor(
            logits, in_keys=["logits"], distribution_class=drawn, return_log_prob=True, spec=spec
        )
    if kind == "values":
        return modules.QValueActor(nn.Linear(SEEN, DONE), in_keys=keys, spec=data.OneHot(DONE), action_space="one-hot")
    net = nn.Sequential(nn.Linear(SEEN, 2 * DONE), nets.NormalParamExtractor())
    inner = nets.TensorDictModule(net, in_keys=keys, out_keys=["loc", "scale"])
    named = {"distribution_class": modules.TanhNormal, "return_log_prob": True, "spec": data.Bounded(-1, 1, (DONE,))}
    return modules.ProbabilisticActor(inner, in_keys=["loc", "scale"], **named)


class Judge(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(SEEN + DONE, 1)

    def forward(self, seen: Tensor, done: Tensor) -> Tensor:
        return self.net(torch.cat([seen, done], -1))  # type: ignore[no-any-return]


def judge() -> Any:
    return modules.ValueOperator(Judge(), in_keys=["observation", "action"])


def judge_of_all() -> Any:
    return nets.TensorDictModule(nn.Linear(SEEN, DONE), in_keys=["observation"], out_keys=["action_value"])


def value() -> Any:
    return modules.ValueOperator(nn.Linear(SEEN, 1), in_keys=["observation"])


SPEC = data.Bounded(-1, 1, (DONE,))
LOSSES: dict[str, Any] = {
    "A2CLoss": lambda of: of(actor("drawn"), value()),
    "BCLoss": lambda of: of(actor("drawn")),
    "ClipPPOLoss": lambda of: of(actor("drawn"), value()),
    "CQLLoss": lambda of: of(actor("drawn"), judge(), action_spec=SPEC),
    "CrossQLoss": lambda of: of(actor("drawn"), judge(), num_qvalue_nets=2),
    "DDPGLoss": lambda of: of(actor("decided"), judge()),
    "DQNLoss": lambda of: of(actor("values"), action_space="one-hot", delay_value=True),
    "DiscreteCQLLoss": lambda of: of(actor("values"), action_space="one-hot"),
    "DiscreteSACLoss": lambda of: of(actor("categorical"), judge_of_all(), num_actions=DONE, action_space="one-hot"),
    "IQLLoss": lambda of: of(actor("drawn"), judge(), value_network=value()),
    "KLPENPPOLoss": lambda of: of(actor("drawn"), value()),
    "PPOLoss": lambda of: of(actor("drawn"), value()),
    "REDQLoss": lambda of: of(actor("drawn"), judge(), num_qvalue_nets=4, sub_sample_len=2),
    "ReinforceLoss": lambda of: of(actor("drawn"), value()),
    "SACLoss": lambda of: of(actor("drawn"), judge(), num_qvalue_nets=2),
    "TD3BCLoss": lambda of: of(actor("decided"), judge(), bounds=(-1, 1)),
    "TD3Loss": lambda of: of(actor("decided"), judge(), bounds=(-1, 1)),
}
# They want networks of their own kind: world models, transformers, several agents, a discriminator, a teacher.
OTHERS = {"ACTLoss", "DTLoss", "OnlineDTLoss", "DiffusionBCLoss", "DistributionalDQNLoss", "GAILLoss", "IPPOLoss"}
OTHERS |= {
    "MAPPOLoss",
    "QMixerLoss",
    "ExponentialQuadraticCost",
    "RNDLoss",
    "WorldModelLoss",
    "TQCLoss",
    "DiscreteIQLLoss",
}


def test_every_loss_is_here_or_wants_a_network_of_its_own_kind():
    base = objectives.LossModule
    known = {name for name, each in vars(objectives).items() if inspect.isclass(each) and issubclass(each, base)}
    assert {name for name in known - LOSSES.keys() - OTHERS if not name.startswith("Dreamer")} == {"LossModule"}


def batch(device: torch.device, discrete: bool) -> Any:
    done = torch.rand(BATCH, HORIZON, DONE) * 1.6 - 0.8
    if discrete:
        done = torch.nn.functional.one_hot(done.argmax(-1), DONE).float()
    ends = torch.zeros(BATCH, HORIZON, 1, dtype=torch.bool)
    after = {"observation": torch.randn(BATCH, HORIZON, SEEN), "reward": torch.randn(BATCH, HORIZON, 1)}
    found = tensordict.TensorDict(
        {
            "observation": torch.randn(BATCH, HORIZON, SEEN),
            "action": done.long() if discrete else done,
            "action_log_prob": torch.randn(BATCH, HORIZON),
            "loc": torch.zeros(BATCH, HORIZON, DONE),
            "scale": torch.ones(BATCH, HORIZON, DONE),
            "next": {**after, "done": ends, "terminated": ends.clone()},
        },
        [BATCH, HORIZON],
    )
    return found.to(device)


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_trains_on(name, cpu_route):
    def make() -> Life:
        loss = LOSSES[name](getattr(objectives, name))
        if hasattr(loss, "make_value_estimator") and name != "BCLoss":
            loss.make_value_estimator()
        delayed = getattr(loss, "target_params", None) is not None or any(
            "target" in n for n, _ in loss.named_buffers()
        )
        updater = objectives.SoftUpdate(loss, eps=0.9) if delayed and name != "CrossQLoss" else None
        optimizer = torch.optim.Adam([each for each in loss.parameters() if each.requires_grad], lr=1e-2)
        discrete = name in ("DQNLoss", "DiscreteCQLLoss", "DiscreteSACLoss")

        def live() -> Any:
            optimizer.zero_grad()
            given = batch(next(loss.parameters()).device, discrete)
            found = loss(given)
            total = sum(each for key, each in found.items() if key.startswith("loss"))
            total.backward()
            optimizer.step()
            if updater is not None:
                updater.step()
            return {key: each.detach() for key, each in found.items() if key.startswith("loss")}

        return Life(
            (loss, optimizer, updater),
            lambda: dict([*loss.named_parameters(), *loss.named_buffers()]) | state_of(optimizer),
            live,
            lambda: state_of(optimizer, steps=True),
        )

    goes_on(make, cpu_route)


BUFFERS = {
    "list": lambda: data.ReplayBuffer(storage=data.ListStorage(16), batch_size=4),
    "tensors": lambda: data.TensorDictReplayBuffer(storage=data.LazyTensorStorage(16), batch_size=4),
}


@pytest.mark.parametrize("name", BUFFERS)
def test_a_replay_buffer_that_is_given_goes_along_and_samples_on(name, route):
    def make() -> Life:
        buffer = BUFFERS[name]()
        filled: list[bool] = []

        def device() -> torch.device:
            return route.home

        def live() -> Any:
            rows = tensordict.TensorDict({"seen": torch.randn(8, 3), "reward": torch.randn(8)}, [8])
            buffer.extend(rows.to(device()))
            filled.append(True)
            found = buffer.sample()
            return [found["seen"], found["reward"]]

        def tensors() -> dict[str, Tensor]:
            if not filled:
                return {}
            return {"seen": buffer[:]["seen"]} if name == "list" else dict(buffer.storage._storage.items())

        return Life((buffer,), dict if name == "list" else tensors, live)

    goes_on(make, route)


def test_a_replay_buffer_that_is_not_given_stays(twin):
    """It feeds a training by batches, and where it lies is for its owner to say."""
    buffer = BUFFERS["tensors"]()
    buffer.extend(tensordict.TensorDict({"seen": torch.randn(8, 3)}, [8]))
    loss = LOSSES["SACLoss"](objectives.SACLoss)
    tm.move(loss, to="twin:0")
    assert buffer.storage._storage["seen"].device.type == "cpu"
    tm.move(loss, buffer, to="cpu", keep=[buffer])
