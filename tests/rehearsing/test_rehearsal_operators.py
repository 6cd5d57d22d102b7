"""A rehearsal refuses the dtypes, shapes and devices that an operator refuses, in torch's own words.

With shapes alone too. A number on the CPU, a tensor without dimensions, may be given with tensors on the device.
"""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn
from torch.nn import functional

import torchmove as tm

X = torch.ones(3, 4)
LABELS = torch.tensor([0, 1, 0])


def half_into_float32(model, x):
    model(x.to("cuda").half())


def double_into_float32(model, x):
    model(x.to("cuda").double())


def int32_targets(model, x):
    functional.cross_entropy(model(x.to("cuda")), LABELS.to("cuda").int())


def bool_targets(model, x):
    functional.cross_entropy(model(x.to("cuda")), LABELS.to("cuda").bool())


def float_indices(model, x):
    functional.embedding(x.to("cuda"), model.weight)


def float_indices_of_rows(model, x):
    model(x.to("cuda")).index_select(0, model.weight[0])


def float_indices_to_write(model, x):
    model(x.to("cuda")).index_copy(0, model.weight[0, :3], x.to("cuda")[:, :2])


def float_mask(model, x):
    model(x.to("cuda")).masked_fill(torch.ones(3, 2, device="cuda"), 0.0)


def wrong_shape(model, x):
    model(x.to("cuda")[:, :3])


def half_added_in_place(model, x):
    ones = torch.ones(3, 4, device="cuda", dtype=torch.int64)
    ones += x.to("cuda")


def kernel_of_no_device(model, x):
    functional.softplus(model(x.to("cuda")).long())


def bits_of_floats(model, x):
    model(x.to("cuda")) & x.to("cuda")[:, :2]


def difference_of_masks(model, x):
    1 - (model(x.to("cuda")) > 0)


def half_into_a_transposed_convolution(model, x):
    functional.conv_transpose1d(model(x.to("cuda"))[None].half(), torch.ones(3, 2, 1, device="cuda"))


def channels_of_a_transposed_convolution(model, x):
    functional.conv_transpose1d(model(x.to("cuda"))[None], torch.ones(2, 2, 1, device="cuda"))


def bias_of_a_convolution(model, x):
    functional.conv1d(model(x.to("cuda"))[None], torch.ones(2, 3, 1, device="cuda"), torch.ones(3, device="cuda"))


def bias_of_a_product(model, x):
    torch.addmm(torch.ones(3, 1, 2, device="cuda"), x.to("cuda"), model.weight.T)


def values_put_by_an_index(model, x):
    model(x.to("cuda")).index_put((torch.tensor([0, 1], device="cuda"),), torch.ones(3, 2, device="cuda"))


REFUSED = [
    *(half_into_float32, double_into_float32, int32_targets, bool_targets),
    *(float_indices, float_indices_of_rows, float_indices_to_write, float_mask, wrong_shape, half_added_in_place),
    *(kernel_of_no_device, bits_of_floats, difference_of_masks, half_into_a_transposed_convolution),
    *(channels_of_a_transposed_convolution, bias_of_a_convolution, bias_of_a_product, values_put_by_an_index),
]


@pytest.mark.parametrize("data", ["shapes", "real", "auto"])
@pytest.mark.parametrize("step", REFUSED, ids=lambda step: step.__name__)
def test_what_a_kernel_refuses_is_an_error_of_the_step(step, data):
    model = nn.Linear(4, 2)
    found = tm.rehearse(step, model, X, data=data)
    assert (found.ok, found.ending, [each.kind for each in found.failing]) == (False, "error", ["error"])
    (finding,) = found.failing
    first = step.__code__.co_firstlineno
    assert first < finding.line <= first + 2
    assert str(found).startswith(f"Incomplete: stopped at test_rehearsal_operators.py:{finding.line}")
    # In torch's words: those of the same step where the data is on the CPU.
    with pytest.raises(RuntimeError) as raised:  # or a NotImplementedError, which is one
        plain(step, model)
    said = str(raised.value).splitlines()[0]
    assert said.replace("mat1 and mat2", "") in finding.why.replace("mat1 and mat2", "") or data == "shapes"
    assert finding.why.startswith(f"{type(raised.value).__name__}: ")


def plain(step, model):
    from torch.overrides import TorchFunctionMode

    class OnCpu(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            kwargs = {**(kwargs or {}), **({"device": "cpu"} if "device" in (kwargs or {}) else {})}
            args = tuple("cpu" if type(each) is str and each == "cuda" else each for each in args)
            return func(*args, **kwargs)

    with OnCpu():
        step(model, X)


@pytest.mark.parametrize("data", ["shapes", "real"])
@pytest.mark.parametrize(
    "go",
    [
        lambda model, x: model.half()(x.to("cuda").half()),
        lambda model, x: model.bfloat16()(x.to("cuda").bfloat16()).float().sum().backward(),
        lambda model, x: functional.cross_entropy(model(x.to("cuda")), LABELS.to("cuda")),
        lambda model, x: x.to("cuda") + torch.arange(4, device="cuda"),  # promoted
        lambda model, x: torch.where(x.to("cuda") > 0, x.to("cuda"), 0),
        lambda model, x: (x.to("cuda") > 0).sum() / 3,
        lambda model, x: x.to("cuda").to(torch.int32) // 2 % 3 << 1,
        lambda model, x: functional.one_hot(LABELS.to("cuda"), 3).float() @ torch.ones(3, 2, device="cuda"),
        lambda model, x: torch.bincount(LABELS.to("cuda"), weights=x.to("cuda")[:, 0]),
        lambda model, x: torch.zeros(4, device="cuda").index_add_(0, LABELS.to("cuda"), x.to("cuda")[:, 0]),
        lambda model, x: x.to("cuda").half().exp().softmax(-1),
        lambda model, x: functional.scaled_dot_product_attention(*[x.to("cuda").half()[None, None]] * 3),
        lambda model, x: torch.complex(x.to("cuda"), x.to("cuda")) * 2,
    ],
)
def test_dtypes_that_go_together_raise_no_alarm(go, data):
    found = tm.rehearse(go, nn.Linear(4, 2), X, data=data)
    assert found.ok, str(found)


def test_half_precision_that_the_cpu_has_no_kernel_for_is_not_refused():
    """What the CPU lacks, a GPU may have."""

    def go(model, x):
        x = x.to("cuda").half().requires_grad_()
        torch.fft.rfft(x.float()).abs().half().cumsum(0).sum().backward()
        grid = torch.zeros(1, 2, 2, 2, device="cuda", dtype=torch.half)
        functional.grid_sample(x[None, None], grid, align_corners=False)

    for data in ("shapes", "real"):
        assert tm.rehearse(go, nn.Linear(4, 2), X, data=data).ok


@pytest.mark.parametrize("data", ["shapes", "real"])
@pytest.mark.parametrize(
    "go",
    [
        lambda model, x: LABELS.to("cuda") @ LABELS.to("cuda"),
        lambda model, x: functional.linear(model(x.to("cuda")).long(), torch.ones(3, 2, device="cuda").long()),
        lambda model, x: torch.einsum("ij,kj->ik", *[(x.to("cuda") > 0).int()] * 2),
        lambda model, x: functional.max_pool1d(LABELS.to("cuda")[None], 2),
        lambda model, x: functional.conv1d(LABELS.to("cuda")[None, None], torch.ones(1, 1, 2, device="cuda").long()),
    ],
)
def test_a_kernel_that_the_device_lacks_is_a_finding_and_the_run_goes_on(go, data):
    def step(model, x):
        go(model, x)
        model(x)

    found = tm.rehearse(step, nn.Linear(4, 2), X, data=data)
    assert [each.kind for each in found.failing] == ["dtype", "input"], str(found)
    assert re.match(r"CUDA has no \w+ kernel for \w+; the CPU has one", found.failing[0].why)


@pytest.mark.parametrize("data", ["shapes", "real"])
def test_what_a_gpu_has_a_kernel_for_and_the_cpu_has_none(data):
    def step(model, x):
        mask = model(x.to("cuda")) > 0
        mask.abs(), mask[:2].trace(), torch.histc(mask.long())

    found = tm.rehearse(step, nn.Linear(4, 2), X, data=data)
    assert found.ok, str(found)


@pytest.mark.parametrize("data", ["shapes", "real"])
@pytest.mark.parametrize(
    "go",
    [
        lambda model, x: functional.dropout(x.to("cuda"), p=model.weight),
        lambda model, x: x.to(other=model.weight),
        lambda model, x: x.to("cuda", False),
        lambda model, x: model.to("cuda", copy=True),
        lambda model, x: torch.zeros(model.weight),
        lambda model, x: x.to("cuda").not_there,
    ],
)
def test_arguments_that_torch_does_not_take_are_an_error_of_the_step(go, data):
    found = tm.rehearse(go, nn.Linear(4, 2), X, data=data)
    assert (found.ending, [each.kind for each in found.failing]) == ("error", ["error"]), str(found)


VECTOR, INDEX = torch.rand(3) + 1, torch.tensor([0, 2])
WITH_A_NUMBER = {
    "add": lambda x, number: x + number,
    "add a number to a number": lambda x, number: x[0] + number,
    "maximum": torch.maximum,
    "where": lambda x, number: torch.where(x > 1, x, number),
    "lerp": lambda x, number: torch.lerp(x, x, number),
    "masked_fill": lambda x, number: x.masked_fill(x > 1, number),
    "index_fill": lambda x, number: x.index_fill(0, INDEX.to(x.device), number),
    "addcmul": lambda x, number: torch.addcmul(x, x, number),
    "floor_divide": lambda x, number: x.floor_divide(number),
    "l1_loss": lambda x, number: nn.functional.l1_loss(x[0], number),
    "the weight of positives": lambda x, number: nn.functional.binary_cross_entropy_with_logits(
        x, x, pos_weight=number
    ),
    "fill_": lambda x, number: x.clone().fill_(number),
    "copy_": lambda x, number: x.clone().copy_(number),
    "setitem": lambda x, number: x.clone().__setitem__(0, number),
    "select_scatter": lambda x, number: x.select_scatter(number, 0, 0),
}
NOT_WITH_A_NUMBER = {
    "mse_loss": lambda x, number: nn.functional.mse_loss(x[0], number),
    "huber_loss": lambda x, number: nn.functional.huber_loss(x[0], number),
    "binary_cross_entropy": lambda x, number: nn.functional.binary_cross_entropy(x[0] / 2, number / 2),
    "clamp": lambda x, number: x.clamp(min=number),
    "cat": lambda x, number: torch.cat([x, number[None]]),
    "stack": lambda x, number: torch.stack([x[0], number]),
    "addcdiv": lambda x, number: torch.addcdiv(x, x, number),
    "addcmul, the first factor": lambda x, number: torch.addcmul(x, number, x),
    "complex": torch.complex,
    "logaddexp": torch.logaddexp,
    "nextafter": torch.nextafter,
    "a number that is written": lambda x, number: number.clone().add_(x[0]),
    "dot": lambda x, number: torch.dot(x, number.expand(3)),
    "equal": lambda x, number: torch.equal(x[0], number),
}
PLACED = [pytest.param(go, True, id=name) for name, go in WITH_A_NUMBER.items()]
PLACED += [pytest.param(go, False, id=name) for name, go in NOT_WITH_A_NUMBER.items()]


@pytest.mark.parametrize("data", ["shapes", "real"])
@pytest.mark.parametrize(("go", "works"), PLACED)
def test_a_number_on_the_cpu(go, works, data):
    def step(model, x):
        model(x := x.to("cuda"))
        go(x, torch.tensor(1.5))

    found = tm.rehearse(step, nn.Linear(3, 1), VECTOR, data=data)
    assert found.stopped == ""
    assert (not found.failing) == works, str(found)


@pytest.mark.cuda
@pytest.mark.parametrize(("go", "works"), PLACED)
def test_a_number_on_the_cpu_is_to_a_gpu_what_it_is_to_a_rehearsal(go, works):
    if works:
        go(VECTOR.cuda(), torch.tensor(1.5))
    else:
        with pytest.raises(RuntimeError, match=r"(?i)devices?|cuda"):
            go(VECTOR.cuda(), torch.tensor(1.5))


@pytest.mark.parametrize("data", ["shapes", "real"])
def test_coordinates_of_flat_indices(data):
    def step(model, x):
        rows, columns = torch.unravel_index(model(x.to("cuda")).flatten().argmax(), (2, 2))
        return x.new_zeros((), device=rows.device) + rows + columns

    found = tm.rehearse(step, nn.Linear(3, 2), torch.rand(2, 3), data=data)
    assert found.ok, str(found)


# ---------------------------------------------------------------- what cuDNN refuses


def of_input(rnn, x):
    rnn.eval()
    rnn(x.to("cuda").requires_grad_())[0].sum().backward()


def of_packed(rnn, x):
    rnn.eval()
    rnn(nn.utils.rnn.pack_padded_sequence(x.to("cuda"), [5, 3], batch_first=True))[0].data.sum().backward()


def in_training(rnn, x):
    rnn(x.to("cuda"))[0].sum().backward()


def without_gradients(rnn, x):
    rnn.eval()
    with torch.no_grad():
        rnn(x.to("cuda"))


def without_cudnn(rnn, x):
    rnn.eval()
    with torch.backends.cudnn.flags(enabled=False):
        out, _ = rnn(x.to("cuda"))
    out.sum().backward()


@pytest.mark.parametrize("rnn", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize(
    ("step", "kinds"),
    [(of_input, ["dtype"]), (of_packed, ["dtype"]), (in_training, []), (without_gradients, []), (without_cudnn, [])],
)
def test_cudnn_refuses_the_backward_pass_of_an_rnn_in_eval_mode(rnn, step, kinds):
    found = tm.rehearse(step, rnn(4, 3, batch_first=True), torch.randn(2, 5, 4))
    assert [each.kind for each in found.failing] == kinds, str(found)
    assert found.stopped == ""


def test_another_device_has_no_cudnn():
    def step(rnn, x):
        rnn.eval()
        rnn(x.to("mps"))[0].sum().backward()

    assert tm.rehearse(step, nn.GRU(4, 3, batch_first=True), torch.randn(2, 5, 4), to="mps")
