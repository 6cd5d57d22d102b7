"""Compare rehearsals with a GPU for every operator in torch's own list, with one argument left on the CPU.

    python benchmarks/rehearsal_operators.py [--samples 2] [--only add,clamp] [--list]

Without a GPU only the rehearsals run, and what they say of operators whose arguments are all on the device: nothing, or
it is a false alarm.
"""

from __future__ import annotations

import argparse
import sys
import types
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

import torchmove as tm

sys.modules.setdefault("expecttest", types.ModuleType("expecttest"))
vars(sys.modules["expecttest"]).setdefault("TestCase", object)

KNOWN_TYPES = (torch.float32, torch.int64, torch.bool, torch.complex64)


def is_tensor(given: Any) -> bool:
    return isinstance(given, torch.Tensor)


class Call(NamedTuple):
    """One operator with arguments; the tensor that stays on the CPU is `stray`, or none where it is negative."""

    name: str
    op: Callable[..., Any]
    tensors: list[Any]
    spec: Any
    stray: int

    def __call__(self, *tensors: torch.Tensor) -> object:
        placed = [self.place(position, each, tensors) for position, each in enumerate(self.tensors)]
        args, kwargs = pytree.tree_unflatten(placed, self.spec)
        return self.op(*args, **kwargs)

    def place(self, position: int, given: Any, tensors: tuple[torch.Tensor, ...]) -> Any:
        if not is_tensor(given):
            return given
        tensor = tensors[self.order[position]].clone()
        return tensor if position == self.stray else tensor.to("cuda")

    @property
    def order(self) -> dict[int, int]:
        positions = [position for position, each in enumerate(self.tensors) if is_tensor(each)]
        return {position: number for number, position in enumerate(positions)}

    @property
    def given(self) -> list[torch.Tensor]:
        return [each for each in self.tensors if is_tensor(each)]

    def __str__(self) -> str:
        if self.stray < 0:
            return f"{self.name}: all on the device"
        number, stray = self.order[self.stray], self.tensors[self.stray]
        return f"{self.name}: tensor {number} of {len(self.given)} on the CPU, {tuple(stray.shape)}"


def calls(samples: int, only: set[str]) -> Iterator[Call]:
    from torch.testing._internal.common_methods_invocations import op_db

    for info in op_db:
        if only and info.name not in only:
            continue
        dtype = next((each for each in KNOWN_TYPES if each in info.dtypes), None)
        if dtype is None:
            continue
        try:
            given = [sample for sample, _ in zip(info.sample_inputs("cpu", dtype), range(40), strict=False)]
        except Exception:
            continue
        given.sort(key=lambda sample: -len(tensors_of(sample)))
        for sample in given[:samples]:
            yield from variants(info, sample)


def tensors_of(sample: Any) -> list[torch.Tensor]:
    leaves = pytree.tree_leaves(((sample.input, *sample.args), sample.kwargs))
    return [each for each in leaves if is_tensor(each)]


def variants(info: Any, sample: Any) -> Iterator[Call]:
    leaves, spec = pytree.tree_flatten(((sample.input, *sample.args), sample.kwargs))
    leaves = [each.detach() if is_tensor(each) else each for each in leaves]
    forms = [(info.name, info.op), (f"{info.name}_", info.inplace_variant)]
    for name, op in forms:
        if op is None:
            continue
        yield Call(name, op, leaves, spec, -1)
        if len(tensors_of(sample)) < 2:
            continue
        for position, each in enumerate(leaves):
            if not is_tensor(each):
                continue
            yield Call(name, op, leaves, spec, position)
            if each.layout is torch.strided and each.dim() and each.numel():
                number = [*leaves]
                number[position] = each.flatten()[0].clone()
                yield Call(f"{name} (number)", op, number, spec, position)


def seen(call: Call) -> str:
    """What the GPU says: nothing, or its error."""
    try:
        call(*call.given)
        torch.cuda.synchronize()
    except Exception as error:
        return str(error).partition("\n")[0] or type(error).__name__
    return ""


def is_possible(call: Call, is_real: bool) -> bool:
    """Whether it runs with all arguments on the CPU, and with all on the GPU."""
    placed = pytree.tree_unflatten([each.clone() if is_tensor(each) else each for each in call.tensors], call.spec)
    try:
        call.op(*placed[0], **placed[1])
    except Exception:
        return False
    return not seen(call._replace(stray=-1)) if is_real else call.stray < 0


def kind_of(call: Call) -> str:
    if call.stray < 0:
        return "all on the device"
    return "a number on the CPU" if call.tensors[call.stray].dim() == 0 else "a tensor on the CPU"


def foretold(call: Call) -> str:
    torch.manual_seed(0)
    result = tm.rehearse(lambda _, *tensors: call(*tensors), torch.nn.Linear(1, 1), *call.given, to="cuda")
    if result.failing:
        return str(result.failing[0].why)
    return f"stopped: {result.stopped}" if result.stopped else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--only", default="", help="names of operators, with commas")
    parser.add_argument("--list", action="store_true", help="each disagreement")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    is_real = torch.cuda.is_available()
    counts: Counter[tuple[str, str]] = Counter()
    for call in calls(options.samples, {*filter(None, options.only.split(","))}):
        if not is_possible(call, is_real):
            continue
        real, said = seen(call) if is_real else "", foretold(call)
        agrees = bool(real) == bool(said)
        counts[kind_of(call), "agree" if agrees else "missed" if real else "alarm"] += 1
        if not agrees and options.list:
            print(f"{call}\n    seen: {real[:150]}\n    foretold: {said[:150]}", flush=True)
    for (kind, word), count in sorted(counts.items()):
        print(f"{count:6} {kind}: {word}")


if __name__ == "__main__":
    main()
