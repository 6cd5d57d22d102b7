"""What torch says of the simulated device: torch.cuda, torch.accelerator, tensor types, mixed precision."""

from __future__ import annotations

import copy
import functools
import gc
import io
import os
import pickle
import warnings

import numpy as np
import pytest
import torch
from test_corpus import no_accelerator
from torch import nn

import torchmove as tm
from torchmove.rehearsing.tensors import StandIn

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
        x = x.cuda(0, non_blocking=True)
        model(x)
    x.record_stream(torch.cuda.current_stream())
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
    "to an index by name": lambda x: x.to(device=0),
    "to another by name": lambda x: x.to(tensor=torch.zeros(1, device="cuda"), copy=True),
    "to with all by position": lambda x: x.to("cuda", torch.float32, False, True),
    "to a dtype with all by position": lambda x: x.to(torch.float32, False, True).cuda(),
    "tensor of values": lambda x: torch.tensor(x.tolist(), device="cuda"),
    "class of values": lambda x: torch.cuda.FloatTensor(x.tolist()),
    "class of a size": lambda x: torch.cuda.FloatTensor(3, 4).zero_(),
    "new_tensor": lambda x: torch.zeros(1, device="cuda").new_tensor(x.tolist()),
    "empty and copy": lambda x: torch.empty(3, 4, device="cuda").copy_(x),
    "from numpy": lambda x: torch.as_tensor(np.ones((3, 4), dtype=np.float32), device="cuda"),
}
MODULES_SENT = {
    "by position": lambda module: module.to("cuda"),
    "by name": lambda module: module.to(device="cuda"),
    "by name, with a dtype": lambda module: module.to(device=torch.device("cuda", 0), dtype=torch.float32),
    "to an index": lambda module: module.to(0),
    "to an index by name": lambda module: module.to(device=0),
    "to a tensor": lambda module: module.to(tensor=torch.zeros(1, device="cuda")),
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
def test_a_call_that_moves_the_batch_has_no_finding(name, data):
    assert kinds_in(lambda model, x: model(MOVES[name](x)), net(), X, data=data) == []


@pytest.mark.parametrize("data", ["shapes", "real"])
@pytest.mark.parametrize("name", MODULES_SENT)
def test_a_module_made_in_the_step_is_sent(name, data):
    assert kinds_in(lambda model, x: MODULES_SENT[name](nn.Linear(2, 2))(model(x.cuda())), net(), X, data=data) == []


@pytest.mark.parametrize("data", ["shapes", "real"])
@pytest.mark.parametrize("name", STAYS)
def test_a_call_that_moves_nothing_leaves_the_batch_on_the_cpu(name, data):
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
    assert str(found).startswith("1 device error")


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


USE_AMP = False
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # that there is no GPU, and that torch.cuda.amp is an old name
    OFF, ON = torch.autocast("cuda", enabled=USE_AMP), torch.autocast("cuda", torch.float16, enabled=not USE_AMP)
    OLD_OFF, OLD_ON = torch.cuda.amp.autocast(False), torch.cuda.amp.autocast(True)
    SCALER_OFF = torch.amp.GradScaler("cuda", enabled=USE_AMP)

    class Switched(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.amp = nn.Linear(4, 4), False
            self.off, self.on = torch.autocast("cuda", enabled=self.amp), torch.autocast("cuda", torch.float16, True)

        @torch.autocast("cuda", enabled=False)
        def forward(self, x):
            with self.on:
                on = self.layer(x).dtype
            with self.off:
                return self.layer(x).dtype, on, self.layer(x)

        @torch.autocast("cuda", torch.float16)
        def lowered(self, x):
            return self.layer(x).dtype


def switched_around():
    wanted = False
    region, available = (
        torch.autocast("cuda", enabled=wanted),
        torch.autocast("cuda", enabled=torch.cuda.is_available()),
    )

    def step(model, optimizer, x, of):
        x = x.to("cuda")
        regions = {"OFF": OFF, "ON": ON, "OLD_OFF": OLD_OFF, "OLD_ON": OLD_ON, "around": region, "available": available}
        for name, each in regions.items():
            with each:
                of[name] = model.layer(x).dtype
        of["attribute off"], of["attribute on"], _ = model(x)
        of["decorated"], of["decorated off"] = model.lowered(x), model(x)[2].dtype
        loss = model(x)[2].sum()
        assert SCALER_OFF.scale(loss) is loss
        assert of == {name: torch.float16 if name in LOWERED else torch.float32 for name in of}, of

    return step


LOWERED = {"ON", "OLD_ON", "available", "attribute on", "decorated"}


@pytest.mark.parametrize("data", ["shapes", "real"])
def test_what_was_switched_off_where_it_was_made_stays_off(data):
    model = Switched()
    found = tm.rehearse(switched_around(), model, torch.optim.SGD(model.parameters()), torch.ones(2, 4), {}, data=data)
    assert found, str(found)


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


# ---------------------------------------------------------------- generators


@pytest.mark.parametrize(
    ("draw", "kinds"),
    [
        (lambda g: torch.randn(3, device="cuda", generator=g("cuda")), []),
        (lambda g: torch.randn(3, generator=g("cpu")), []),
        (lambda g: torch.randn(3, device="cuda", generator=g("cpu")), ["generator"]),
        (lambda g: torch.randn(3, generator=g("cuda")), ["generator"]),
        (lambda g: torch.zeros(3, device="cuda").normal_(generator=g("cpu")), ["generator"]),
        (lambda g: torch.zeros(3, device="cuda").bernoulli_(generator=g("cuda")), []),
        (lambda g: torch.randperm(3, device="cuda", generator=g("cpu")), ["generator"]),
        (lambda g: nn.init.normal_(torch.zeros(3, device="cuda"), generator=g("cpu")), ["generator"]),
    ],
)
@pytest.mark.parametrize("data", ["shapes", "real"])
def test_a_generator_is_on_the_device_of_what_it_draws(draw, kinds, data):
    real = torch.Generator

    def step(model, x):
        model(x.to("cuda"))
        made = torch.Generator(device="cuda")
        assert (made.device.type, isinstance(real(), torch.Generator)) == ("cuda", True)
        draw(lambda device: torch.Generator(device).manual_seed(1))

    assert kinds_in(step, net(), X, data=data) == kinds
    assert torch.Generator is real


# ---------------------------------------------------------------- read on the CPU


def packs(model, x, place):
    x = x.to("cuda")[None].expand(2, 3, 4)
    packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([3, 2]).to(place), batch_first=True)
    model(packed.data)


def test_lengths_are_on_the_cpu():
    assert kinds_in(lambda model, x: packs(model, x, "cuda"), net(), X) == ["host"]
    assert kinds_in(lambda model, x: packs(model, x, "cpu"), net(), X) == []


def test_what_numpy_refuses_it_refuses_here():
    for go, said in [
        (lambda model, x: model(x.to("cuda")).cpu().numpy(), "Can't call numpy() on Tensor that requires grad"),
        (lambda model, x: model(x.to("cuda")).detach().bfloat16().cpu().numpy(), "BFloat16"),
    ]:
        found = tm.rehearse(go, net(), X)
        assert found.ending == "error"
        assert said in found.stopped


def test_binary_cross_entropy_is_refused_under_cudas_autocast():
    def step(model, x, enabled):
        with torch.autocast("cuda", enabled=enabled):
            y = torch.zeros(3, 2, device="cuda")
            nn.functional.binary_cross_entropy(model(x.to("cuda")).sigmoid(), y)

    found = tm.rehearse(step, net(), X, True)
    assert (found.ending, [each.kind for each in found.failing]) == ("device", ["dtype"])
    assert tm.rehearse(step, net(), X, False).ok


def test_a_gradient_is_assigned_on_the_device_of_its_tensor():
    def step(model, x, place):
        model.weight.grad = torch.zeros(2, 4, device=place)

    assert kinds_in(step, net(), X, "cuda") == []
    assert kinds_in(step, net(), X, "cpu") == ["stale-device"]


def test_a_gradient_finds_its_way_back_from_the_cpu():
    def step(model, x, write):
        out = torch.empty(3, 2)
        write(out, model(x.to("cuda")))
        out.sum().backward()
        assert model.weight.grad.device.type == "cuda"

    def by_assignment(out, value):
        out[:] = value

    for write in (by_assignment, lambda out, value: out.copy_(value)):
        assert kinds_in(step, net(), X, write) == []


@pytest.mark.parametrize("foreach", [True, False])
def test_a_weight_changed_before_backward_is_noticed(foreach):
    def step(model, optimizer, x):
        hidden = model[0](x.to("cuda"))
        out = model[1](hidden)
        out.sum().backward(retain_graph=True)
        optimizer.step()
        out.mean().backward()

    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    found = tm.rehearse(step, model, torch.optim.SGD(model.parameters(), 0.1, foreach=foreach), X)
    assert found.ending == "error"
    assert "modified by an inplace operation" in found.stopped


def test_memory_is_pinned_where_nothing_can_pin_it():
    def step(model, x):
        held = torch.empty(3, 4, pin_memory=True)
        held.copy_(x)
        model(held.to("cuda", non_blocking=True)).sum().backward()

    assert tm.rehearse(step, net(), torch.randn(3, 4))


def test_a_storage_of_bytes_becomes_a_tensor():
    bytes_of = torch.arange(8.0).untyped_storage()

    def step(model, x):
        model(x.to("cuda"))
        model(torch.asarray(bytes_of, dtype=torch.uint8, device="cuda").view(torch.float32).view(2, 4))

    assert tm.rehearse(step, net(), torch.randn(3, 4))


# ---------------------------------------------------------------- saved and loaded


def through_a_file(folder, map_location):
    path = folder / "best.pt"

    def step(model, x):
        torch.save(model.state_dict(), path)
        assert path.exists()  # to the step
        assert os.path.getsize(path) > 0
        model.load_state_dict(torch.load(path, map_location=map_location))
        loaded = torch.load(path, map_location=map_location)["weight"]
        assert loaded.device.type == ("cpu" if map_location == "cpu" else "cuda")
        x.to("cuda") @ loaded.T

    return step


def test_what_a_step_saves_it_can_load(tmp_path):
    for map_location in (None, "cuda", {"cuda:0": "cuda:0"}):
        assert kinds_in(through_a_file(tmp_path, map_location), net(), X) == []
        assert list(tmp_path.iterdir()) == []
    found = tm.rehearse(through_a_file(tmp_path, "cpu"), net(), X)
    assert [(each.kind, each.remedy) for each in found.failing] == [("input", 'torch.load(..., map_location="cuda")')]


def test_the_name_of_a_file_in_memory_is_no_path(tmp_path, monkeypatch):
    """Such as that of a member of an archive, from Python 3.13 on."""
    monkeypatch.chdir(tmp_path)

    def step(model, x):
        memory = io.BytesIO()
        memory.name = "weights.pt"
        torch.save(model.state_dict(), memory)
        assert memory.tell() > 0
        assert not os.path.exists("weights.pt")
        model.load_state_dict(torch.load(io.BytesIO(memory.getvalue())))

    assert kinds_in(step, net(), X) == []


def test_a_file_that_is_there_is_loaded_and_stays(tmp_path):
    path, model = tmp_path / "saved.pt", net()
    torch.save(model.state_dict(), path)
    before = path.read_bytes()

    def step(model, x):
        state = torch.load(path, map_location="cuda", weights_only=True)
        model.load_state_dict(state)
        torch.save({"model": model.state_dict()}, path)
        assert "model" in torch.load(path)

    assert kinds_in(step, model, X) == []
    assert path.read_bytes() == before


def test_what_is_pickled_has_its_values():
    def step(model, x):
        out = model(x.to("cuda")).detach()
        again = pickle.loads(pickle.dumps({"out": out, "weight": model.weight}))
        assert torch.equal(again["out"], again["out"])
        assert isinstance(again["weight"], nn.Parameter)
        memory = io.BytesIO()
        torch.save(out, memory)
        memory.seek(0)
        assert torch.load(memory).device.type == "cuda"
        assert copy.copy(out).device == out.device

    assert kinds_in(step, net(), X) == []


def test_with_shapes_alone_a_file_has_no_values(tmp_path):
    found = tm.rehearse(through_a_file(tmp_path, None), net(), X, data="shapes")
    assert found.ending == "limit"
    assert "best.pt" in found.stopped


# ---------------------------------------------------------------- what others remember


@functools.lru_cache
def has_cuda():
    return torch.cuda.is_available()


def test_cached_answers_are_asked_anew():
    with no_accelerator():
        before = has_cuda()

    def step(model, x):
        assert has_cuda()
        model(x.to("cuda" if has_cuda() else "cpu"))

    assert kinds_in(step, net(), X) == []
    assert has_cuda() is before


def test_nothing_of_a_rehearsal_is_kept():
    def step(x):
        model = nn.Linear(4, 4).to("cuda")
        optimizer = torch.optim.Adam(model.parameters())
        model(x.to("cuda")).sum().backward()
        optimizer.step()

    def alive():
        gc.collect()
        return sum(type(each) is StandIn for each in gc.get_objects())

    before = alive()
    assert tm.rehearse(step, X).ok
    assert alive() == before


def test_memory_is_handed_out_by_what_is_behind():
    def step(model, x):
        out = model(x.to("cuda")).detach().cpu()
        assert torch.from_dlpack(out).sum() == out.sum()
        assert np.from_dlpack(out).shape == (3, 2)
        assert len({each.untyped_storage().data_ptr() for each in model.parameters()}) == 2

    assert kinds_in(step, net(), X) == []


def test_one_gpu_is_enough_for_data_parallel():
    assert kinds_in(lambda model, x: nn.DataParallel(model)(x.to("cuda")).sum().backward(), net(), X) == []


# ---------------------------------------------------------------- what other code of torch's brings along


def test_ranges_for_a_profiler_are_marked_nowhere():
    def step(model, x):
        torch.cuda.nvtx.range_push("forward")
        with torch.cuda.nvtx.range("inner"):
            model(x.to("cuda"))
        torch.cuda.nvtx.range_pop()

    assert tm.rehearse(step, nn.Linear(4, 4), torch.ones(2, 4)).ok


def test_a_captured_graph_runs_as_it_was_written():
    def step(model, x):
        still, graph = x.to("cuda"), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = model(still)
        graph.replay()
        out.sum().backward()

    assert tm.rehearse(step, nn.Linear(4, 4), torch.ones(2, 4)).ok


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_a_nested_tensor_is_made_on_the_device_it_names(layout):
    def step(model, a, b):
        rows = torch.nested.nested_tensor([a, b], layout=layout, device="cuda")
        assert rows.device.type == "cuda"
        return model(rows)

    assert tm.rehearse(step, nn.Linear(4, 4), torch.ones(2, 4), torch.ones(3, 4)).ok


def test_forward_mode_is_not_followed():
    from torch.autograd import forward_ad

    def step(model, x):
        with forward_ad.dual_level():
            model(forward_ad.make_dual(x.to("cuda"), torch.ones_like(x)))

    found = tm.rehearse(step, nn.Linear(4, 4), torch.ones(2, 4))
    assert (found.ending, found.findings) == ("limit", ())
    assert "forward-mode differentiation" in found.stopped


def test_a_generator_on_the_wrong_device_is_found_once():
    def step(model):
        generator = torch.Generator("cpu")
        x = torch.randn(2, 4, device="cuda", generator=generator)
        model(x + torch.randn(2, 4, device="cuda", generator=generator))

    assert [each.kind for each in tm.rehearse(step, nn.Linear(4, 4)).failing] == ["generator"]


def test_the_gradient_of_what_was_computed_on_the_cpu_goes_back_there():
    table = nn.Embedding(5, 4)

    def step(model, ids):
        model(table(ids)).sum().backward()

    assert [each.kind for each in tm.rehearse(step, nn.Linear(4, 4), torch.arange(3)).failing] == ["closure"]


def test_activations_saved_by_hooks_are_where_the_hooks_leave_them():
    def step(model, x, back):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.cpu(), back):
            y = model(x.to("cuda")).exp()
        y.sum().backward()

    right, wrong = (lambda t: t.to("cuda")), (lambda t: t)
    model, x = nn.Linear(4, 4), torch.ones(2, 4)
    assert tm.rehearse(step, model, x, right).ok
    assert [each.kind for each in tm.rehearse(step, model, x, wrong).failing] == ["hard-coded"]
    with_torchs_own = tm.rehearse(_saved_on_cpu, model, x)
    assert with_torchs_own.ok, str(with_torchs_own)


def _saved_on_cpu(model, x):
    with torch.autograd.graph.save_on_cpu():
        y = model(x.to("cuda")).exp()
    y.sum().backward()


def test_a_step_that_moves_the_model_itself_is_told_what_was_assumed():
    class Net(nn.Linear):
        def __init__(self):
            super().__init__(4, 4)
            self.scale = torch.ones(4)

        def forward(self, x):
            return super().forward(x) * self.scale

    def step(model, x):
        model.to("cuda")
        model(x.to("cuda"))

    net, x = Net(), torch.ones(2, 4)
    (assumed,) = tm.rehearse(step, net, x).assumed
    assert assumed.startswith("net starts on the device with its plain attributes, as after tm.move")
    assert not tm.rehearse(step, net, x, moved_by="to").ok
    assert tm.rehearse(step, nn.Linear(4, 4), x).assumed == ()


@pytest.mark.parametrize("data", ["shapes", "real"])
@pytest.mark.parametrize(
    "ask",
    [
        lambda: torch.cuda.memory_stats()["allocated_bytes.all.peak"] + 1,
        lambda: len(torch.cuda.memory_snapshot()),
        lambda: torch.cuda.memory._record_memory_history(max_entries=10),
        lambda: torch.cuda.set_sync_debug_mode("warn"),
        lambda: torch.cuda.get_device_properties(0).max_threads_per_multi_processor + 1,
        lambda: [torch.cuda.profiler.start()],
        lambda: torch.cuda.cudart().cudaProfilerStart(),
    ],
)
def test_what_is_asked_of_the_device_is_answered(ask, data):
    def step(model, x):
        ask()
        model(x.to("cuda"))

    assert kinds_in(step, net(), X, data=data) == []


@pytest.mark.parametrize(
    "ask",
    [
        lambda: [torch.cuda.MemPool()],
        lambda: [torch.cuda.current_blas_handle()],
        lambda: [torch.backends.cuda.cufft_plan_cache.clear()],
        lambda: torch.cuda.ExternalStream(0),
    ],
)
def test_what_this_build_of_torch_lacks_is_a_limit_and_no_error_of_the_step(ask):
    if torch.cuda.is_available():
        pytest.skip("this machine has the device")
    found = tm.rehearse(lambda model, x: (model(x.to("cuda")), ask()), net(), X)
    assert (found.ending, found.failing) == ("limit", ()), str(found)


@pytest.mark.parametrize("data", ["shapes", "real"])
@pytest.mark.parametrize(
    "go",
    [
        lambda model, x: torch.meshgrid(x.to("cuda")[0], x[0], indexing="ij"),
        lambda model, x: torch.meshgrid([x.to("cuda")[0], x[0]]),
        lambda model, x: torch.cartesian_prod(x.to("cuda")[0], x[0]),
        lambda model, x: nn.utils.parameters_to_vector([model.weight, x]),
    ],
)
def test_devices_that_torch_compares_without_an_operation(go, data):
    found = tm.rehearse(go, net(), X, data=data)
    assert [each.kind for each in found.failing] == ["input"], str(found)


@pytest.mark.parametrize(("number", "kinds"), [((), []), ((0,), []), ((1,), ["input"])])
def test_what_is_loaded_goes_where_a_function_sends_its_storage(tmp_path, number, kinds):
    path = tmp_path / "table.pt"
    torch.save(X, path)

    def step(model, x):
        model(torch.load(path, map_location=lambda storage, tag: storage.cuda(*number)))

    assert kinds_in(step, net(), X) == kinds


def test_compressed_and_nested_tensors_with_shapes_alone_are_a_limit():
    def compressed(model, x):
        return torch.eye(3).to_sparse_csr().cuda() @ model(x.to("cuda"))

    def nested(model, x):
        return model(torch.nested.nested_tensor([x, x[:2]], device="cuda"))

    for step in (compressed, nested):
        assert tm.rehearse(step, net(), X, data="shapes").ending == "limit"
        assert tm.rehearse(step, net(), X, data="real").ok


class _MadeOnTheHost(torch.autograd.Function):
    @staticmethod
    def forward(_, x):
        return x * 2

    @staticmethod
    def backward(_, __):
        return torch.ones(2, 4)


@pytest.mark.parametrize("data", ["shapes", "real"])
def test_a_gradient_that_a_function_returns_is_on_the_device_of_its_tensor(data):
    def step(model, x):
        _MadeOnTheHost.apply(model.weight).sum().backward()

    found = tm.rehearse(step, net(), X, data=data)
    assert [each.kind for each in found.failing] == ["factory"], str(found)


@pytest.mark.parametrize("data", ["shapes", "real"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN, nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_recurrent_layers_under_cudas_autocast(kind, dtype, data):
    def step(layer, x):
        with torch.autocast("cuda", dtype=dtype):
            out = layer(x.to("cuda"))
            out = out[0] if isinstance(out, tuple) else out
        assert out.dtype is dtype
        out.sum().backward()

    assert kinds_in(step, kind(4, 4), X, data=data) == []
