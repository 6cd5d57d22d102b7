"""Programs that make a library's objects when they are imported, on a machine without the device."""

from __future__ import annotations

import importlib.util
import sys

import pytest

import torchmove as tm

pytestmark = pytest.mark.filterwarnings("ignore")

HEAD = """import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
"""
RIGHT = {
    "torchmetrics": """
from torchmetrics import MetricCollection
from torchmetrics.regression import MeanSquaredError, R2Score
model = nn.Linear(4, 1).to(device)
metric = MeanSquaredError().to(device)
several = MetricCollection([R2Score(), MeanSquaredError()]).to(device)

def step():
    x = torch.randn(5, 4, device=device)
    metric.update(model(x), x[:, :1])
    several.update(model(x), x[:, :1])
    return metric.compute(), several.compute()
""",
    "stable_baselines3": """
import gymnasium
from stable_baselines3 import PPO
agent = PPO("MlpPolicy", gymnasium.make("CartPole-v1"), n_steps=8, batch_size=4, n_epochs=1)

def step():
    agent.learn(8)
""",
    "lightning": """
import lightning
fabric = lightning.Fabric(accelerator="auto", devices=1)
model = nn.Linear(4, 1)
model, optimizer = fabric.setup(model, torch.optim.Adam(model.parameters()))

def step():
    fabric.backward(model(torch.randn(3, 4).to(fabric.device)).sum())
    optimizer.step()
""",
    "accelerate": """
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
accelerator = Accelerator()
model = nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters())
loader = DataLoader(TensorDataset(torch.randn(6, 4)), batch_size=3)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

def step():
    for (x,) in loader:
        accelerator.backward(model(x).sum())
        optimizer.step()
""",
    "gpytorch": """
import gpytorch

class Process(gpytorch.models.ExactGP):
    def __init__(self, x, y, likelihood):
        super().__init__(x, y, likelihood)
        self.mean, self.kernel = gpytorch.means.ConstantMean(), gpytorch.kernels.RBFKernel()

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

x, y = torch.linspace(0, 1, 6), torch.zeros(6)
model = Process(x, y, gpytorch.likelihoods.GaussianLikelihood()).to(device)

def step():
    model.train()
    (-gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)(model(x.to(device)), y.to(device))).backward()
""",
}
WRONG = {
    "torchmetrics": """
from torchmetrics.regression import MeanSquaredError
metric = MeanSquaredError()

def step():
    x = torch.randn(5, 4, device=device)
    metric.update(x, x)
""",
    "accelerate": """
from accelerate import Accelerator
from accelerate.utils import send_to_device
accelerator = Accelerator()
model = accelerator.prepare(nn.Linear(4, 1))

def step():
    rows = send_to_device({"x": torch.randn(3, 4, device=device)}, "cpu")
    model(rows["x"])
""",
}
KINDS = {"torchmetrics": "loss", "accelerate": "hard-coded"}


def step_of(tmp_path, library, text):
    pytest.importorskip(library)
    name = f"made_at_import_{library}_{tmp_path.name}".replace("-", "_")
    path = tmp_path / f"{name}.py"
    path.write_text(HEAD + text)
    spec = importlib.util.spec_from_file_location(name, path)
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.step


@pytest.mark.parametrize("library", RIGHT)
def test_what_a_library_moved_at_import_is_there(tmp_path, library):
    found = tm.rehearse(step_of(tmp_path, library, RIGHT[library]))
    assert found.ok, str(found)


@pytest.mark.parametrize("library", WRONG)
def test_what_stayed_behind_is_found(tmp_path, library):
    found = tm.rehearse(step_of(tmp_path, library, WRONG[library]))
    assert [each.kind for each in found.failing] == [KINDS[library]], str(found)
