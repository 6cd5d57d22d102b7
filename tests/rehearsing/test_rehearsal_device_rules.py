"""Where a number on the CPU, a tensor without dimensions, may stand beside tensors of the device."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torchmove as tm

X, INDEX = torch.rand(3) + 1, torch.tensor([0, 2])
CROSS_ENTROPY = nn.functional.binary_cross_entropy_with_logits
ALLOWED = {
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
REFUSED = {
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
PLACED = [pytest.param(go, True, id=name) for name, go in ALLOWED.items()]
PLACED += [pytest.param(go, False, id=name) for name, go in REFUSED.items()]


@pytest.mark.parametrize("data", ["shapes", "real"])
@pytest.mark.parametrize(("go", "works"), PLACED)
def test_a_number_on_the_cpu(go, works, data):
    def step(model, x):
        model(x := x.to("cuda"))
        go(x, torch.tensor(1.5))

    found = tm.rehearse(step, nn.Linear(3, 1), X, data=data)
    assert found.stopped == ""
    assert (not found.failing) == works, str(found)


@pytest.mark.cuda
@pytest.mark.parametrize(("go", "works"), PLACED)
def test_a_number_on_the_cpu_is_to_a_gpu_what_it_is_to_a_rehearsal(go, works):
    if works:
        go(X.cuda(), torch.tensor(1.5))
    else:
        with pytest.raises(RuntimeError, match=r"(?i)devices?|cuda"):
            go(X.cuda(), torch.tensor(1.5))


@pytest.mark.parametrize("data", ["shapes", "real"])
def test_coordinates_of_flat_indices(data):
    def step(model, x):
        rows, columns = torch.unravel_index(model(x.to("cuda")).flatten().argmax(), (2, 2))
        return x.new_zeros((), device=rows.device) + rows + columns

    found = tm.rehearse(step, nn.Linear(3, 2), torch.rand(2, 3), data=data)
    assert found.ok, str(found)
