"""A call that means another one is answered in one line, with the call that was meant."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import pytest
import torch
from torch import nn

import torchmove as tm

pytestmark = pytest.mark.twin

TWIN = "twin:0"


class Model(nn.Module):
    pass


def step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch)


# The call, and the calls that are meant.
SLIPS = {
    "tm.move(m, torch.bfloat16)": "tm.move(m, dtype=torch.bfloat16)",
    'tm.move(m, torch.bfloat16, to="cpu")': "tm.move(m, dtype=torch.bfloat16, to='cpu')",
    'tm.plan(m, torch.channels_last, to="cpu")': "tm.plan(m, memory_format=torch.channels_last, to='cpu')",
    'tm.move(m, "cuda")': "tm.move(m, to='cuda')",
    'tm.move(m, o, "cuda:1")': "tm.move(m, o, to='cuda:1')",
    'tm.move(m, torch.device("cuda"))': "tm.move(m, to='cuda')",
    'tm.move(m, "gpu")': "tm.move(m, to='auto')",
    "tm.move(m)": "tm.move(m, to='auto')",
    'tm.move(m, device="cuda")': "tm.move(m, to='cuda')",
    'tm.move(m, o, to="cuda", non_blocking=True)': "tm.move(m, o, to='cuda')",
    'tm.move(m, to="cuda", copy=True)': "tm.move(m, to='cuda')",
    'tm.move(m, to="cuda", strictly=True)': "tm.move(m, to='cuda')",
    'tm.move(to="cuda")': "tm.move(model, optimizer, to='cuda')",
    'tm.move(m.parameters(), to="cuda")': "tm.move(m, to='cuda')",
    'tm.move(m.named_parameters(), "cuda")': "tm.move(m, to='cuda')",
    'tm.move(m.state_dict, m.buffers(), to="cuda")': "m, to='cuda')",
    'tm.move(Model, to="cuda")': "tm.move(Model(), to='cuda')",
    'tm.verify(m, to="cuda")': "tm.verify(m, on='cuda')",
    'tm.verify(m, "cuda")': "tm.verify(m, on='cuda')",
    "tm.verify(m)": "tm.verify(m, on='auto')",
    'tm.plan(m, on="cuda")': "tm.plan(m, to='cuda')",
    'tm.plan(m, o, "cpu")': "tm.plan(m, o, to='cpu')",
    "tm.apply(m)": "tm.apply(tm.plan(m, to='auto'))",
    'tm.survey(m, to="cuda")': "tm.survey(m); or, to move it, tm.move(m, to='cuda')",
    "tm.survey()": "tm.survey(model, optimizer)",
    'tm.park(m, to="cpu")': "tm.park(m); or, to move it, tm.move(m, to='cpu')",
    'tm.park(m, "cpu")': "tm.park(m); or, to move it, tm.move(m, to='cpu')",
    'tm.parked(m, to="cpu")': "tm.parked(m); or, to move it, tm.move(m, to='cpu')",
    "tm.rehearse(m)": "tm.rehearse(lambda m, batch: m(batch).sum().backward(), m, batch)",
    "tm.rehearse(step(m, batch))": "tm.rehearse(step, model, batch), not tm.rehearse(step(model, batch))",
    "tm.rehearse(None)": "tm.rehearse(step, model, batch), not tm.rehearse(step(model, batch))",
}


@pytest.mark.parametrize("slip", SLIPS)
def test_a_slip_is_answered_in_one_line_with_the_call_that_was_meant(slip):
    m = nn.Linear(2, 2)
    names = {"m": m, "o": torch.optim.SGD(m.parameters()), "batch": torch.ones(1, 2), "step": step, "Model": Model}
    with pytest.raises(TypeError) as error:
        exec(slip, {"tm": tm, "torch": torch, **names})
    (line,) = str(error.value).splitlines()
    assert line.count("Fix: ") == 1
    assert line.endswith(SLIPS[slip])
    assert m.weight.device.type == "cpu"


@pytest.mark.parametrize(
    ("call", "remedy"),
    [
        ("tm.move(m, to=None)", "None is not a device"),
        ('tm.move(m, to="gpu")', "'gpu' is not a device"),
        ('tm.move(m, to="twin:9")', "Fix: to='twin:1'; or to='auto'"),
        ('tm.verify(m, on="gpu")', "Fix: on='auto'"),
        ('tm.device("gpu")', "'gpu' is not a device"),
    ],
)
def test_a_device_that_does_not_exist_is_refused_with_one_that_does(call, remedy):
    with pytest.raises(tm.MoveRefused) as error:
        eval(call, {"tm": tm, "m": nn.Linear(2, 2)})
    (line,) = str(error.value).splitlines()[1:]
    assert remedy in line
    assert "Fix: " in line
    assert "='auto'" in line


USES = {
    "m, o = receipt": (TypeError, "receipt = tm.move(m, o, to='twin:0')"),
    "receipt[0]": (TypeError, "receipt = tm.move(m, o, to='twin:0')"),
    "receipt(batch)": (TypeError, "m(...)"),
    'receipt.to("cuda")': (AttributeError, "tm.move(m, to='auto')"),
    "receipt.cuda()": (AttributeError, "tm.move(m, to='cuda')"),
    "receipt.parameters()": (AttributeError, "m.parameters(...)"),
    "receipt.train()": (AttributeError, "m.train(...)"),
}


@pytest.mark.parametrize("use", USES)
def test_a_receipt_that_is_used_as_the_model_says_that_it_is_none(use):
    kind, fix = USES[use]
    m = nn.Linear(2, 2)
    o = torch.optim.SGD(m.parameters())
    receipt = tm.move(m, o, to=TWIN)
    with pytest.raises(kind) as error:
        exec(use, {"receipt": receipt, "batch": torch.ones(1, 2)})
    (line,) = str(error.value).splitlines()
    assert "tm.move moves the objects themselves, m, o, and returns a receipt" in line
    assert line.endswith(f"Fix: {fix}")
    with pytest.raises(AttributeError, match=r"^'Receipt' object has no attribute 'nothing'$"):
        receipt.nothing  # noqa: B018
    assert not hasattr(receipt, "state_dict")


def test_a_receipt_can_be_copied_and_pickled():
    model = nn.Linear(2, 2)
    receipt = tm.move(model, to=TWIN)
    for again in (copy.copy(receipt), pickle.loads(pickle.dumps(copy.copy(receipt).held))):
        assert again is not None
    assert copy.copy(receipt).device == receipt.device


def test_a_receipt_is_no_step():
    model = nn.Linear(2, 2)
    receipt: Any = tm.move(model, to="cpu")
    with pytest.raises(TypeError, match="the step must be a function, not Receipt"):
        tm.rehearse(receipt)


def test_the_signatures_are_their_own():
    for function in (tm.move, tm.plan, tm.verify, tm.survey, tm.park):
        assert next(iter(inspect.signature(function).parameters)) == "objects"
        assert "answers" not in str(inspect.signature(function))
    assert str(inspect.signature(tm.move)).startswith("(*objects: 'Any', to: 'Device")
    assert [*inspect.signature(tm.parked).parameters][:2] == ["objects", "keep"]
    assert tm.move.__module__ == "torchmove.chain"
    assert pickle.loads(pickle.dumps(tm.move)) is tm.move


def test_the_device_of_a_receipt_takes_a_batch_to_the_model():
    model, batch = nn.Linear(2, 2), torch.ones(1, 2)
    receipt = tm.move(model, to=TWIN)
    assert receipt.device == torch.device(TWIN) == model.weight.device
    tm.move(batch, to=receipt.device)
    assert model(batch).device == receipt.device


def test_a_device_is_resolved_as_the_target_of_a_move_is():
    assert tm.device("auto") == tm.device() == torch.device(TWIN)
    assert tm.device("twin") == torch.device(TWIN)
    assert tm.device(torch.device("cpu")) == torch.device("cpu")
    assert tm.device("auto") == tm.plan(nn.Linear(1, 1), to="auto").target
