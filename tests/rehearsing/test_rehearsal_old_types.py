"""Old and rare ways to say where a tensor is: copies, types of tensors, numbers of devices, pinned memory."""

from __future__ import annotations

import functools
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import torchmove as tm

X = torch.ones(2, 4)
HERE = "test_rehearsal_old_types.py"


def net():
    return nn.Linear(4, 4)


def kinds(step, *objects, **options):
    found = tm.rehearse(step, *objects, **options)
    assert found.stopped == "", str(found)
    return [(each.kind, each.remedy) for each in found.failing]


# ---------------------------------------------------------------- copies


def copies(model, x):
    h = model(x.to("cuda"))
    same, wide = torch.tensor(h), torch.tensor(data=h, dtype=torch.float64, requires_grad=True)
    assert same.is_cuda
    assert wide.is_cuda
    assert (wide.dtype, wide.requires_grad, wide.is_leaf, same.requires_grad) == (torch.float64, True, True, False)
    assert not torch.tensor(h, device="cpu").is_cuda
    with torch.device("cpu"):
        assert not torch.tensor(h).is_cuda
    assert h.new_tensor(x).is_cuda
    assert not x.new_tensor(h).is_cuda
    return h + same + wide


@pytest.mark.filterwarnings("ignore:To copy construct")
@pytest.mark.parametrize("data", ["shapes", "real"])
def test_a_copy_of_a_tensor_is_on_its_device(data):
    assert kinds(copies, net(), X, data=data) == []


def test_a_list_of_tensors_is_read_by_new_tensor_and_new():
    def step(model, x):
        h = model(x.to("cuda")).detach()
        made, old = h.new_tensor([h.sum(), 2]), h.new([h[0, 0], h[0, 1]])
        assert (made.is_cuda, old.is_cuda, made.dtype) == (True, True, h.dtype)
        assert (made.tolist(), old.tolist()) == ([h.sum().item(), 2.0], h[0, :2].tolist())

    assert kinds(step, net(), X) == []


@pytest.mark.filterwarnings("ignore:To copy construct")
def test_a_copy_keeps_its_values_apart():
    def step(model, x):
        copied = torch.tensor(x)
        copied.zero_()
        assert x.sum() == 8
        return model(copied.to("cuda"))

    assert kinds(step, net(), X) == []


@pytest.mark.filterwarnings("ignore:To copy construct")
def test_a_copy_of_a_tensor_that_was_not_sent_is_the_same_mistake():
    assert kinds(lambda model, x: model(torch.tensor(x)), net(), X) == [("input", 'x = x.to("cuda")')]


def test_the_warning_about_a_copy_names_the_line_of_the_user():
    def step(model, x):
        return model(torch.tensor(x).to("cuda")) + x.new_tensor(x).to("cuda")

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        tm.rehearse(step, net(), X)
    said = [each for each in seen if "To copy construct" in str(each.message)]
    line = step.__code__.co_firstlineno + 1
    assert [(each.filename, each.lineno) for each in said] == [(__file__, line), (__file__, line)]


# ---------------------------------------------------------------- types of tensors


def takes_predictions(model, x):
    return torch.FloatTensor(model(x.to("cuda")).detach())


def takes_indices(model, x):
    indices = model(x.to("cuda")).argmax(1)
    return torch.LongTensor(indices) + indices


def test_a_type_of_the_cpu_refuses_a_tensor_of_the_device():
    assert kinds(takes_predictions, net(), X) == [("host", "model(x.to('cuda')).detach().to(torch.float32)")]
    assert kinds(takes_indices, net(), X) == [("host", "indices.to(torch.int64)")]


def test_a_type_of_the_device_refuses_a_tensor_of_the_cpu():
    assert kinds(lambda model, x: model(torch.cuda.FloatTensor(x)), net(), X) == [("input", 'x = x.to("cuda")')]
    assert kinds(lambda model, x: model(x.to("cuda")).new(x), net(), X) == [("input", 'x = x.to("cuda")')]


def of_the_cpu(model, x):
    made = torch.FloatTensor([1.0, 2.0, 3.0, 4.0]) + torch.FloatTensor(4).fill_(1) + torch.FloatTensor(np.ones(4))
    assert isinstance(made, torch.FloatTensor)
    assert not isinstance(made, (torch.LongTensor, torch.cuda.FloatTensor))
    assert isinstance(torch.FloatTensor(x), torch.FloatTensor)
    assert isinstance(model.weight, torch.cuda.FloatTensor)
    assert not isinstance(model.weight, torch.FloatTensor)
    assert made.type(torch.FloatTensor) is made
    assert made.type("torch.FloatTensor") is made
    return model(x.to("cuda")) + made.cuda() + x.type(torch.cuda.FloatTensor)


def test_types_of_tensors_tell_devices_apart():
    before = torch.FloatTensor
    assert kinds(of_the_cpu, net(), X) == []
    assert torch.FloatTensor is before


@pytest.mark.filterwarnings("ignore:torch.set_default_tensor_type")
@pytest.mark.parametrize("by_name", [False, True])
def test_a_default_type_of_the_device_makes_tensors_there(by_name):
    def step(model, x):
        torch.set_default_tensor_type("torch.cuda.DoubleTensor" if by_name else torch.cuda.DoubleTensor)
        made = torch.zeros(4) + torch.Tensor(4).fill_(1) + torch.randn(4) + torch.tensor([1.0, 2.0, 3.0, 4.0])
        assert made.is_cuda
        assert made.dtype is torch.float64
        torch.set_default_tensor_type("torch.FloatTensor" if by_name else torch.FloatTensor)
        return model(x.to("cuda")) + torch.ones(4)

    assert kinds(step, net(), X) == [("factory", 'torch.ones(4, device="cuda")')]
    assert (torch.get_default_dtype(), torch.zeros(1).device.type) == (torch.float32, "cpu")


# ---------------------------------------------------------------- numbers, pinned memory, dlpack


def numbered(model, x):
    with torch.device(0):
        inside = torch.zeros(4)
    assert torch.device(0) == torch.device("cuda", 0) == torch.device(type="cuda", index=0)
    made = torch.ones(4, device=torch.device(0)) + torch.ones(4, device=0)
    return model(x.to(torch.device(0))) + inside + made


def test_a_number_alone_is_a_device_of_that_number():
    assert kinds(numbered, net(), X) == []
    found = tm.rehearse(lambda model, x: model(x.to(torch.device(1))), net(), X)
    assert [each.kind for each in found.failing] == ["hard-coded"]


def pinned(model, x):
    page_locked = x.pin_memory()
    assert page_locked.is_pinned()
    assert page_locked[0].is_pinned()
    assert page_locked.pin_memory() is page_locked
    assert not x.is_pinned()
    assert not page_locked.clone().is_pinned()
    assert not page_locked.to("cuda").is_pinned()
    assert not model.weight.is_pinned()
    assert torch.empty(4, pin_memory=True).is_pinned()
    return model(page_locked.to("cuda", non_blocking=True))


@pytest.mark.parametrize("data", ["shapes", "real"])
def test_pinned_memory_is_pinned(data):
    assert kinds(pinned, net(), X, data=data) == []
    assert kinds(lambda model, x: model(x.pin_memory()), net(), X) == [("input", 'x = x.to("cuda")')]


@pytest.mark.parametrize("workers", [0, 1])
def test_what_a_pinning_loader_delivers_is_pinned(workers):
    def step(model, loader):
        for (x,) in loader:
            assert x.is_pinned()
            model(x.to("cuda", non_blocking=True))

    loader = DataLoader(TensorDataset(torch.ones(4, 4)), batch_size=2, pin_memory=True, num_workers=workers)
    assert kinds(step, net(), loader) == []


def shared(model, x):
    h = model(x.to("cuda")).detach()
    np.from_dlpack(h.cpu())
    np.from_dlpack(h)
    return torch.from_dlpack(h) + h


def test_numpy_takes_no_memory_of_a_device_by_dlpack():
    assert kinds(shared, net(), X) == [("numpy", "h.cpu()")]


def test_a_remedy_does_not_name_the_option_in_use():
    def step(model, x):
        return torch.func.vmap(model)(x.to("cuda"))

    found = tm.rehearse(step, net(), X, data="real")
    assert found.ending == "limit"
    assert "data='real'" not in found.stopped


# ---------------------------------------------------------------- checks of the step's own


def asserted(model, x):
    assert x.is_cuda
    return model(x)


def asserted_of_all(model, x):
    batch = [x, x]
    assert all(each.device.type == "cuda" for each in batch), "send them"
    return model(x)


def compared(model, x):
    if x.device != model.weight.device:
        raise ValueError("not together")
    return model(x)


@pytest.mark.parametrize("step", [asserted, asserted_of_all, compared])
def test_a_check_of_the_steps_own_that_a_misplaced_tensor_fails_is_a_device_bug(step):
    found = tm.rehearse(step, net(), X)
    assert (found.ending, [(each.kind, each.remedy) for each in found.failing]) == (
        "device",
        [("input", 'x = x.to("cuda")')],
    )
    assert "not a device error" not in str(found)


def test_other_checks_are_errors_of_the_step():
    def step(model, x):
        h = model(x.to("cuda"))
        if h.is_cuda:
            h = h + 1
        assert h.shape[0] == 99

    found = tm.rehearse(step, net(), X)
    assert (found.ending, [each.kind for each in found.failing]) == ("error", ["error"])
    assert "not a device error" in found.stopped


# ---------------------------------------------------------------- partials and methods


def scaled(model, x, scale=None, device="cuda"):
    return model(x.to(device)) * (1 if scale is None else scale)


def test_what_a_partial_that_is_the_step_gives_is_data_or_state_as_it_would_be_by_itself():
    assert kinds(functools.partial(scaled, x=X), net()) == []
    assert kinds(functools.partial(scaled, net(), X)) == []
    step = functools.partial(functools.partial(scaled, scale=torch.ones(4)), net())
    assert kinds(step, X) == [("input", 'scale = scale.to("cuda")')]
    assert kinds(functools.partial(lambda model, x: model(x), x=X), net()) == [("input", 'x = x.to("cuda")')]


class Learner:
    def __init__(this, device):  # noqa: N805
        this.device = device
        this.model = net().to(device)
        this.scale = torch.ones(4)

    def step(this, x):  # noqa: N805
        return this.model(x.to(this.device)) * this.scale


class Elsewhere:
    def __init__(me, device):  # noqa: N805
        me.device = device
        me.send_all()

    def send_all(me):  # noqa: N805
        me.model, me.scale = net().to(me.device), torch.ones(4).to(me.device)

    def step(me, x):  # noqa: N805
        return me.model(x.to(me.device)) * me.scale


DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def test_a_method_may_call_its_object_by_any_name():
    assert kinds(Learner(DEVICE).step, X) == [("loss", 'in Learner: self.scale = self.scale.to("cuda")')]
    assert kinds(Elsewhere(DEVICE).step, X) == []
