"""What torch says of the simulated device: torch.cuda, torch.accelerator, tensor types, mixed precision."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from test_corpus import no_accelerator
from torch import nn

import torchmove as tm

pytestmark = pytest.mark.filterwarnings("ignore")  # that autocast and scalers are disabled without a GPU

X = torch.ones(3, 4)


def net():
    return nn.Linear(4, 2)


def kinds_in(step, *objects, **options):
    found = tm.rehearse(step, *objects, **options)
    assert found.stopped == "", found.stopped
    return [each.kind for each in found.failing]


# ---------------------------------------------------------------- torch.accelerator and torch.cuda


def accelerator(model, x):
    assert torch.accelerator.is_available()
    device = torch.accelerator.current_accelerator()
    assert (device.type, torch.accelerator.current_device_index()) == ("cuda", 0)
    assert torch.accelerator.device_count() == 1
    torch.accelerator.set_device_index(0)
    with torch.accelerator.device_index(0):
        model(x.to(device))
    stream = torch.Stream(device)
    with stream:
        model(x.to(device, non_blocking=True))
    event = torch.Event(device)
    event.record(stream)
    event.synchronize()
    torch.accelerator.current_stream().wait_stream(stream)
    torch.accelerator.synchronize()
    torch.accelerator.memory_allocated()
    torch.accelerator.max_memory_allocated()
    torch.accelerator.memory_stats()
    torch.accelerator.reset_peak_memory_stats()
    torch.accelerator.empty_cache()


def cuda(model, x):
    torch.cuda.manual_seed_all(0)
    torch.cuda.set_device(torch.device("cuda:0"))
    assert torch.cuda.get_device_properties(0).total_memory > 0
    assert torch.cuda.get_device_capability() >= (8, 0)
    with torch.cuda.device(0), torch.cuda.stream(torch.cuda.Stream()):
        model(x.cuda(0))
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    end.record()
    torch.cuda.synchronize()
    assert start.elapsed_time(end) >= 0
    state = torch.cuda.get_rng_state()
    torch.cuda.set_rng_state(state)


@pytest.mark.parametrize("step", [accelerator, cuda])
def test_the_runtime_answers_as_with_one_such_device(step):
    before = torch.cuda.is_available(), torch.accelerator.current_accelerator
    assert kinds_in(step, net(), X) == []
    assert before == (torch.cuda.is_available(), torch.accelerator.current_accelerator)


# ---------------------------------------------------------------- moves and makers of other names

MOVES = {
    "as_tensor": lambda x: torch.as_tensor(x, device="cuda"),
    "asarray": lambda x: torch.asarray(x, device="cuda"),
    "type_as": lambda x: x.type_as(torch.zeros(1, device="cuda")),
    "type of another": lambda x: x.type(torch.zeros(1, device="cuda").type()),
    "type by name": lambda x: x.type("torch.cuda.FloatTensor"),
    "type by class": lambda x: x.type(torch.cuda.FloatTensor),
    "to of another": lambda x: x.to(torch.zeros(1, device="cuda")),
    "to an index": lambda x: x.to(0),
    "tensor of values": lambda x: torch.tensor(x.tolist(), device="cuda"),
    "class of values": lambda x: torch.cuda.FloatTensor(x.tolist()),
    "class of a size": lambda x: torch.cuda.FloatTensor(3, 4).zero_(),
    "new_tensor": lambda x: torch.zeros(1, device="cuda").new_tensor(x.tolist()),
    "empty and copy": lambda x: torch.empty(3, 4, device="cuda").copy_(x),
    "from numpy": lambda x: torch.as_tensor(np.ones((3, 4), dtype=np.float32), device="cuda"),
}
STAYS = {
    "as_tensor": torch.as_tensor,
    "asarray": torch.asarray,
    "type": lambda x: x.type(torch.FloatTensor),
    "a name": lambda x: x.type("torch.FloatTensor"),
    "from numpy": lambda x: torch.from_numpy(np.ones((3, 4), dtype=np.float32)),
    "Tensor of numpy": lambda x: torch.Tensor(np.ones((3, 4), dtype=np.float32)),
}


@pytest.mark.parametrize("data", ["shapes", "real"])
@pytest.mark.parametrize("name", MOVES)
def test_it_is_a_move(name, data):
    assert kinds_in(lambda model, x: model(MOVES[name](x)), net(), X, data=data) == []


@pytest.mark.parametrize("data", ["shapes", "real"])
@pytest.mark.parametrize("name", STAYS)
def test_it_is_none(name, data):
    (kind,) = kinds_in(lambda model, x: model(STAYS[name](x)), net(), X, data=data)
    assert kind == ("factory" if "numpy" in name else "input")


def test_the_type_of_a_tensor_on_the_device_says_so():
    def step(model, x):
        assert x.type() == "torch.FloatTensor"
        assert x.to("cuda").type() == "torch.cuda.FloatTensor"
        assert isinstance(x.to("cuda"), torch.cuda.FloatTensor)
        assert not isinstance(x, torch.cuda.FloatTensor)
        model(x.to("cuda"))

    assert kinds_in(step, net(), X) == []


def test_the_backward_of_a_function_makes_tensors_where_it_says():
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, where):
            ctx.where = where
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * torch.full((1,), 2.0, device=ctx.where), None  # made in backward

    def step(model, x, where):
        Scale.apply(model(x.to("cuda")), where).sum().backward()

    assert kinds_in(step, net(), X, "cuda") == []
    (kind,) = kinds_in(lambda model, x: step(model, x, "cpu"), net(), X)
    assert kind in ("hard-coded", "stale-device")


# ---------------------------------------------------------------- sparse, inference mode, zero-dim values


def test_a_view_of_an_outside_tensor_in_inference_mode():
    @torch.inference_mode()
    def step(model, x):
        return model(x[:2].to("cuda")) + model(x.T.contiguous().T.to("cuda"))[0]

    assert kinds_in(step, net(), X) == []


def test_sparse_tensors_are_sent_and_checked():
    graph = torch.eye(3).to_sparse()

    def step(model, x, *, send=True):
        torch.sparse.mm(graph.to("cuda") if send else graph, model(x.to("cuda")))

    assert kinds_in(step, net(), X) == []
    assert len(kinds_in(lambda model, x: step(model, x, send=False), net(), X)) == 1


@pytest.mark.parametrize("data", ["auto", "real"])
def test_a_tensor_of_zero_dim_tensors(data):
    def step(model, x):
        total = model(x.to("cuda")).sum()
        return torch.tensor([total, total * 2], device="cuda") + total

    assert kinds_in(step, net(), X, data=data) == []


# ---------------------------------------------------------------- one tensor, one finding


def test_one_forgotten_tensor_is_one_finding():
    def step(model, optimizer, x):
        x = x + 1
        loss = (model(x) + x[:, :2] + x.sum()).square().mean()
        loss.backward()
        optimizer.step()

    model = net()
    found = tm.rehearse(step, model, torch.optim.AdamW(model.parameters()), X)
    assert [each.kind for each in found.failing] == ["input"]
    assert str(found).startswith("1 place would fail")


def test_a_module_built_in_the_step_and_not_moved_is_one_finding():
    def step(model, x):
        head = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
        head(model(x.to("cuda"))).sum().backward()

    (finding,) = tm.rehearse(step, net(), X).failing
    assert (finding.kind, finding.remedy) == ("factory", 'head = head.to("cuda")')


# ---------------------------------------------------------------- mixed precision

WIDTH = 256


def wide():
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))


def trained(model, optimizer, x, context, scaler):
    with context:
        loss = model(x.to("cuda")).square().mean()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    return loss


def peaks(dtype, data):
    """The peak with autocast and scaler made outside the step, inside, and without any."""
    model, x = wide(), torch.ones(512, WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with no_accelerator():
        context, scaler = torch.autocast("cuda", dtype=dtype), torch.amp.GradScaler("cuda")
    before = dict(scaler.__dict__)

    def inside(model, optimizer, x):
        trained(model, optimizer, x, torch.autocast("cuda", dtype=dtype), torch.amp.GradScaler("cuda"))

    def disabled(model, optimizer, x):
        trained(model, optimizer, x, torch.autocast("cuda", enabled=False), torch.amp.GradScaler("cuda"))

    outside = tm.rehearse(trained, model, optimizer, x, context, scaler, data=data)
    others = [tm.rehearse(each, model, optimizer, x, data=data) for each in (inside, disabled)]
    assert all([outside, *others]), [str(outside), *map(str, others)]
    if not torch.cuda.is_available():
        assert any("autocast('cuda')" in each for each in outside.assumed)
        assert any("GradScaler('cuda')" in each for each in outside.assumed)
    assert scaler.__dict__ == before
    return [each.peak_bytes for each in (outside, *others)]


@pytest.mark.parametrize("data", ["shapes", "real"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_and_scalers_made_outside_are_on(dtype, data):
    outside, inside, disabled = peaks(dtype, data)
    assert abs(outside - inside) <= 4096
    assert outside < disabled


def test_under_autocast_the_operations_have_cudas_dtypes():
    def step(model, x):
        with torch.autocast("cuda", dtype=torch.float16):
            out = model(x.to("cuda"))
            assert out.dtype == torch.float16
            assert out.softmax(-1).dtype == out.exp().dtype == out.sum().dtype == torch.float32
            assert torch.nn.functional.layer_norm(out, (2,)).dtype == torch.float32
            assert nn.functional.mse_loss(out, out).dtype == torch.float32
            assert torch.relu(out).dtype == torch.float16
            with torch.autocast("cuda", enabled=False):
                assert model(x.to("cuda")).dtype == torch.float32

    assert kinds_in(step, net(), X) == []
    assert not torch.is_autocast_enabled("cpu")
