"""Lazy modules in a rehearsal: given, global, and built in the step."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torchmove as tm

DATA = ["shapes", "real"]
HEAD = nn.LazyLinear(3)
LAZY = {
    "linear": (lambda: nn.LazyLinear(2), (2, 4)),
    "convolution": (lambda: nn.LazyConv1d(3, 1), (2, 4, 5)),
    "normalisation": (nn.LazyBatchNorm1d, (3, 4)),
}


def is_as_before(module):
    return all(type(each) in (nn.UninitializedParameter, nn.UninitializedBuffer) for each in module.parameters())


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("kind", LAZY)
@pytest.mark.parametrize("sent", ["to", "cuda", "device="])
def test_built_in_the_step_and_sent(data, kind, sent):
    build, shape = LAZY[kind]

    def step(model, x):
        if sent == "device=":
            with torch.device("cuda"):
                head = build()
        else:
            head = build().to("cuda") if sent == "to" else build().cuda()
        out = head(model(x.to("cuda")))
        out.sum().backward()
        assert all(each.device.type == "cuda" and each.grad.device.type == "cuda" for each in head.parameters())

    found = tm.rehearse(step, nn.Linear(shape[-1], shape[-1]), torch.ones(shape), data=data)
    assert found, str(found)


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("kind", LAZY)
def test_built_in_the_step_and_not_sent(data, kind):
    build, shape = LAZY[kind]

    def step(model, x):
        return build()(model(x.to("cuda")))

    found = tm.rehearse(step, nn.Linear(shape[-1], shape[-1]), torch.ones(shape), data=data)
    assert [each.kind for each in found.findings] == ["factory"]
    assert "not moved" in found.findings[0].why


@pytest.mark.parametrize("data", DATA)
def test_a_given_one_is_where_the_move_puts_it(data):
    def step(model, x):
        return model(x.to("cuda"))

    def sends(model, x):
        return model.to("cuda")(x.to("cuda"))

    for moved_by, one in (("torchmove", step), ("to", step), ("to", sends)):
        model = nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d())
        found = tm.rehearse(one, model, torch.ones(2, 4), moved_by=moved_by, data=data)
        assert found, str(found)
        assert is_as_before(model)


@pytest.mark.parametrize("data", DATA)
def test_one_of_the_module_around_the_step_stays(data):
    def step(model, x):
        return HEAD(model(x.to("cuda")))

    found = tm.rehearse(step, nn.Linear(4, 4), torch.ones(2, 4), data=data)
    assert len(found.findings) == 1
    assert "HEAD" in found.findings[0].why
    assert is_as_before(HEAD)
