"""Small hostile states. Each names its tensors itself, so that a test does not have to believe torchmove's survey.

`moves` are the tensors that must be found and moved; `stays` those that must not be touched.
"""

from __future__ import annotations

import functools
import warnings
from collections import OrderedDict, UserDict, deque, namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field
from types import MappingProxyType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor


@dataclass
class State:
    objects: tuple[Any, ...]
    moves: dict[str, Tensor]
    stays: dict[str, Tensor] = field(default_factory=dict)
    keeps: Any = None  # what has to stay alive for the state to make sense
    not_on: frozenset[str] = frozenset()  # kinds of device that torch itself does not support this on


ZOO: dict[str, Callable[[], State]] = {}


def animal(make: Callable[[], State]) -> Callable[[], State]:
    ZOO[make.__name__] = make
    return make


def random_bits(count: int, dtype: torch.dtype) -> Tensor:
    """Every pattern may come, also those of a float that arithmetic would not leave alone."""
    made = torch.randint(0, 256, (count * dtype.itemsize,), dtype=torch.uint8)
    return (made & 1).view(dtype) if dtype is torch.bool else made.view(dtype)


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    count = torch.Size(shape).numel()
    return torch.arange(1, count + 1).to(dtype).reshape(shape)


# ---------------------------------------------------------------- windows


@animal
def nothing() -> State:
    return State((nn.Identity(),), {})


@animal
def nested_modules() -> State:
    model = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1)))
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return State((model,), tensors)


@animal
def tied_weights() -> State:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    return State((model,), {"tied": model[0].weight, "again": model[1].weight, "bias": model[1].bias})


@animal
def storage_tied() -> State:
    """Two Parameters, one storage."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = nn.Parameter(model[0].weight.detach())
    return State((model,), {"one": model[0].weight, "other": model[1].weight})


@animal
def shared_buffer() -> State:
    table = numbers(4)
    model = nn.ModuleList(nn.Identity() for _ in range(3))
    for index, child in enumerate(model):
        child.register_buffer("table", table, persistent=index == 0)
    return State((model,), {f"table{index}": child.table for index, child in enumerate(model)})


@animal
def views_of_flat() -> State:
    flat = numbers(12)
    model = nn.Module()
    model.flat = flat
    model.one = nn.Parameter(flat[:4].view(2, 2))
    model.two = nn.Parameter(flat[4:12].view(2, 4))
    model.ends = flat[2:6]
    return State((model,), {"flat": flat, "one": model.one, "two": model.two, "overlap": model.ends})


@animal
def views_without_base() -> State:
    """Far apart in a storage most of which nobody can reach."""
    large = numbers(100_000)
    model = nn.Module()
    model.low, model.high = large[5:9], large[90_000:90_010]
    model.higher = large[90_004:90_012]
    return State((model,), {"low": model.low, "high": model.high, "higher": model.higher})


@animal
def strange_strides() -> State:
    square = numbers(4, 5)
    model = nn.Module()
    model.square, model.transposed, model.column, model.step = square, square.t(), square[:, 1], square[::2, ::3]
    model.expanded = numbers(1).expand(1000, 3)
    model.half_expanded = numbers(3, 1)[1:].expand(2, 7)
    model.diagonal = square.diagonal()
    model.sliding = numbers(10).unfold(0, 4, 2)
    model.thin = torch.empty_strided((3, 1), (1, 7)).copy_(numbers(3, 1))
    model.last = numbers(2, 3, 4, 5).to(memory_format=torch.channels_last)
    return State((model,), {name: value for name, value in vars(model).items() if isinstance(value, Tensor)})


@animal
def smallest() -> State:
    model = nn.Module()
    model.zero, model.scalar, model.zero_rows = torch.zeros(0), torch.tensor(3.5), torch.zeros(0, 4)
    model.zero_inside = numbers(6)[3:3]
    model.register_buffer("missing", None)
    return State((model,), {name: value for name, value in vars(model).items() if isinstance(value, Tensor)})


@animal
def many_dtypes() -> State:
    dtypes = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32]
    dtypes += [torch.float16, torch.bfloat16, torch.float64, torch.complex64, torch.complex128, torch.float8_e4m3fn]
    model = nn.Module()
    model.tensors = [torch.arange(5).to(dtype) for dtype in dtypes]
    model.nan = torch.tensor([0x7FC12345, 0x7F800001, -1], dtype=torch.int32).view(torch.float32)
    moves = {str(tensor.dtype): tensor for tensor in model.tensors}
    return State((model,), {**moves, "nan": model.nan})


@animal
def mixed_dtypes_of_one_storage() -> State:
    raw = torch.arange(64, dtype=torch.uint8)
    model = nn.Module()
    model.raw, model.floats, model.longs, model.odd = (
        raw,
        raw.view(torch.float32),
        raw[8:24].view(torch.int64),
        raw[3:7],
    )
    return State((model,), {"raw": raw, "floats": model.floats, "longs": model.longs, "odd": model.odd})


@animal
def conjugated_and_negated() -> State:
    model = nn.Module()
    model.complex = torch.tensor([1 + 2j, 3 - 4j])
    model.conj = model.complex.conj()
    model.neg = model.conj.imag
    model.real = torch.view_as_real(model.complex)
    return State((model,), {"z": model.complex, "conj": model.conj, "neg": model.neg, "real": model.real})


# ---------------------------------------------------------------- what hangs on a tensor


@animal
def gradients_in_a_bucket() -> State:
    model = nn.Linear(3, 2)
    bucket = numbers(8)
    model.weight.grad, model.bias.grad = bucket[:6].view(2, 3), bucket[6:]
    grads = {"weight.grad": model.weight.grad, "bias.grad": model.bias.grad}
    return State((model,), {"weight": model.weight, "bias": model.bias, **grads})


@animal
def hooks_and_attributes() -> State:
    model = nn.Linear(2, 2)
    scale, offset, seen = numbers(2), numbers(2) + 1, []
    model.weight.register_hook(lambda gradient: gradient * scale)
    model.bias.register_post_accumulate_grad_hook(lambda parameter: seen.append(offset))
    model.weight.quant_state = {"absmax": numbers(3)}
    model.weight.tag = "kept"
    tensors = {"scale": scale, "offset": offset, "absmax": model.weight.quant_state["absmax"]}
    return State((model,), {"weight": model.weight, "bias": model.bias, **tensors}, keeps=seen)


@animal
def module_hooks() -> State:
    model = nn.Linear(2, 2)
    one, two, three = numbers(2), numbers(2) + 1, numbers(2) + 2
    model.register_forward_hook(lambda module, args, output: output + one)
    model.register_forward_pre_hook(functools.partial(lambda shift, module, args: (args[0] + shift,), two))
    model.register_full_backward_hook(lambda module, grad_in, grad_out: (grad_in[0] * three.sum(),))
    return State((model,), {"weight": model.weight, "one": one, "two": two, "three": three})


@animal
def gradient_of_a_frozen_parameter() -> State:
    model = nn.Linear(2, 2)
    model.weight.grad = numbers(2, 2)
    model.weight.requires_grad_(False)
    return State((model,), {"weight": model.weight, "grad": model.weight.grad})


# ---------------------------------------------------------------- holders

Pair = namedtuple("Pair", "left right")


@dataclass(frozen=True)
class Frozen:
    table: Tensor
    device: torch.device


class Slotted:
    __slots__ = ("never_set", "table")

    def __init__(self, table: Tensor) -> None:
        self.table = table


class Trap:
    """Every question that is not about stored state is an error."""

    def __init__(self, table: Tensor) -> None:
        self.__dict__["table"] = table

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"__getattr__({name!r}) was called")

    def __bool__(self) -> bool:
        raise AssertionError("__bool__ was called")

    def __eq__(self, other: object) -> bool:
        raise AssertionError("__eq__ was called")

    def __hash__(self) -> int:
        raise AssertionError("__hash__ was called")

    def __iter__(self) -> Any:
        raise AssertionError("__iter__ was called")

    def __len__(self) -> int:
        raise AssertionError("__len__ was called")

    @property
    def property(self) -> Any:
        raise AssertionError("a property was read")


class LyingDict(dict[str, Tensor]):
    """Says it is empty."""

    def items(self) -> Any:
        return ()

    def __iter__(self) -> Any:
        return iter(())

    def __len__(self) -> int:
        return 0


@animal
def containers() -> State:
    model = nn.Module()
    model.in_list, model.in_dict = [numbers(1)], {"a": {"b": numbers(2)}}
    model.in_tuple, model.in_named = (numbers(3), (numbers(4),)), Pair(numbers(5), [numbers(6)])
    model.in_deque, model.in_ordered = deque([numbers(7)]), OrderedDict(x=numbers(8))
    model.in_user, model.in_frozen = UserDict(y=numbers(9)), Frozen(numbers(10), torch.device("cpu"))
    model.in_slots, model.in_trap, model.in_lie = Slotted(numbers(11)), Trap(numbers(12)), LyingDict(z=numbers(13))
    model.in_namespace, model.in_proxy = SimpleNamespace(a=numbers(16)), MappingProxyType({"b": numbers(17)})
    inside, key = numbers(14), numbers(15)
    model.in_set, model.as_key = {inside}, {key: "value"}
    moves = [model.in_list[0], model.in_dict["a"]["b"], model.in_tuple[0], model.in_tuple[1][0], model.in_named.left]
    moves += [model.in_named.right[0], model.in_deque[0], model.in_ordered["x"], model.in_user["y"]]
    moves += [model.in_frozen.table, model.in_slots.table, model.in_trap.__dict__["table"]]
    moves += [dict.__getitem__(model.in_lie, "z"), inside, key, model.in_namespace.a, model.in_proxy["b"]]
    return State((model,), {str(tensor.numel()): tensor for tensor in moves})


@animal
def functions() -> State:
    model = nn.Module()
    cell, default, keyword, bound, argument = (numbers(size) for size in range(1, 6))

    def closed(x: Tensor, y: Tensor = default, *, z: Tensor = keyword) -> Tensor:
        return x + cell + y + z

    @functools.lru_cache
    def cached(size: int) -> Tensor:
        return numbers(size)

    model.closed, model.method, model.cached = closed, bound.add, cached
    model.partial = functools.partial(closed, argument, z=numbers(7))
    in_cache = cached(9)
    moves = {"cell": cell, "default": default, "keyword": keyword, "bound": bound, "argument": argument}
    return State((model,), {**moves, "in partial": model.partial.keywords["z"], "in cache": in_cache})


@animal
def cycles() -> State:
    model, child = nn.Module(), nn.Linear(1, 1)
    model.child = child
    child.__dict__["parent"] = model
    model.loop = [numbers(3)]
    model.loop.append(model.loop)
    return State((model,), {"weight": child.weight, "in loop": model.loop[0]})


@animal
def children_in_plain_containers() -> State:
    model = nn.Module()
    model.blocks, model.named = [nn.Linear(1, 1), nn.Linear(1, 1)], {"head": nn.Linear(1, 2)}
    return State((model,), {"0": model.blocks[0].weight, "1": model.blocks[1].bias, "head": model.named["head"].weight})


@animal
def plain_dict_of_everything() -> State:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    model(numbers(1, 2)).sum().backward()
    optimizer.step()
    state = {"model": model, "optimizer": optimizer, "extra": [numbers(2)], "epoch": 3}
    momentum = optimizer.state[model.weight]["momentum_buffer"]
    return State((state,), {"weight": model.weight, "momentum": momentum, "extra": state["extra"][0]})


@animal
def bare_tensors() -> State:
    one = numbers(3)
    two = one[1:]
    return State((one, two, [numbers(4)]), {"one": one, "two": two})


# ---------------------------------------------------------------- special tensors


def _sparse(*layouts: torch.layout) -> State:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch announces that these are in beta, and that it does not check them
        return _sparse_parameters(layouts)


def _sparse_parameters(layouts: tuple[torch.layout, ...]) -> State:
    model = nn.Module()
    dense = torch.tensor([[0.0, 1.0, 0.0, 2.0], [3.0, 0.0, 4.0, 0.0]])
    block = {"blocksize": (1, 2)}
    for layout in layouts:
        name = str(layout).removeprefix("torch.sparse_")
        options = block if name.startswith("bs") else {}
        model.register_parameter(name, nn.Parameter(dense.to_sparse(layout=layout, **options)))
    return State((model,), dict(model.named_parameters()))


@animal
def sparse_coo() -> State:
    state = _sparse(torch.sparse_coo)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # older releases of torch warn even when told to check
        uncoalesced = torch.sparse_coo_tensor([[0, 0], [1, 1]], [1.0, 2.0], (2, 3), check_invariants=True)
    state.objects[0].uncoalesced = uncoalesced
    return State(state.objects, {**state.moves, "uncoalesced": uncoalesced})


@animal
def sparse_compressed() -> State:
    return _sparse(torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


@animal
def sparse_gradient() -> State:
    model = nn.Embedding(5, 2, sparse=True)
    model(torch.tensor([1, 3])).sum().backward()
    return State((model,), {"weight": model.weight, "grad": model.weight.grad})


@animal
def jagged() -> State:
    model = nn.Module()
    model.ragged = torch.nested.nested_tensor([numbers(2, 3), numbers(4, 3)], layout=torch.jagged)
    return State((model,), {"ragged": model.ragged})


@animal
def wrapper_subclass() -> State:
    one, two = numbers(3), numbers(3) + 5
    model = nn.Module()
    model.pair = nn.Parameter(TwoTensor(one, two))
    model.same_part = one
    return State((model,), {"pair": model.pair, "one": one, "two": model.pair.b})


@animal
def plain_subclass() -> State:
    class Tagged(Tensor):
        pass

    model = nn.Module()
    model.tagged = numbers(3).as_subclass(Tagged)
    model.tagged.label = numbers(2)
    return State((model,), {"tagged": model.tagged, "label": model.tagged.label})


@animal
def lazy_modules() -> State:
    model = nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d())
    moves = {"weight": model[0].weight, "bias": model[0].bias, "mean": model[1].running_mean}
    return State((model,), {**moves, "count": model[1].num_batches_tracked})


@animal
def inference_tensors() -> State:
    model = nn.Module()
    with torch.inference_mode():
        model.made_inside = numbers(3)
        model.view_of_it = model.made_inside[1:]
    return State((model,), {"made": model.made_inside, "view": model.view_of_it})


# ---------------------------------------------------------------- optimizers and companions


def _trained(optimizer_class: Any, **options: Any) -> tuple[nn.Module, Any]:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    optimizer = optimizer_class(model.parameters(), **options)
    for _ in range(2):
        optimizer.zero_grad()
        model(numbers(2, 3) / 7).pow(2).sum().backward()
        optimizer.step(lambda: model(numbers(2, 3) / 7).pow(2).sum()) if optimizer_class is torch.optim.LBFGS else (
            optimizer.step()
        )
    return model, optimizer


@animal
def adamw() -> State:
    model, optimizer = _trained(torch.optim.AdamW)
    entries = optimizer.state[model[0].weight]
    moves = {"weight": model[0].weight, "grad": model[0].weight.grad}
    moves |= {key: entries[key] for key in ("exp_avg", "exp_avg_sq")}
    return State((model, optimizer), moves, {"step": entries["step"]})


@animal
def lbfgs() -> State:
    model, optimizer = _trained(torch.optim.LBFGS)
    state = optimizer.state[model[0].weight]
    moves = {"d": state["d"], "prev": state["prev_flat_grad"]}
    moves |= {f"old_dirs{index}": tensor for index, tensor in enumerate(state["old_dirs"])}
    return State((optimizer, model), {"weight": model[0].weight, **moves})


@animal
def averaged_model_and_schedule() -> State:
    model, optimizer = _trained(torch.optim.SGD, lr=0.1, momentum=0.9)
    average = torch.optim.swa_utils.AveragedModel(model)
    average.update_parameters(model)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    moves = {"weight": model[0].weight, "average": average.module[0].weight, "count": average.n_averaged}
    return State((model, optimizer, average, schedule), moves)


@animal
def master_copies() -> State:
    """fp32 master copies, some of them the fp32 parameters themselves under another object."""
    model = nn.ModuleDict({"low": nn.Linear(2, 2).bfloat16(), "full": nn.Linear(2, 2)})
    masters = [model["low"].weight.detach().float(), model["full"].weight.detach()]
    optimizer = torch.optim.Adam([master.requires_grad_() for master in masters])
    for master in masters:
        master.grad = torch.ones_like(master)
    optimizer.step()
    optimizer.master_to_model = list(zip(masters, [model["low"].weight, model["full"].weight], strict=True))
    moves = {"low": model["low"].weight, "full": model["full"].weight, "m0": masters[0], "m1": masters[1]}
    return State((model, optimizer), moves)


@animal
def rng_states() -> State:
    checkpoint = {"rng_state": torch.get_rng_state(), "cuda_rng": [torch.arange(16, dtype=torch.uint8)]}
    checkpoint["picture"] = torch.arange(16, dtype=torch.uint8)
    stays = {"cpu": checkpoint["rng_state"], "cuda": checkpoint["cuda_rng"][0]}
    return State((checkpoint,), {"picture": checkpoint["picture"]}, stays)


@animal
def old_weight_norm() -> State:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch would rather see its newer weight_norm
        model = torch.nn.utils.weight_norm(nn.Linear(2, 3))
    pruned = torch.nn.utils.prune.random_unstructured(nn.Linear(2, 3), "weight", 0.5)
    return State((model, pruned), {"g": model.weight_g, "v": model.weight_v, "mask": pruned.weight_mask})
