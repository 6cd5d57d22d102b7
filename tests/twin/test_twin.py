"""The twin device is a real other device: bytes of its own, views, accounts, failures, and training as on the CPU."""

import copy
import ctypes
import io
import threading

import pytest
import torch
from threads import threads
from torch import nn

from . import install

pytestmark = pytest.mark.twin

DEVICES = ("twin:0", "twin:1")


def filled(shape=(3, 4), device="twin:0", dtype=torch.float32):
    return torch.arange(torch.Size(shape).numel()).reshape(shape).to(device, dtype)


def test_install_registers_once(twin):
    assert install() is twin is torch.twin
    assert torch.accelerator.current_accelerator().type == "twin"
    assert (twin.device_count(), torch.accelerator.device_count()) == (2, 2)


# --- bytes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
def test_bytes_are_elsewhere(device):
    here = torch.arange(4, dtype=torch.int32)
    there = here.to(device)
    assert there.data_ptr() != here.data_ptr()
    assert ctypes.string_at(there.data_ptr(), 16) == here.numpy().tobytes()
    here.zero_()
    assert there.tolist() == [0, 1, 2, 3]
    with pytest.raises(TypeError, match="can't convert"):
        there.numpy()


def test_two_devices_do_not_share_bytes():
    first = filled(device="twin:0")
    second = first.to("twin:1")
    first.zero_()
    assert second.device == torch.device("twin:1")
    assert second.cpu().equal(filled(device="cpu"))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float8_e4m3fn, torch.complex64, torch.bool])
def test_there_and_back_keeps_bits_and_strides(dtype):
    here = torch.randn(4, 6).to(dtype).t()
    back = here.to("twin:0").to("twin:1").cpu()
    assert back.stride() == here.stride()
    assert back.t().view(torch.uint8).equal(here.t().view(torch.uint8))


def test_save_load_and_deepcopy():
    there = filled()
    file = io.BytesIO()
    torch.save(there, file)
    file.seek(0)
    for other in (torch.load(file), copy.deepcopy(there)):
        assert other.device == there.device
        assert other.data_ptr() != there.data_ptr()
        assert other.equal(there)


# --- views -----------------------------------------------------------------------------------------------------------

VIEWS = {
    "alias": torch.ops.aten.alias,
    "as_strided": lambda x: x.as_strided((2, 2), (1, 4), 1),
    "detach": lambda x: x.detach(),
    "diagonal": lambda x: x.diagonal(),
    "expand": lambda x: x[:1].expand(5, 4),
    "movedim": lambda x: x.movedim(0, 1),
    "narrow": lambda x: x.narrow(1, 1, 2),
    "real": torch.view_as_real,
    "reshape": lambda x: x.reshape(2, -1),
    "_reshape_alias": lambda x: torch.ops.aten._reshape_alias(x, (4, 3), (3, 1)),
    "select": lambda x: x[1],
    "set_": lambda x: x.new_empty(0).set_(x),
    "set_ storage": lambda x: x.new_empty(0).set_(x.untyped_storage(), 1, (2, 2), (4, 1)),
    "slice": lambda x: x[::2, 1:],
    "split": lambda x: x.split(2, 1)[1],
    "squeeze": lambda x: x[:1].squeeze(0),
    "transpose": lambda x: x.t(),
    "unbind": lambda x: x.unbind(1)[2],
    "unfold": lambda x: x.unfold(1, 2, 1),
    "view": lambda x: x.view(4, 3),
    "view dtype": lambda x: x.view(torch.int32),
    "conj": lambda x: x.conj(),
    "imaginary part of conj": lambda x: x.conj().imag,
}


@pytest.mark.parametrize("make", VIEWS.values(), ids=VIEWS)
def test_views_alias_as_on_the_cpu(make):
    here, there = filled(device="cpu", dtype=torch.complex64), filled(dtype=torch.complex64)
    view_here, view_there = make(here), make(there)
    assert view_there.untyped_storage().data_ptr() == there.untyped_storage().data_ptr()
    assert (view_there.stride(), view_there.storage_offset()) == (view_here.stride(), view_here.storage_offset())
    assert (view_there.is_conj(), view_there.is_neg()) == (view_here.is_conj(), view_here.is_neg())
    for view in (view_here, view_there):
        view.select(0, 0).copy_(torch.full_like(view.select(0, 0), 7))
    assert view_there.cpu().equal(view_here)
    assert there.cpu().equal(here)


def test_view_as_complex_and_resolve():
    there = filled((2, 2))
    number = torch.view_as_complex(there)
    number.conj().copy_(torch.tensor([1 + 2j, 3 - 4j]))
    assert there.tolist() == [[1, -2], [3, 4]]
    assert number.conj().resolve_conj().tolist() == [1 + 2j, 3 - 4j]


def test_results_keep_the_identity_and_the_size_torch_gives_them():
    there, out = filled(), torch.empty(0, device="twin:0")
    assert torch.add(there, there, out=out) is out
    assert out.shape == (3, 4)
    assert out.resize_(5, 4).shape == (5, 4)
    assert out.flatten()[:12].equal(2 * there.flatten())


# --- accounts --------------------------------------------------------------------------------------------------------


def test_bytes_in_use_are_counted_per_device(twin):
    before = [twin.bytes_in_use(index) for index in (0, 1)]
    first, second = torch.empty(10, device="twin:0"), torch.empty(100, dtype=torch.uint8, device="twin:1")
    assert [twin.bytes_in_use(device) for device in DEVICES] == [before[0] + 40, before[1] + 100]
    assert twin.bytes_in_use() == sum(before) + 140
    with twin.device(0):
        del second
    with twin.device(1):
        del first
    assert [twin.bytes_in_use(index) for index in (0, 1)] == before


def test_bytes_in_use_are_the_same_after_training(twin):
    before = twin.bytes_in_use()
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)).to("twin:1")
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        model(torch.ones(3, 4, device="twin:1")).sum().backward()
        optimizer.step()
    assert twin.bytes_in_use("twin:1") > 0
    del model, optimizer
    assert twin.bytes_in_use() == before


def test_a_storage_can_be_emptied_and_filled_again(twin):
    there = torch.ones(100, device="twin:1")
    held, storage = twin.bytes_in_use(1), there.untyped_storage()
    storage.resize_(0)
    assert twin.bytes_in_use(1) == held - 400
    storage.resize_(400)
    assert twin.bytes_in_use(1) == held
    assert there.fill_(2).sum() == 200


def test_threads_count_bytes_in_use_correctly(twin):
    def work(device, other):
        for _ in range(50):
            torch.randn(16, 16, device=device).matmul(torch.ones(16, 16, device=device)).to(other)

    before = [twin.bytes_in_use(index) for index in (0, 1)]
    threads = [threading.Thread(target=work, args=pair) for pair in (DEVICES, DEVICES[::-1]) * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [twin.bytes_in_use(index) for index in (0, 1)] == before


def test_memory_info_follows_the_limit(twin):
    used = twin.bytes_in_use(1)
    assert twin.mem_get_info(1)[1] > 2**30
    twin.limit_bytes(used + 1000, "twin:1")
    assert twin.mem_get_info("twin:1") == torch.accelerator.get_memory_info(1) == (1000, used + 1000)
    with twin.device(1):
        assert twin.mem_get_info()[0] == 1000


# --- failures --------------------------------------------------------------------------------------------------------


def test_limit(twin):
    twin.limit_bytes(twin.bytes_in_use(0) + 100, device=0)
    torch.empty(100, dtype=torch.uint8, device="twin:0")
    with pytest.raises(torch.OutOfMemoryError, match="twin:0 is out of memory: asked for 101 bytes"):
        torch.empty(101, dtype=torch.uint8, device="twin:0")
    torch.empty(101, dtype=torch.uint8, device="twin:1")


def test_limit_holds_for_results_and_leaves_resized_tensors_alone(twin):
    there = torch.ones(10, device="twin:0")
    twin.limit_bytes(twin.bytes_in_use(0), device=0)
    with pytest.raises(torch.OutOfMemoryError):
        there + 1
    with pytest.raises(torch.OutOfMemoryError):
        there.resize_(100)
    assert there.shape == (10,)
    assert there.add_(1).tolist() == [2] * 10


def test_fail_at_springs_once(twin):
    twin.fail_at(2)
    count = twin.allocations()
    torch.empty(0, device="twin:0")
    torch.empty(1, device="twin:0")
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(1, device="twin:1")
    torch.empty(1, device="twin:1")
    assert twin.allocations() == count + 2


def test_fail_at_reaches_backward(twin):
    weight = torch.ones(5, device="twin:0", requires_grad=True)
    loss = weight.exp().sum()
    twin.fail_at(1)
    with pytest.raises(torch.OutOfMemoryError):
        loss.backward()


def test_fail_at_can_be_removed(twin):
    twin.fail_at(1)
    twin.fail_at(0)
    torch.empty(1, device="twin:0")


def test_fail_copy_at_springs_once(twin):
    here, there = torch.ones(3), torch.zeros(3, device="twin:0")
    twin.fail_copy_at(2)
    there.copy_(here)
    with pytest.raises(RuntimeError, match="twin: copy failed"):
        there.cpu()
    assert there.to("twin:1").cpu().equal(here)


def test_fail_copy_at_reaches_sparse_tensors(twin):
    twin.fail_copy_at(1)
    with pytest.raises(RuntimeError, match="twin: copy failed"):
        torch.eye(3).to_sparse().to("twin:0")


def test_mixed_devices_raise_in_a_convolution():
    there, elsewhere = (torch.ones(1, 1, 3, 3, device=device) for device in DEVICES)
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        nn.functional.conv2d(there, elsewhere)


@pytest.mark.parametrize("other", ["cpu", "twin:1"])
def test_mixed_devices_raise(other):
    mixed = "Expected all tensors to be on the same device"
    there, elsewhere = torch.ones(3, device="twin:0"), torch.ones(3, device=other)
    for attempt in (
        lambda: there + elsewhere,
        lambda: there.add_(elsewhere),
        lambda: torch.add(there, there, out=elsewhere),
        lambda: torch.cat([there, elsewhere]),
        lambda: torch.ones((), device=other).add_(there[0]),
        lambda: nn.functional.linear(there, elsewhere),
    ):
        with pytest.raises(RuntimeError, match=mixed):
            attempt()


def test_cpu_scalars_and_indices_may_join():
    there = filled()
    assert (there * torch.tensor(2.0)).device == there.device
    assert there[torch.tensor([2, 0])].cpu().equal(filled(device="cpu")[[2, 0]])
    with pytest.raises(RuntimeError, match="same device"):
        there[torch.tensor([0], device="twin:1")]


@pytest.mark.parametrize(
    "use",
    [
        lambda twin: twin.set_device(2),
        lambda twin: twin.bytes_in_use(2),
        lambda twin: torch.ones(1, device="twin:2"),
    ],
    ids=["set_device", "bytes_in_use", "ones"],
)
def test_there_is_no_third_device(use, twin):
    with pytest.raises(RuntimeError, match="no device with index 2"):
        use(twin)
    assert twin.current_device() == 0


# --- training --------------------------------------------------------------------------------------------------------


class Recurrent(nn.Module):
    def __init__(self, cell):
        super().__init__()
        self.cell, self.head = cell(5, 6, num_layers=2), nn.Linear(6, 1)

    def forward(self, x):
        return self.head(self.cell(x)[0])


MODELS = {
    "perceptron": (lambda: nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.GELU(), nn.Linear(7, 1)), (4, 5)),
    "convolution": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.ConvTranspose2d(4, 1, 2)),
        (2, 3, 6, 6),
    ),
    "lstm": (lambda: Recurrent(nn.LSTM), (3, 2, 5)),
    "gru": (lambda: Recurrent(nn.GRU), (3, 2, 5)),
}


def trained(build, shape, device):
    """The parameters and the last gradients after a few steps."""
    torch.manual_seed(0)
    model = build()
    x = torch.randn(shape).to(device)
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    assert all(parameter.device == x.device for parameter in model.parameters())
    return [t.detach().cpu() for p in model.parameters() for t in (p, p.grad)]


@pytest.fixture
def same_threads():
    with threads(torch.get_num_threads()):
        yield


@pytest.mark.parametrize("name", MODELS)
def test_trains_as_on_the_cpu(name, same_threads):
    here, there = trained(*MODELS[name], "cpu"), trained(*MODELS[name], "twin:0")
    if name in ("perceptron", "convolution"):
        assert all(a.equal(b) for a, b in zip(here, there, strict=True))
    else:
        # Not bit for bit: the CPU has fused kernels for these.
        torch.testing.assert_close(there, here, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_both_devices_compute_the_same_bits_every_time(name, same_threads):
    first, again, other = (trained(*MODELS[name], device) for device in ("twin:0", "twin:0", "twin:1"))
    assert all(a.equal(b) and a.equal(c) for a, b, c in zip(first, again, other, strict=True))


def test_gradients_cross_devices():
    weight = torch.ones(3, device="twin:0", requires_grad=True)
    (weight * 2).to("twin:1").mul(3).cpu().sum().backward()
    assert weight.grad.device == weight.device
    assert weight.grad.tolist() == [6, 6, 6]


def test_module_to_replaces_parameters_and_unties_them():
    """As on XLA: this is the class of device on which `.data =` is refused."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = tied = model[0].weight
    model.to("twin:0")
    assert model[0].weight is not tied
    assert model[0].weight is not model[1].weight
    assert tied.device.type == "cpu"


def test_inference_mode():
    model = nn.Linear(3, 2).to("twin:0")
    with torch.inference_mode():
        assert model(torch.ones(1, 3, device="twin:0")).is_inference()
        assert not model.weight[0].is_inference()


def test_autocast():
    with torch.autocast("twin", torch.bfloat16):
        product = filled((3, 3)) @ filled((3, 3))
        assert product.dtype is torch.bfloat16
        assert product.softmax(0).dtype is torch.float32


# --- random numbers --------------------------------------------------------------------------------------------------


def test_each_device_draws_from_its_own_generator(twin):
    torch.manual_seed(3)
    drawn = {device: torch.randn(4, device=device).cpu() for device in DEVICES}
    assert drawn["twin:0"].equal(drawn["twin:1"])
    assert torch.randn(4).equal(drawn["twin:0"])
    states = [twin.get_rng_state(device) for device in DEVICES]
    ahead = torch.rand(4, device="twin:0")
    assert not twin.get_rng_state(0).equal(states[0])
    assert twin.get_rng_state(1).equal(states[1])
    twin.set_rng_state(states[0], "twin:0")
    assert torch.rand(4, device="twin:0").equal(ahead)


def test_generator_argument_and_dropout():
    generator = torch.Generator("twin:1").manual_seed(5)
    expected = torch.rand(3, generator=torch.Generator().manual_seed(5))
    assert torch.rand(3, generator=generator, device="twin:1").cpu().equal(expected)
    before = torch.get_rng_state()
    nn.functional.dropout(torch.ones(9, device="twin:1"))
    assert torch.get_rng_state().equal(before)


# --- pinned memory, sparse and nested tensors ------------------------------------------------------------------------


def test_pinned_memory():
    here = torch.ones(3)
    pinned = here.pin_memory()
    assert pinned.is_pinned()
    assert pinned[1:].is_pinned()
    assert not here.is_pinned()
    assert torch.empty(3, pin_memory=True).is_pinned()
    there = pinned.to("twin:0", non_blocking=True)
    assert not there.is_pinned()
    assert there.cpu().equal(here)
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        there.pin_memory()


def test_sparse_coo():
    here = torch.tensor([[0.0, 2.0, 0.0], [1.0, 0.0, 3.0]]).to_sparse()
    indices, values = here.indices().to("twin:1"), here.values().to("twin:1")
    there = torch.sparse_coo_tensor(indices, values, here.shape, is_coalesced=True, check_invariants=False)
    assert there._values().data_ptr() == values.data_ptr()
    assert there._indices().data_ptr() == indices.data_ptr()
    assert (there._nnz(), there.sparse_dim(), there.dense_dim(), there.is_coalesced()) == (3, 2, 0, True)
    assert not there._coalesced_(False).is_coalesced()
    assert not there.is_coalesced()
    for moved in (there, here.to("twin:1")):
        assert moved.device == torch.device("twin:1")
        assert moved.layout is torch.sparse_coo
        assert moved.cpu().to_dense().equal(here.to_dense())
        assert moved.to_dense().cpu().equal(here.to_dense())
    assert (there @ torch.ones(3, 2, device="twin:1")).cpu().equal(here @ torch.ones(3, 2))


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc], ids=str)
def test_sparse_compressed(layout):
    dense = torch.tensor([[1.0, 0.0, 2.0, 0.0], [0.0, 3.0, 0.0, 4.0], [5.0, 0.0, 0.0, 6.0], [0.0, 7.0, 8.0, 0.0]])
    blocks = {"blocksize": (2, 2)} if layout in (torch.sparse_bsr, torch.sparse_bsc) else {}
    here = dense.to_sparse(layout=layout, **blocks)
    by_row = layout in (torch.sparse_csr, torch.sparse_bsr)
    names = ("crow_indices", "col_indices") if by_row else ("ccol_indices", "row_indices")
    parts = [getattr(here, name)().to("twin:0") for name in (*names, "values")]
    there = torch.sparse_compressed_tensor(*parts, here.shape, layout=layout, check_invariants=False)
    for name, part in zip((*names, "values"), parts, strict=True):
        assert getattr(there, name)().data_ptr() == part.data_ptr()
    for moved in (there, here.to("twin:0")):
        assert moved.device == torch.device("twin:0")
        assert moved.layout is layout
        assert moved.cpu().to_dense().equal(dense)
        assert moved.to_dense().cpu().equal(dense)
    if layout is not torch.sparse_bsc:  # which the CPU cannot multiply either
        assert (there @ torch.ones(4, 2, device="twin:0")).cpu().equal(here @ torch.ones(4, 2))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
def test_nested(layout):
    parts = [filled((2, 3), "cpu"), filled((4, 3), "cpu")]
    here = torch.nested.nested_tensor(parts, layout=layout)
    for there in (here.to("twin:0"), torch.nested.nested_tensor(parts, layout=layout, device="twin:0")):
        assert there.is_nested
        assert there.layout is layout
        assert there.device == torch.device("twin:0")
        for back in (there.cpu(), there):
            assert all(a.cpu().equal(b) for a, b in zip(back.unbind(), parts, strict=True))
        there.unbind()[1].zero_()
        assert there.values().sum() == parts[0].sum()
