"""What a rehearsal makes of what it is given: states and data, wrapped and compiled models, devices, loaders."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import torchmove as tm

X = torch.ones(3, 4)


def line_of(text: str) -> int:
    with open(__file__) as source:
        return next(number for number, line in enumerate(source, 1) if text in line and "line_of" not in line)


def kinds(found: tm.Rehearsal) -> list[tuple[int, str]]:
    return [(finding.line, finding.kind) for finding in found.findings if not finding.is_note]


# ---------------------------------------------------------------- containers: states and data


class Pair(NamedTuple):
    model: nn.Module
    optimizer: Any


@dataclass
class State:
    model: nn.Module
    optimizer: Any


class Trainer:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 1)
        self.table = torch.ones(1)

    def forward(self, x):
        return self.inner(x) + self.table


HELD = {
    "dict": (lambda model, optimizer: {"model": model, "optimizer": optimizer}, lambda held: held.values()),
    "list": (lambda model, optimizer: [model, optimizer], lambda held: held),
    "NamedTuple": (Pair, lambda held: held),
    "dataclass": (State, lambda held: (held.model, held.optimizer)),
    "object": (Trainer, lambda held: (held.model, held.optimizer)),
    "deep": (
        lambda model, optimizer: {"all": [(State(model, None),), {"optimizer": optimizer}]},
        lambda held: (held["all"][0][0].model, held["all"][1]["optimizer"]),
    ),
}


@pytest.mark.parametrize("moved_by", ["torchmove", "to"])
@pytest.mark.parametrize("kind", HELD)
def test_a_container_with_a_module_in_it_is_moved_as_the_module_alone_would_be(kind, moved_by):
    held, parts = HELD[kind]

    def step(state, x):
        model, optimizer = parts(state)
        model(x.to("cuda")).sum().backward()
        optimizer.step()

    def alone(model, optimizer, x):
        step(state, x)

    model = Net()
    state = held(model, torch.optim.AdamW(model.parameters()))
    found = tm.rehearse(step, state, X, moved_by=moved_by)
    assert kinds(found) == ([] if moved_by == "torchmove" else [(line_of("self.inner(x) + self.table"), "attribute")])
    assert found.stopped == ""
    model, optimizer = parts(state)
    assert found.peak == tm.rehearse(alone, model, optimizer, X, moved_by=moved_by).peak


def test_containers_of_tensors_and_numbers_are_data():
    @dataclass
    class Batch:
        x: torch.Tensor
        length: int

    def step(model, batch, more):
        model.weight @ batch.x  # the batch
        model.weight @ more["x"][0]  # and more of it

    found = tm.rehearse(step, nn.Linear(4, 1), Batch(torch.ones(4, 3), 3), {"x": [torch.ones(4, 2), 1.0]})
    assert kinds(found) == [
        (line_of("model.weight @ batch.x  # the batch"), "input"),
        (line_of('model.weight @ more["x"][0]  # and more of it'), "input"),
    ]


def test_a_container_that_holds_itself_is_looked_through_once():
    def step(state, batch):
        state["model"](batch["x"].to("cuda"))

    state, batch = {"model": Net()}, {"x": X}
    state["self"], batch["self"] = state, [batch]
    assert tm.rehearse(step, state, batch).ok


# ---------------------------------------------------------------- states that do not move


def forward(model, x):
    model(x.to("cuda")).sum().backward()


def traced():
    return torch.jit.trace(nn.Linear(4, 1), X)


class Table(nn.Linear):
    def forward(self, x):
        return super().forward(x) + torch.arange(1)


def with_a_table():
    return torch.jit.trace(Table(4, 1), X)


@pytest.mark.parametrize(
    ("made", "code"),
    [
        (lambda: nn.DataParallel(nn.Linear(4, 1)), "R020"),
        (lambda: nn.Sequential(with_a_table(), nn.Linear(1, 1)), "R022"),
    ],
)
def test_the_step_does_not_run_on_a_state_that_tm_move_refuses(made, code):
    found = tm.rehearse(forward, made(), X)
    assert not found.ok
    assert found.findings == ()
    assert found.stopped.startswith(f"tm.move refuses this state:\n      {code} ")
    assert "Fix: " in found.stopped


@pytest.fixture
def wrapped(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/ranks", rank=0, world_size=1)
    yield nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
    torch.distributed.destroy_process_group()


def test_a_state_that_tm_move_refuses_can_be_rehearsed_as_module_to_moves_it(wrapped):
    weight, before = wrapped.module.weight, wrapped.module.weight.detach().clone()
    optimizer = torch.optim.SGD(wrapped.parameters())
    assert "R020 wrapped: " in tm.rehearse(lambda wrapped, _, x: forward(wrapped, x), wrapped, optimizer, X).stopped
    assert tm.rehearse(forward, wrapped, X, moved_by="to").ok
    assert wrapped.module.weight is weight
    assert type(weight) is nn.Parameter
    assert torch.equal(weight, before)
    assert weight.grad is None


def test_a_traced_program_cannot_be_rehearsed():
    for moved_by in ("to", "torchmove"):
        found = tm.rehearse(forward, nn.Sequential(traced()), X, moved_by=moved_by)
        assert found.stopped.startswith("a rehearsal cannot run this state:\n      R022 model[0]: ")


def test_weights_without_bytes_are_no_obstacle():
    assert tm.rehearse(forward, nn.Linear(4, 1, device="meta"), X).ok


# ---------------------------------------------------------------- a device that is remembered

DEVICE = torch.device("cpu")  # on purpose: no statement asks for a GPU


def decided(model, batch):
    x = batch.to(DEVICE)  # decided at import
    model.weight @ x  # with the batch


def test_a_batch_that_was_sent_to_a_remembered_cpu():
    (finding,) = tm.rehearse(decided, nn.Linear(4, 1), X.T).findings
    assert (finding.line, finding.kind) == (line_of("model.weight @ x  # with the batch"), "stale-device")
    where = f"test_rehearsal_given.py:{line_of('batch.to(DEVICE)  # decided at import')}"
    why = f"mm with a tensor on cpu: batch is on cpu; {where} moves it to cpu, the value of a device variable ({where})"
    assert finding.why == why
    assert finding.remedy == "use the device of a parameter: next(model.parameters()).device"


@pytest.mark.parametrize(
    "made",
    [
        lambda: torch.zeros(4, 3, device=DEVICE),
        lambda: torch.ones(4, 3).cuda().to(DEVICE),
    ],
)
def test_a_tensor_that_was_put_on_a_remembered_cpu(made):
    (finding,) = tm.rehearse(lambda model: model.weight @ made(), nn.Linear(4, 1)).findings
    assert finding.kind == "stale-device"
    assert "it is on cpu, the value of a device variable on this line" in finding.why
    assert finding.remedy == "use the device of a parameter: next(model.parameters()).device"


def test_a_device_that_is_decided_inside_the_step_is_right():
    def step(model, x):
        device = "cuda" if torch.cuda.is_available() else "cpu"
        model(x.to(device) + torch.zeros(4, device=next(model.parameters()).device))

    assert tm.rehearse(step, nn.Linear(4, 1), X).findings == ()


def test_what_is_kept_on_the_cpu_by_name_is_to_be_sent_elsewhere_there():
    def step(model, x):
        model(x.to("cpu").cpu())

    (finding,) = tm.rehearse(step, nn.Linear(4, 1), X).findings
    assert (finding.kind, finding.remedy) == ("hard-coded", 'model(x.to("cuda").to("cuda"))')


def test_what_is_sent_to_where_another_tensor_is_has_its_cause_there():
    def step(model, x, y):
        model(x.to(y.device).type_as(y).to(y))

    (finding,) = tm.rehearse(step, nn.Linear(4, 1), X, torch.ones(2)).findings
    assert (finding.kind, finding.remedy) == ("input", 'y = y.to("cuda")')


# ---------------------------------------------------------------- loaders


class Numbers(Dataset):
    def __init__(self, fails=False):
        self.table, self.fails = torch.arange(8.0), fails

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if self.fails:
            raise ValueError("no such number")
        return {"x": torch.ones(4) * self.table[index], "y": torch.tensor([1.0])}


def epoch(model, optimizer, loader):
    for batch in loader:
        (model(batch["x"].to("cuda")) - batch["y"].to("cuda")).sum().backward()
        optimizer.step()


def careless(model, optimizer, loader):
    for batch in loader:
        loss = model(batch["x"].to("cuda")) - batch["y"]  # not sent
        loss.sum().backward()
        optimizer.step()


LOADERS = {
    "none": {"num_workers": 0},
    "fork": {"num_workers": 2, "multiprocessing_context": "fork"},
    "spawn": {"num_workers": 1, "multiprocessing_context": "spawn"},
    "persistent": {"num_workers": 1, "multiprocessing_context": "fork", "persistent_workers": True},
    "pinned": {"num_workers": 1, "multiprocessing_context": "fork", "pin_memory": True},
}


def loaded(kind, **options):
    return DataLoader(Numbers(**options), batch_size=4, shuffle=True, timeout=60 * (kind != "none"), **LOADERS[kind])


@pytest.mark.filterwarnings("ignore:'pin_memory' argument", "ignore:This process .* is multi-threaded")
@pytest.mark.parametrize("kind", LOADERS)
def test_what_a_loader_delivers_is_an_input_wherever_it_was_made(kind):
    model, loader = nn.Linear(4, 1), loaded(kind)
    optimizer = torch.optim.AdamW(model.parameters())
    right = tm.rehearse(epoch, model, optimizer, loader)
    assert (right.findings, right.stopped) == ((), "")
    found = tm.rehearse(careless, model, optimizer, loader)
    assert found.stopped == ""
    (finding,) = found.findings
    assert (finding.line, finding.kind) == (line_of('- batch["y"]  # not sent'), "input")
    assert finding.why == "sub with a tensor on cpu: the loader delivers it on cpu"
    assert loader._iterator is None
    delivered = torch.cat([batch["x"] for batch in loader])
    assert type(delivered) is torch.Tensor
    assert sorted(delivered[:, 0].tolist()) == [0, 1, 2, 3, 4, 5, 6, 7]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_worker_that_fails_stops_the_rehearsal():
    model = nn.Linear(4, 1)
    found = tm.rehearse(epoch, model, torch.optim.SGD(model.parameters()), loaded("fork", fails=True))
    assert "ValueError: Caught ValueError in DataLoader worker process 0." in found.stopped


# ---------------------------------------------------------------- compiled code, and transforms


@torch.compile
def compiled(model, x):
    return model.weight @ x + torch.zeros(3)  # made in compiled code


@pytest.mark.parametrize("moved_by", ["torchmove", "to"])
def test_compiled_code_runs_as_it_was_written(moved_by):
    def step(model, optimizer, x):
        model(x.to("cuda").T).sum().backward()
        compiled(model, x.to("cuda"))
        torch.compile(model.forward, mode="reduce-overhead")(x.to("cuda").T)
        optimizer.step()

    model = torch.compile(nn.Linear(4, 1))
    found = tm.rehearse(step, model, torch.optim.AdamW(model.parameters()), X.T, moved_by=moved_by)
    assert found.stopped == ""
    assert kinds(found) == [(line_of("torch.zeros(3)  # made in compiled code"), "factory")]


def test_afterwards_code_is_compiled_again():
    seen = []

    def backend(graph, _):
        seen.append(graph)
        return graph.forward

    model = torch.compile(nn.Linear(4, 1), backend=backend)
    assert tm.rehearse(forward, model, X).ok
    assert seen == []
    model(X)
    assert len(seen) == 1


@pytest.mark.parametrize(
    "transform",
    [
        lambda model, x: torch.func.grad(lambda x: model(x).sum())(x),
        torch.vmap(lambda model, x: model(x), in_dims=(None, 0)),
        lambda model, x: torch.func.functionalize(model)(x),
    ],
    ids=["grad", "vmap", "functionalize"],
)
def test_where_a_transform_begins_the_rehearsal_stops_and_says_so(transform):
    def step(model, x):
        transform(model, x.to("cuda"))

    found = tm.rehearse(step, nn.Linear(4, 1), X)
    assert found.findings == ()
    _, why, remedy = found.stopped.splitlines()
    assert why.strip() == "a rehearsal does not support torch.func's transforms: they wrap tensors"
    assert remedy.strip() == "Fix: rehearse the step without it"


@pytest.mark.parametrize("make", [torch.export.export, torch.jit.trace], ids=["export", "trace"])
def test_a_program_that_is_made_of_the_code_is_not_followed(make):
    name = make.__name__

    def step(model, batch):
        model(batch.to("cuda")).sum().backward()
        (torch.export if name == "export" else torch.jit).__dict__[name](model, (batch.to("cuda"),))

    rehearsed = tm.rehearse(step, nn.Linear(4, 4), torch.ones(2, 4))
    assert "a rehearsal does not support code that torch traces" in rehearsed.stopped
    assert not rehearsed.findings
    assert (torch.export if name == "export" else torch.jit).__dict__[name] is make


# ---------------------------------------------------------------- batches that are objects


@dataclass
class Sample:
    x: torch.Tensor
    name: str = "one"


class Batch:
    def __init__(self, x):
        self.x = x

    def to(self, device):
        return Batch(self.x.to(device))


class Slotted:
    __slots__ = ("x",)

    def __init__(self, x):
        self.x = x


Numbered = namedtuple("Numbered", ["x", "number"])
BATCHES = {
    "namespace": lambda: SimpleNamespace(x=X),
    "dataclass": lambda: Sample(X),
    "class": lambda: Batch(X),
    "slots": lambda: Slotted(X),
    "named tuple": lambda: Numbered(X, 1),
    "in a list": lambda: [SimpleNamespace(x=X)],
}


def uses(model, batch):
    model((batch[0] if isinstance(batch, list) else batch).x)


@pytest.mark.parametrize("name", BATCHES)
def test_an_object_without_parameters_is_data(name):
    found = tm.rehearse(uses, nn.Linear(4, 1), BATCHES[name]())
    assert [each.kind for each in found.failing] == ["input"]
    is_said = any("is treated as data" in each for each in found.assumed)
    assert is_said is (name not in ("named tuple", "in a list"))


@pytest.mark.parametrize("name", BATCHES)
def test_an_object_without_parameters_is_state_if_it_is_passed_as_state(name):
    batch = BATCHES[name]()
    found = tm.rehearse(uses, nn.Linear(4, 1), batch, state=[batch])
    assert found.ok
    assert found.assumed == ()


def test_the_fix_for_a_batch_with_a_to_method_calls_it():
    (finding,) = tm.rehearse(uses, nn.Linear(4, 1), Batch(X)).failing
    assert finding.remedy == 'batch = batch.to("cuda")'
    assert tm.rehearse(lambda model, batch: model(batch.to("cuda").x), nn.Linear(4, 1), Batch(X)).ok


def test_an_average_of_the_weights_is_state():
    model = nn.Linear(4, 1)

    class Average:
        def __init__(self, model):
            self.shadow = {name: each.detach().clone() for name, each in model.named_parameters()}

    def step(model, average):
        for name, each in model.named_parameters():
            average.shadow[name].lerp_(each.detach(), 0.1)

    assert tm.rehearse(step, model, Average(model)).ok


class Attributes(dict):
    def __getattr__(self, name):
        return self[name]


def test_a_dict_whose_missing_attributes_are_key_errors():
    def step(model, batch):
        return model(batch.x)

    found = tm.rehearse(step, nn.Linear(4, 2), Attributes(x=X.clone()))
    assert [each.remedy for each in found.failing] == ['batch["x"] = batch["x"].to("cuda")'], str(found)


def test_what_is_called_state_has_to_be_given():
    with pytest.raises(
        ValueError, match=r"state= contains 'batch', which was not passed to the step\. Fix: state=\[model\]"
    ):
        tm.rehearse(lambda model: model(torch.ones(1, 4)), nn.Linear(4, 1), state=["batch"])
