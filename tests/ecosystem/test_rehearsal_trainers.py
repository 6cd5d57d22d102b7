"""Trainers of libraries, and the user's that derive from them or hold them: made outside of the step, and in it."""

from __future__ import annotations

import importlib.util
import sys

import pytest

import torchmove as tm

pytestmark = pytest.mark.filterwarnings("ignore")

TRANSFORMERS = """
import tempfile
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

class Distilling(Trainer):
    def __init__(self, *args, teacher=None, **kwargs):
        super().__init__(*args, **kwargs)
        self.teacher = teacher
        SEND
        self.prior = torch.zeros(30, PLACE)

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        out = model(**inputs)
        with torch.no_grad():
            target = self.teacher(input_ids=inputs["input_ids"]).logits
        loss = out.loss + nn.functional.mse_loss(out.logits + self.prior, target)
        return (loss, out) if return_outputs else loss

small = GPT2Config(vocab_size=30, n_embd=16, n_layer=1, n_head=2, n_positions=32)

def build():
    rows = [{"input_ids": torch.arange(8), "labels": torch.arange(8)} for _ in range(4)]
    args = TrainingArguments(tempfile.mkdtemp(), max_steps=1, report_to=[], save_strategy="no", disable_tqdm=True)
    model, teacher = GPT2LMHeadModel(small), GPT2LMHeadModel(small)
    return (Distilling(model=model, args=args, train_dataset=rows, teacher=teacher),)
"""
AS_ARGUMENT = """
def step(trainer):
    trainer.train()
"""
AT_IMPORT = """
trainer, = build()

def step():
    trainer.train()

del build
"""
SENDINGS = {
    "by its arguments": "self.teacher.to(self.args.device)",
    "to where the model is": "self.teacher = self.teacher.to(self.model.device)",
    "by its accelerator": "self.teacher = self.accelerator.prepare_model(self.teacher, evaluation_mode=True)",
}
LIGHTNING = """
import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 1)

    def training_step(self, batch, index):
        x, y = batch
        noise = torch.randn(x.shape, PLACE)
        return (self.net(x + noise) - y).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

model = Net()
loader = DataLoader(TensorDataset(torch.randn(4, 4), torch.randn(4, 1)), batch_size=2)
quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
trainer = lightning.Trainer(max_epochs=1, **quiet)

def step():
    trainer.fit(model, loader)
"""
FABRIC = """
import torch
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader

class Loop:
    def __init__(self, accelerator="auto"):
        self.fabric = Fabric(accelerator=accelerator, devices=1)
        self.scale = torch.ones(1, PLACE)

    def fit(self, model, loader):
        self.fabric.launch()
        model, optimizer = self.fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for x in self.fabric.setup_dataloaders(loader):
            self.fabric.backward((model(x) * self.scale).sum())
            optimizer.step()

loop, net, loader = Loop(), nn.Linear(4, 1), DataLoader(torch.randn(6, 4), batch_size=3)

def step():
    loop.fit(net, loader)
"""
FABRICS_LOADER = """
import torch
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader

fabric = Fabric(accelerator="auto", devices=1)
model, optimizer = nn.Linear(4, 1), None
model = fabric.setup(model)
loader = fabric.setup_dataloaders(DataLoader(torch.randn(6, 4), batch_size=3))

def step():
    for x in loader:
        fabric.backward((model(x) + torch.ones(1, 1, PLACE).expand(3, 1)).sum())
"""
IN_A_LIST = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LogitsProcessor, LogitsProcessorList

device = "cuda" if torch.cuda.is_available() else "cpu"

class Bias(LogitsProcessor):
    def __init__(self):
        self.bias = torch.zeros(30, PLACE)

    def __call__(self, input_ids, scores):
        return scores + self.bias

model = GPT2LMHeadModel(GPT2Config(vocab_size=30, n_embd=16, n_layer=1, n_head=2, n_positions=32)).to(device)
processors = LogitsProcessorList([Bias()])

def step():
    prompt = torch.ones(1, 3, dtype=torch.long, device=device)
    model.generate(prompt, max_new_tokens=2, pad_token_id=0, logits_processor=processors)
"""
LIGHTNING_GIVEN = (
    LIGHTNING.partition("trainer =")[0]
    + """
def build():
    trainer = lightning.Trainer(max_epochs=1, **quiet)
    return trainer, Net(), loader

def step(trainer, net, loader):
    trainer.fit(net, loader)
"""
)
RUNNER = """
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader

class Runner:
    def __init__(self):
        self.accelerator = Accelerator()
        model, loader = nn.Linear(4, 1), DataLoader(torch.randn(6, 4), batch_size=3)
        self.model, self.loader = self.accelerator.prepare(model, loader)
        own = self.accelerator.unwrap_model(self.model)
        self.average = {name: each.clone() for name, each in own.state_dict().items()}
        self.scale = torch.ones(1, PLACE)

    def train(self):
        for x in self.loader:
            self.accelerator.backward((self.model(x) * self.scale).sum())
            for name, each in self.model.state_dict().items():
                self.average[name].lerp_(each, 0.1)

runner = Runner()

def step():
    runner.train()
"""
METRICS = """
import torch
from torchmetrics import MeanMetric

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
metrics = {"train": MeanMetric().to(device), "test": MeanMetric().to(PLACE)}

def step():
    for each in metrics.values():
        each.update(torch.ones(3, device=device))
"""
# With the device that is right at PLACE, and the kind of what is found without.
PROGRAMS = {
    "a trainer of lightning's": ("lightning", LIGHTNING, "device=self.device", "factory"),
    "a trainer of lightning's that is given": ("lightning", LIGHTNING_GIVEN, "device=self.device", "factory"),
    "an object that holds a fabric": ("lightning", FABRIC, "device=self.fabric.device", "loss"),
    "a loader that a fabric has prepared": ("lightning", FABRICS_LOADER, "device=fabric.device", "factory"),
    "one of two metrics in a dict": ("torchmetrics", METRICS, "device=device", "loss"),
    "an object that holds what accelerate has prepared": (
        "accelerate",
        RUNNER,
        "device=self.accelerator.device",
        "loss",
    ),
    "an object of one's own in a list of a library's": ("transformers", IN_A_LIST, "device=device", "loss"),
}


def rehearsed(tmp_path, library, text):
    pytest.importorskip(library)
    name = f"trains_{tmp_path.name}".replace("-", "_")
    path = tmp_path / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return tm.rehearse(module.step, *(module.build() if hasattr(module, "build") else ()))


def of_transformers(tmp_path, around, *, send="pass", place="device=self.args.device"):
    return rehearsed(tmp_path, "transformers", TRANSFORMERS.replace("SEND", send).replace("PLACE", place) + around)


@pytest.mark.parametrize("around", [AS_ARGUMENT, AT_IMPORT], ids=["given", "at import"])
@pytest.mark.parametrize("send", SENDINGS.values(), ids=[*SENDINGS])
def test_what_a_subclass_of_a_trainer_sends_is_there(tmp_path, around, send):
    found = of_transformers(tmp_path, around, send=send)
    assert found.ok, str(found)


@pytest.mark.parametrize("around", [AS_ARGUMENT, AT_IMPORT], ids=["given", "at import"])
@pytest.mark.parametrize("wrong", [{}, {"send": SENDINGS["by its arguments"], "place": "device='cpu'"}])
def test_what_a_subclass_of_a_trainer_leaves_behind_is_found(tmp_path, around, wrong):
    found = of_transformers(tmp_path, around, **wrong)
    line = "target = self.teacher" if not wrong else "loss = out.loss"
    assert [(each.kind, each.code.startswith(line)) for each in found.failing] == [("loss", True)], str(found)


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_made_outside_of_the_step_has_chosen_the_device(tmp_path, name):
    library, text, place, _ = PROGRAMS[name]
    found = rehearsed(tmp_path, library, text.replace("PLACE", place))
    assert found.ok, str(found)


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_it_leaves_behind_is_found(tmp_path, name):
    library, text, _, kind = PROGRAMS[name]
    found = rehearsed(tmp_path, library, text.replace(", PLACE", "").replace(".to(PLACE)", ""))
    assert [each.kind for each in found.failing] == [kind], str(found)


def test_a_fabric_for_the_cpu_by_the_default_of_a_parameter_is_there(tmp_path):
    text = FABRIC.replace("PLACE", "device=self.fabric.device").replace('"auto"', '"cpu"')
    found = rehearsed(tmp_path, "lightning", text)
    assert not found.failing, str(found)


def test_a_file_that_a_library_has_written_is_not_the_users(tmp_path):
    text = """
import torch
from torch_geometric.nn import SAGEConv

def step():
    convolution = SAGEConv(4, 8).to("cuda")
    edges = torch.tensor([[0, 1, 2], [1, 2, 0]])
    convolution(torch.randn(3, 4, device="cuda"), edges)
"""
    found = rehearsed(tmp_path, "torch_geometric", text)
    assert [each.code for each in found.failing] == ['convolution(torch.randn(3, 4, device="cuda"), edges)'], str(found)
