"""What a step reaches by the names in its code: variables of its module, not attributes of the same name."""

from __future__ import annotations

import argparse
import dis
import inspect
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional

import torchmove as tm
from torchmove.rehearsing.captured import variables_of

OF_A_MODULE = {f"{verb}_{scope}" for verb in ("LOAD", "STORE", "DELETE") for scope in ("GLOBAL", "NAME")}

x, y = torch.randn(5, 4), torch.arange(5) % 3
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # that there is no GPU
    scaler = torch.amp.GradScaler("cuda")


def codes_in(code):
    yield code
    for each in code.co_consts:
        if inspect.iscode(each):
            yield from codes_in(each)


@pytest.mark.parametrize("module", [functional, argparse, inspect, nn.modules.module], ids=lambda each: each.__name__)
def test_the_variables_of_code_are_those_that_dis_lists(module):
    code = compile(inspect.getsource(module), "module", "exec")
    steps = [step for each in codes_in(code) for step in dis.get_instructions(each)]
    assert [*variables_of(code)] == [step.argval for step in steps if step.opname in OF_A_MODULE]


class Batch:
    def __init__(self, x, y):
        self.x, self.y = x, y


def step(model, batch):
    functional.cross_entropy(model(batch.x.to("cuda")), batch.y)


def test_a_tensor_of_the_batch_is_an_input_though_a_variable_has_the_name_of_the_attribute():
    found = tm.rehearse(step, nn.Linear(4, 3), Batch(x, y))
    assert [each.kind for each in found.failing] == ["input"], str(found)
    assert "batch" in found.failing[0].why


def scaled(model, optimizer, x):
    loss = model(x.to("cuda")).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.is_enabled()


@pytest.mark.parametrize("data", ["shapes", "real"])
def test_a_scaler_that_is_a_variable_of_the_module_is_on(data):
    before = dict(scaler.__dict__)
    model = nn.Linear(4, 3)
    found = tm.rehearse(scaled, model, torch.optim.SGD(model.parameters()), x, data=data)
    assert found, str(found)
    assert scaler.__dict__ == before
    if not torch.cuda.is_available():
        assert any("GradScaler('cuda')" in each for each in found.assumed)


scale = torch.ones(3)


def on_forward(module, given, result):
    return result * scale


def on_gradient(gradient):
    return gradient * scale[:, None]


def trained(model, x):
    model(x.to("cuda")).sum().backward()


@pytest.mark.parametrize("hook", [on_forward, on_gradient])
def test_what_a_hook_reaches_is_looked_at(hook):
    model = nn.Linear(4, 3)
    handle = model.register_forward_hook(hook) if hook is on_forward else model.weight.register_hook(hook)
    found = tm.rehearse(trained, model, x)
    assert [each.kind for each in found.failing] == ["loss"], str(found)
    assert "scale is on cpu" in found.failing[0].why
    handle.remove()
    assert tm.rehearse(trained, model, x)


calls = 0


def test_a_step_that_is_tried_without_the_simulation_leaves_the_variables_as_they_were():
    def step(model, x):
        global calls
        calls += 1
        raise ValueError("mine")

    found = tm.rehearse(step, nn.Linear(4, 3), x, confirm_errors=True)
    assert "the step also raises ValueError" in found.stopped
    assert calls == 0
