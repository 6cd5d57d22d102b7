"""Every module and every optimizer torch lists for its own tests rehearses: forward, backward, two steps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map
from torch_own import MODULES, OPTIMIZERS

import torchmove as tm
from torchmove.rehearsing import device, operators

pytestmark = pytest.mark.filterwarnings("ignore")

# With nothing known but shapes, their forward or backward cannot go on: it looks at values, or has no kernel for that.
NEED_DATA = {
    *(f"nn.BatchNorm{dimensions}d" for dimensions in (1, 2, 3)),  # momentum=None: divides by a count it reads
    *(f"nn.FractionalMaxPool{dimensions}d" for dimensions in (2, 3)),
    *("nn.MultiLabelMarginLoss", "nn.MultiMarginLoss", "nn.GaussianNLLLoss", "nn.CTCLoss"),
    *("nn.TransformerEncoder", "nn.Transformer"),  # look whether a mask is causal
}


def step(module, args, kwargs):
    args, kwargs = tree_map(lambda each: each.to("cuda") if isinstance(each, Tensor) else each, (args, kwargs))
    outputs = [each for each in tree_leaves(module(*args, **kwargs)) if isinstance(each, Tensor) and each.requires_grad]
    if outputs:
        sum(output.abs().sum() for output in outputs).backward()


@pytest.mark.sampled(32)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("info", MODULES, ids=lambda info: info.name)
def test_modules(info, training):
    rehearse_samples(info, training=training, data="shapes")


@pytest.mark.sampled(24)
@pytest.mark.parametrize("info", MODULES, ids=lambda info: info.name)
def test_modules_when_nothing_is_known_but_shapes(info, monkeypatch):
    for module in (operators, device):
        monkeypatch.setattr(module, "MOST_BYTES", 0)
    rehearse_samples(info, training=True, data="real" if info.name in NEED_DATA else "shapes")


def rehearse_samples(info, *, training, data):
    dtype = torch.float32 if torch.float32 in info.dtypes else info.dtypes[0]
    for sample in info.module_inputs_func(info, "cpu", dtype, requires_grad=True, training=training):
        if sample.forward_input is None:
            continue
        module = info.module_cls(*sample.constructor_input.args, **sample.constructor_input.kwargs).to(dtype)
        given = (sample.forward_input.args, sample.forward_input.kwargs)
        found = tm.rehearse(step, module.train(training), *given, data=data)
        is_refused = issubclass(info.module_cls, torch.nn.RNNBase) and not training  # by cuDNN, in the backward pass
        assert [each.kind for each in found.failing] == (["dtype"] if is_refused else [])
        assert found.stopped == ""


def two_steps(model, optimizer, x):
    x = x.to("cuda")

    def closure():
        optimizer.zero_grad()
        loss = model(x).float().square().mean()
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)


def state_of(optimizer):
    return [[(key, str(value)) for key, value in state.items()] for state in optimizer.state.values()]


def cases():
    for info in OPTIMIZERS:
        # In torch 2.10 Adagrad's fused step is not for CUDA.
        has = {each for each in info.supported_impls if each != "fused" or "cuda" in info.supports_fused_on}
        flags = [{}, *({flag: True} for flag in ("foreach", "fused") if flag in has)]
        for sample in info.optim_inputs_func(device="cuda"):
            for flag in flags:
                name = "-".join([info.optim_cls.__name__, sample.desc.replace(" ", "_"), *flag])
                yield pytest.param(info, {**sample.kwargs, **flag}, id=name)


@pytest.mark.sampled(32)
@pytest.mark.parametrize(("info", "options"), list(cases()))
def test_optimizers(info, options):
    options = {key: value.clone() if isinstance(value, Tensor) else value for key, value in options.items()}
    if options.get("foreach") and options.get("fused"):
        pytest.skip("torch allows only one of foreach and fused")
    sparse, name = info.only_supports_sparse_grads, info.optim_cls.__name__
    model = (
        nn.Embedding(6, 3, sparse=True)
        if sparse
        else nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 1, bias=False))
    )
    x = torch.tensor([1, 2]) if sparse else torch.ones(2, 4)
    optimizer = info.optim_cls(model.parameters(), **options)
    before = state_of(optimizer)
    found = tm.rehearse(two_steps, model, optimizer, x)
    if found.stopped:
        assert sparse or name == "LBFGS" or any(isinstance(value, Tensor) for value in tree_leaves(options))
        assert "data='real'" in found.stopped
        found = tm.rehearse(two_steps, model, optimizer, x, data="real")
    assert [each for each in found.findings if not each.is_note] == []
    assert found.stopped == ""
    assert state_of(optimizer) == before
