"""Every module and every optimizer torch lists for its own tests runs on the twin device."""

import inspect
import itertools

import pytest
import torch
from torch.nn.parameter import is_lazy
from torch.testing._internal.common_modules import module_db
from torch.testing._internal.common_optimizers import optim_db
from torch.utils._pytree import tree_leaves, tree_map

pytestmark = [pytest.mark.twin, pytest.mark.filterwarnings("ignore")]


# --- modules ---------------------------------------------------------------------------------------------------------


def moved(tree, device, dtype):
    def move(leaf):
        if not isinstance(leaf, torch.Tensor):
            return leaf
        there = leaf.detach().to(device, dtype if leaf.dtype.is_floating_point else None)
        return there.requires_grad_(leaf.requires_grad)

    return tree_map(move, tree)


def outcome(info, sample, training, device, dtype):
    """Float outputs and gradients after one forward and backward on `device`."""
    how_built, how_called = sample.constructor_input, sample.forward_input
    torch.manual_seed(0)
    module = info.module_cls(*moved(how_built.args, device, dtype), **moved(how_built.kwargs, device, dtype))
    if any(map(is_lazy, module.parameters())):  # Module.to would make ordinary empty parameters of these
        module(*how_called.args, **how_called.kwargs)
    module.train(training).to(device)
    output = module(*moved(how_called.args, device, dtype), **moved(how_called.kwargs, device, dtype))
    floats = [t for t in tree_leaves(output) if isinstance(t, torch.Tensor) and t.dtype.is_floating_point]
    differentiable = [t for t in floats if t.requires_grad]
    if differentiable:
        sum(t.sum() for t in differentiable).backward()
    assert all(t.device == torch.device(device) for t in floats)
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    return [t.detach().cpu() for t in (*floats, *gradients)]


@pytest.mark.sampled(12)
@pytest.mark.parametrize("info", module_db, ids=lambda info: info.name)
def test_module(info):
    dtype = torch.float32 if torch.float32 in info.dtypes else info.dtypes[0]
    for training in (True, False) if info.train_and_eval_differ else (True,):
        for sample in info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=True, training=training):
            here, there = (outcome(info, sample, training, device, dtype) for device in ("cpu", "twin:0"))
            torch.testing.assert_close(there, here, rtol=1e-4, atol=1e-4, equal_nan=True)


# --- optimizers ------------------------------------------------------------------------------------------------------

FLAGS = ("foreach", "fused", "capturable", "differentiable")
REFUSED_TOGETHER = ({"foreach", "fused"}, {"foreach", "differentiable"}, {"fused", "differentiable"})  # on any device


def flag_sets(optimizer):
    known = [flag for flag in FLAGS if flag in inspect.signature(optimizer).parameters]
    for values in itertools.product(*((None, False, True) if flag == "foreach" else (None, True) for flag in known)):
        flags = {flag: value for flag, value in zip(known, values, strict=True) if value is not None}
        chosen = {flag for flag, value in flags.items() if value}
        if not any(pair <= chosen for pair in REFUSED_TOGETHER):
            yield flags


def parameters_with_gradients(info, differentiable):
    """What each optimizer can take: Muon wants matrices, SparseAdam sparse gradients, `differentiable` no leaves."""
    if info.only_supports_sparse_grads:
        table = torch.nn.Embedding(6, 3, sparse=True).to("twin:0")
        table(torch.tensor([0, 1, 4], device="twin:0")).square().sum().backward()
        return [table.weight]
    shapes = [(4, 3), (2, 5)] if info.optim_cls is torch.optim.Muon else [(4, 3), (5,)]
    leaves = [torch.nn.Parameter(torch.rand(shape).to("twin:0")) for shape in shapes]
    parameters = [leaf.clone() for leaf in leaves] if differentiable else leaves
    for parameter in parameters:
        parameter.grad = parameter.detach().exp()
    return parameters


def steps(info, options):
    parameters = parameters_with_gradients(info, options.get("differentiable"))
    before = [parameter.detach().clone() for parameter in parameters]
    optimizer = info.optim_cls(parameters, **options)
    for _ in range(3):
        optimizer.step((lambda: sum(p.exp().sum() for p in parameters)) if info.step_requires_closure else None)
    for parameter, old in zip(parameters, before, strict=True):
        assert parameter.device == torch.device("twin:0")
        assert parameter.isfinite().all()
        assert not parameter.equal(old)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("info", optim_db, ids=lambda info: info.optim_cls.__name__)
def test_optimizer(info):
    # Asked for CUDA, torch lists what it lists for the CPU, and what only accelerators take.
    for listed, flags in itertools.product(info.optim_inputs_func(device="cuda"), flag_sets(info.optim_cls)):
        steps(info, {**listed.kwargs, **flags})
