"""A rehearsal finds what would fail, goes on to the end, and leaves everything as it was."""

from __future__ import annotations

import copy
import functools
import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import torchmove as tm
from torchmove.testing import assert_movable


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 5), nn.Linear(5, 1)
        self.table = torch.ones(5)
        self.seen: list[int] = []
        self.register_buffer("steps", torch.zeros(1))

    def forward(self, x):
        self.seen.append(len(x))
        self.steps += 1
        return self.second(self.first(x) + self.table)


def state():
    model = Net()
    return model, torch.optim.AdamW(model.parameters()), {"x": torch.randn(3, 4), "y": torch.randn(3, 1)}


def step(model, optimizer, batch):
    x, y = batch["x"].to("cuda"), batch["y"].to("cuda")
    optimizer.zero_grad()
    functional.mse_loss(model(x), y).backward()
    optimizer.step()


def line_of(text: str) -> int:
    with open(__file__) as source:
        return next(number for number, line in enumerate(source, 1) if text in line and "line_of" not in line)


# ---------------------------------------------------------------- what it finds


def test_a_step_that_is_right():
    found = tm.rehearse(step, *state())
    assert found.ok
    assert (found.findings, found.stopped) == ((), "")
    assert str(found).startswith("No device error found: the step ran to its end on a simulated cuda:0")


def test_what_module_to_leaves_behind():
    found = tm.rehearse(step, *state(), moved_by="to")
    assert not found.ok
    (finding,) = found.findings
    assert (finding.file, finding.line, finding.kind) == (__file__, line_of("self.first(x) + self.table"), "attribute")
    assert "model.table is on cpu: a plain attribute, not a buffer" in finding.why
    assert finding.remedy == 'self.register_buffer("table", ..., persistent=False)'
    assert str(found).startswith("1 device error on cuda:0")
    assert f"test_rehearsal.py:{finding.line}  return self.second(self.first(x) + self.table)" in str(found)


def two_bugs(model, optimizer, batch):
    hidden = model(batch["x"].cuda()) * torch.ones(3, 1)  # one
    (hidden - batch["y"]).square().mean().backward()  # two
    optimizer.step()


def test_all_of_it_in_one_run():
    found = tm.rehearse(two_bugs, *state())
    assert [(finding.line, finding.kind) for finding in found.findings] == [
        (line_of("torch.ones(3, 1)  # one"), "factory"),
        (line_of('batch["y"]).square().mean().backward()  # two'), "input"),
    ]
    assert "torch.ones without device=" in found.findings[0].why
    facts = json.loads(found.to_json())
    assert facts["ok"] is False
    assert [each["kind"] for each in facts["findings"]] == ["factory", "input"]


def test_a_parameter_that_stayed_gets_its_gradient_all_the_same():
    def go(model, x):
        loss = (x.cuda() @ model.loose[0]).sum()
        loss.backward()
        assert model.loose[0].grad.shape == (4, 2)

    model = nn.Module()
    model.loose = [nn.Parameter(torch.ones(4, 2))]
    found = tm.rehearse(go, model, torch.ones(3, 4), moved_by="to")
    assert [finding.kind for finding in found.findings] == ["container"]
    assert found.stopped == ""


def looks(model, x):
    out = model(x.cuda())
    if out.sum() > 0:  # data decides
        out = out * 2
    return out


def test_where_shapes_do_not_tell_it_says_so_with_the_line():
    found = tm.rehearse(looks, nn.Linear(4, 2), torch.ones(3, 4), data="shapes")
    assert not found.ok
    line = line_of("if out.sum() > 0:  # data decides")
    assert found.stopped.startswith(f"stopped at test_rehearsal.py:{line}  if out.sum() > 0:")
    assert "bool reads a value that shape-only mode does not compute" in found.stopped
    assert "data='real'" in found.stopped
    assert "Traceback" not in str(found)


def test_with_real_data_it_goes_on_and_the_waiting_is_noted():
    found = tm.rehearse(looks, nn.Linear(4, 2), torch.ones(3, 4), data="real")
    assert found.ok
    assert [(finding.line, finding.kind) for finding in found.findings] == [
        (line_of("if out.sum() > 0:  # data decides"), "synchronizes")
    ]


def test_an_error_that_has_nothing_to_do_with_devices_is_told_by_its_line():
    def go(model, x):
        return model(x.cuda().T)

    found = tm.rehearse(go, nn.Linear(4, 2), torch.ones(3, 4))
    assert f"test_rehearsal.py:{line_of('return model(x.cuda().T)')}" in found.stopped
    assert "RuntimeError" in found.stopped


def test_real_data_gives_the_numbers_of_the_cpu():
    def go(model, x, expected):
        assert model(x.to("cuda")).tolist() == expected

    model, x = nn.Sequential(nn.Linear(4, 3), nn.Tanh()), torch.randn(2, 4)
    assert tm.rehearse(go, model, x, model(x).tolist(), data="real").stopped == ""


def kinds_in(go, *objects, **options):
    found = tm.rehearse(go, *objects, **options)
    assert found.stopped == ""
    return [finding.kind for finding in found.findings if not finding.is_note]


def test_numpy_cannot_read_device_memory():
    model, x = nn.Linear(4, 2), torch.ones(3, 4)
    assert kinds_in(lambda model, x: model(x.cuda()).detach().numpy(), model, x, data="real") == ["numpy"]
    assert kinds_in(lambda model, x: model(x.cuda()).detach().cpu().numpy(), model, x, data="real") == []


def test_a_hook_that_makes_a_tensor_on_the_cpu():
    def go(model, x):
        out = model(x.cuda())
        out.register_hook(lambda gradient: gradient * torch.ones(2))
        out.sum().backward()

    assert kinds_in(go, nn.Linear(4, 2), torch.ones(3, 4)) == ["factory"]


def test_a_loss_is_finite_and_a_scaler_steps():
    def guarded(model, x):
        loss = model(x.cuda()).sum()
        if not np.isfinite(loss.item()):
            return
        loss + torch.ones(4)

    assert kinds_in(guarded, nn.Linear(4, 2), torch.ones(3, 4)) == ["factory"]

    def scaled(model, optimizer, batch):
        scaler = torch.amp.GradScaler("cuda")
        scaler.scale(model(batch["x"].cuda()).sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    model, optimizer, batch = state()
    step_on_the_cpu(model, optimizer, batch)
    model.table = None
    model.forward = lambda x: model.second(model.first(x))
    assert kinds_in(scaled, model, optimizer, batch, moved_by="to") == ["optimizer"]


def step_on_the_cpu(model, optimizer, batch):
    functional.mse_loss(model(batch["x"]), batch["y"]).backward()
    optimizer.step()


@pytest.mark.parametrize(
    "go",
    [
        lambda model, x: model(x.cuda()) + torch.zeros(2).type_as(model.weight),
        lambda model, x: model(x.to(0)),
        lambda model, x: model(x.cuda())[torch.tensor([True, False, True]).cuda()].sum().backward(),
        lambda model, x: torch.nn.Sequential(model)(x.cuda()).sum().backward(),
    ],
)
def test_usual_ways_to_write_it(go):
    assert kinds_in(go, nn.Linear(4, 2), torch.ones(3, 4)) == []


def test_a_module_that_is_sent_back():
    def go(model, x):
        model.cpu()
        return model(x.cuda())

    assert kinds_in(go, nn.Linear(4, 2), torch.ones(3, 4)) == ["hard-coded"]


def test_copies_of_models():
    def go(model, x):
        copied = copy.deepcopy(model)
        assert copied.weight is not model.weight
        assert isinstance(copied.weight, nn.Parameter)
        averaged = torch.optim.swa_utils.AveragedModel(model)
        averaged.update_parameters(model)
        (copied(x.cuda()) + averaged(x.cuda())).sum().backward()
        assert (copied.weight.grad is None, model.weight.grad is None) == (False, True)

    assert kinds_in(go, nn.Linear(4, 2), torch.ones(3, 4)) == []


def test_a_method_takes_its_object_along():
    class Trainer:
        def __init__(self):
            self.model, self.count = nn.Linear(4, 2), 0

        def step(self, x):
            self.count += 1
            self.model(x.cuda()).sum().backward()

    trainer = Trainer()
    assert kinds_in(trainer.step, torch.ones(3, 4)) == []
    assert (trainer.count, trainer.model.weight.grad) == (0, None)


# ---------------------------------------------------------------- what the step sees


def test_cuda_in_the_step_means_the_simulated_device():
    def go(model, x):
        assert torch.cuda.is_available()
        assert (torch.cuda.current_device(), torch.cuda.device_count()) == (0, 1)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        assert next(model.parameters()).device == torch.device("cuda:0")
        assert next(model.parameters()).is_cuda
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream), torch.autocast("cuda", dtype=torch.bfloat16):
            out = model(x.to(device, non_blocking=True))
        assert out.dtype == torch.bfloat16
        stream.synchronize()
        torch.cuda.synchronize()
        out.float().sum().backward()
        assert model.weight.grad.device.type == "cuda"
        model.cpu()
        assert model.weight.device.type == "cpu"
        model.cuda()

    found = tm.rehearse(go, nn.Linear(4, 2), torch.ones(3, 4))
    assert (found.findings, found.stopped) == ((), "")


def test_sharing_is_as_it_was():
    def go(model, x):
        assert model[0].weight is model[1].weight
        assert isinstance(model[0].weight, nn.Parameter)
        model.view.fill_(3)
        assert model.whole.tolist() == [3, 3, 1, 1]

    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    model.whole = torch.ones(4)
    model.view = model.whole[:2]
    found = tm.rehearse(go, model, torch.ones(1), data="real")
    assert found.stopped == ""
    assert model.whole.tolist() == [1, 1, 1, 1]


def test_another_index_is_another_device():
    def go(model, x):
        return model(x.to("cuda:1"))

    (finding,) = tm.rehearse(go, nn.Linear(4, 2), torch.ones(3, 4)).findings
    assert (finding.kind, "cuda:1" in finding.why) == ("hard-coded", True)
    assert tm.rehearse(go, nn.Linear(4, 2), torch.ones(3, 4), to="cuda:1").ok


# ---------------------------------------------------------------- afterwards


def everything(model, optimizer, batch):
    tensors = [*model.parameters(), *model.buffers(), model.table, *batch.values()]
    tensors += [value for state in optimizer.state.values() for value in state.values()]
    return {
        "ids": [id(tensor) for tensor in tensors],
        "classes": [type(tensor) for tensor in tensors],
        "bytes": [tensor.tolist() for tensor in tensors],
        "places": [tensor.data_ptr() for tensor in tensors],
        "gradients": [None if tensor.grad is None else tensor.grad.tolist() for tensor in tensors],
        "versions": [tensor._version for tensor in tensors],
        "seen": list(model.seen),
        "hooks": [len(model._forward_hooks), len(model.first.weight._backward_hooks or ())],
        "groups": [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups],
        "random": [torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()],
        "modes": [torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_default_device()],
        "cuda": [torch.cuda.is_available, torch.cuda.Stream, torch.cuda.synchronize, torch.autocast.__init__],
    }


def meddling(model, optimizer, batch, crash=False):
    model.register_forward_hook(lambda *given: None)
    model.first.weight.register_hook(lambda gradient: gradient)
    model.extra, model.seen, model.table = torch.ones(3), [1, 2], torch.zeros(5, device="cuda")
    batch["more"] = torch.randn(3)
    random.random()
    np.random.rand()
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(True)
    optimizer.param_groups[0]["lr"] = 7
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2, device="cuda"))]})
    step(model, optimizer, batch)
    if crash:
        raise crash


@pytest.mark.parametrize("data", ["shapes", "real"])
@pytest.mark.parametrize("moved_by", ["torchmove", "to"])
@pytest.mark.parametrize("crash", [None, RuntimeError("no"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("trained", [False, True])
def test_everything_is_as_before(data, moved_by, crash, trained):
    objects = state()
    if trained:
        functional.mse_loss(objects[0](objects[2]["x"]), objects[2]["y"]).backward()
        objects[1].step()
    before = everything(*objects)
    go = functools.partial(meddling, crash=crash)
    if isinstance(crash, KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            tm.rehearse(go, *objects, moved_by=moved_by, data=data)
    else:
        tm.rehearse(go, *objects, moved_by=moved_by, data=data)
    assert everything(*objects) == before
    assert not hasattr(objects[0], "extra")
    assert list(objects[2]) == ["x", "y"]
    # And it still trains, here, on the real thing.
    model, optimizer, batch = objects
    functional.mse_loss(model(batch["x"]), batch["y"]).backward()
    optimizer.step()


def test_lazy_modules_wait_for_their_shape_again():
    model = nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d())
    assert tm.rehearse(lambda model, x: model(x.cuda()).sum().backward(), model, torch.ones(2, 4)).ok
    assert type(model[0]) is nn.LazyLinear
    assert nn.parameter.is_lazy(model[0].weight)
    assert model(torch.randn(2, 4)).shape == (2, 3)


def test_a_cache_does_not_keep_stand_ins():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.mask = functools.lru_cache(lambda size: torch.ones(size, device="cuda"))

        def forward(self, x):
            return x * self.mask(x.shape[-1])

    model = Masked()
    assert tm.rehearse(lambda model, x: model(x.cuda()), model, torch.ones(3)).ok
    assert model.mask.cache_info().currsize == 0


MODEL = nn.Linear(4, 4)
OPTIMIZER = torch.optim.Adam(MODEL.parameters(), lr=0.1)
LOSSES: list[torch.Tensor] = []


def in_a_notebook(x):
    OPTIMIZER.zero_grad()
    loss = MODEL(x.to("cuda")).sum()
    loss.backward()
    OPTIMIZER.step()
    LOSSES.append(loss.detach())


def test_globals_are_restored_too():
    before, version = MODEL.weight.tolist(), MODEL.weight._version
    found = tm.rehearse(in_a_notebook, torch.ones(3, 4))
    assert {finding.kind for finding in found.findings} == {"loss"}
    assert "MODEL.weight is on cpu" in found.findings[0].why or "MODEL.bias is on cpu" in found.findings[0].why
    assert (LOSSES, dict(OPTIMIZER.state)) == ([], {})
    assert (MODEL.weight.tolist(), MODEL.weight._version, MODEL.weight.grad) == (before, version, None)


def test_a_default_device_that_the_step_sets():
    def go(model, x):
        torch.set_default_device("cuda")
        return model(x.cuda()) + torch.ones(2)

    assert kinds_in(go, nn.Linear(4, 2), torch.ones(3, 4)) == []
    assert torch.ones(1).device == torch.get_default_device() == torch.device("cpu")


TABLE = torch.ones(4)


def test_globals_are_found_and_not_touched():
    def go(x):
        TABLE.add_(1)
        return x.cuda() * TABLE

    (finding,) = tm.rehearse(go, torch.ones(4), data="real").findings
    assert finding.kind == "loss"
    assert TABLE.tolist() == [1, 1, 1, 1]


# ---------------------------------------------------------------- memory


def test_the_peak_by_part():
    model = nn.Linear(1024, 1024, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)

    def go(model, optimizer, x):
        model(x.cuda()).sum().backward()
        optimizer.step()

    found = tm.rehearse(go, model, optimizer, torch.ones(256, 1024))
    weight = 1024 * 1024 * 4
    assert found.peak["parameters"] == found.peak["gradients"] == found.peak["optimizer"] == weight
    assert found.peak_bytes == sum(found.peak.values())
    assert "Peak memory on cuda:0" in str(found)


def test_the_peak_is_that_of_a_later_step():
    """The first one makes the optimizer's state when the activations are gone; all others begin with it."""
    model = nn.Linear(256, 256, bias=False)
    optimizer = torch.optim.AdamW(model.parameters())

    def go(model, optimizer, x):
        model(x.cuda()).relu().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    first = tm.rehearse(go, model, optimizer, torch.ones(8192, 256))
    go_on_the_cpu = model(torch.ones(1, 256)).sum()
    go_on_the_cpu.backward()
    optimizer.step()
    optimizer.zero_grad()
    later = tm.rehearse(go, model, optimizer, torch.ones(8192, 256))
    assert first.peak == later.peak
    assert first.peak["optimizer"] == 2 * 256 * 256 * 4


@pytest.mark.parametrize("data", ["shapes", "real"])
def test_the_peak_counts_what_cudnn_keeps(data):
    model = nn.LSTM(32, 64)

    def go(model, x):
        model(x.cuda())[0].sum().backward()

    output = 100 * 16 * 64 * 4
    assert tm.rehearse(go, model, torch.ones(100, 16, 32), data=data).peak_bytes > (1 + 5 + 6) * output


@pytest.mark.slow
def test_a_model_of_70_billion_parameters():
    """In a process of its own, so that its memory is that of the rehearsal."""
    command = [sys.executable, Path(__file__).parents[2] / "benchmarks" / "rehearsal.py", "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    facts = json.loads(ran.stdout)
    assert facts["ok"]
    assert facts["parameters"] > 70e9
    assert facts["peak"]["parameters"] == facts["peak"]["gradients"] == facts["peak"]["optimizer"] // 2
    assert facts["resident_bytes"] < 3e9


# ---------------------------------------------------------------- for tests, and bad input


def test_assert_movable_and_the_fixture(assert_movable):
    assert_movable(step, *state())
    with pytest.raises(AssertionError, match="1 device error on cuda:0"):
        assert_movable(step, *state(), moved_by="to")


def test_the_name_of_an_object_is_the_callers():
    network, optimizer, batch = state()
    with pytest.raises(AssertionError, match=r"network\.table is on cpu"):
        assert_movable(step, network, optimizer, batch, moved_by="to")


@pytest.mark.parametrize(
    ("given", "options", "error", "said"),
    [
        (nn.Linear(1, 1).weight, {}, TypeError, "the step must be a function, not Parameter"),
        (step, {"to": "cpu"}, ValueError, "a rehearsal simulates an accelerator"),
        (step, {"to": "nowhere"}, ValueError, "nowhere"),
        (step, {"moved_by": "magic"}, ValueError, "'torchmove' or 'to'"),
        (step, {"data": "fake"}, ValueError, "'shapes' or 'real'"),
        (lambda model: None, {}, TypeError, "too many positional arguments"),
    ],
)
def test_bad_input(given, options, error, said):
    with pytest.raises(error, match=said):
        tm.rehearse(given, *state(), **options)


def test_a_step_that_would_not_run_is_refused():
    def generator(x):
        yield x

    with pytest.raises(TypeError, match="generator or async function, so calling it runs nothing"):
        tm.rehearse(generator, torch.ones(1))


def test_one_rehearsal_at_a_time():
    found = tm.rehearse(lambda model, x: tm.rehearse(looks, model, x), nn.Linear(4, 2), torch.ones(3, 4))
    assert "another rehearsal is running" in found.stopped
    assert tm.rehearse(looks, nn.Linear(4, 2), torch.ones(3, 4), data="real").ok


def test_a_step_that_uses_nothing_on_the_device_does_not_pass():
    found = tm.rehearse(lambda x: x + 1, torch.ones(3))
    assert not found.ok
    assert "no tensor was on cuda:0" in str(found)
