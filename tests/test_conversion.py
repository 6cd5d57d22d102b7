"""dtype= and memory_format= convert what `Module.to` converts, to the same bits; dicts of devices send parts apart."""

from __future__ import annotations

import copy
import json
import re

import pytest
import torch
from laws import aliases, bits, trace
from torch import Tensor, nn
from zoo import ZOO, State

import torchmove as tm

# What shares memory with something that is not cast, or is inside of a composite tensor.
REFUSED = {
    "master_copies",
    "sparse_compressed",
    "sparse_coo",
    "sparse_gradient",
    "views_of_flat",
    "wrapper_subclass",
}


def everywhere(state: State) -> dict[str, Tensor]:
    return {**state.moves, **state.stays}


def cast(state: State, route, **options) -> tm.Receipt:
    """Cast to bfloat16, on the way of the route, or on the spot."""
    to = {} if route.is_fresh else {"to": route.away}
    return tm.move(*state.objects, dtype=torch.bfloat16, mover=route.mover, **to, **options)


def has_module(state: State) -> bool:
    holders = tm.survey(*state.objects).holders.values()
    return not everywhere(state) or any(isinstance(holder, (nn.Module, torch.optim.Optimizer)) for holder, _ in holders)


def to_be_cast(state: State) -> set[int]:
    entries = tm.survey(*state.objects).tensors
    registered = {id(each.tensor) for each in entries if each.role in ("parameter", "buffer")}
    found = registered | {id(each.tensor) for each in entries if _parameter_of(each) in registered}
    return {id(each.tensor) for each in entries if id(each.tensor) in found and _is_cast(each.tensor)}


def _bits_as_bfloat16(tensor: Tensor) -> bytes:
    return b"" if torch.nn.parameter.is_lazy(tensor) else bits(tensor.detach().to(torch.bfloat16))


def _parameter_of(entry) -> int | None:
    return entry.owner.parameter if entry.role == "gradient" and entry.owner is not None else None


def _is_cast(tensor: Tensor) -> bool:
    return tensor.dtype.is_floating_point or tensor.dtype.is_complex


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
@pytest.mark.parametrize("name", ZOO)
def test_a_cast_gives_the_bits_of_to_and_leaves_everything_else_as_it_is(name, route):
    torch.manual_seed(0)
    state = ZOO[name]()
    route.start(*state.objects)
    before, changes = trace(everywhere(state)), to_be_cast(state)
    dtypes = {each: tensor.dtype for each, tensor in everywhere(state).items()}
    expected = {
        each: _bits_as_bfloat16(tensor) if id(tensor) in changes else before.bits[each]
        for each, tensor in everywhere(state).items()
    }
    if name in REFUSED or not has_module(state):
        with pytest.raises(tm.MoveRefused, match="R049"):
            cast(state, route)
        assert trace(everywhere(state)) == before
        return
    cast(state, route, verify="bytes")
    after = trace(everywhere(state))
    assert after.identity == before.identity
    assert after.bits == expected
    assert {pair[:2] for pair in after.aliases} == {pair[:2] for pair in before.aliases}
    assert after.counters == before.counters
    assert {each: tensor.dtype for each, tensor in everywhere(state).items()} == {
        each: torch.bfloat16 if id(tensor) in changes else dtypes[each] for each, tensor in everywhere(state).items()
    }
    assert not cast(state, route).plan.moves, "a second cast is a no-op"


def test_states_are_refused_only_where_they_must_be():
    assert set(ZOO) >= REFUSED


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1))
        self.head = nn.Linear(4, 2)
        self.table = torch.arange(4.0)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.encoder(images).mean((2, 3)))


def in_mid_training() -> tuple[Net, torch.optim.Optimizer]:
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters())
    step(net, optimizer)
    net(torch.randn(2, 3, 6, 6)).square().sum().backward()
    return net, optimizer


def step(net: Net, optimizer: torch.optim.Optimizer) -> None:
    weight = net.head.weight
    net(torch.randn(2, 3, 6, 6).to(weight.device, weight.dtype)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": torch.bfloat16},
        {"dtype": torch.float64, "memory_format": torch.channels_last},
        {"memory_format": torch.channels_last},
    ],
    ids=["dtype", "both", "format"],
)
def test_a_model_and_its_gradients_are_as_module_to_makes_them(options, route):
    net, optimizer = in_mid_training()
    reference = copy.deepcopy(net)
    for mine, theirs in zip(net.parameters(), reference.parameters(), strict=True):
        theirs.grad = mine.grad.clone()
    reference.to(**options)
    net_ids = [*map(id, net.parameters())]
    to = {} if route.is_fresh else {"to": route.away}
    route.start(net, optimizer)
    tm.move(net, optimizer, **options, mover=route.mover, verify="bytes", **to)
    assert [*map(id, net.parameters())] == net_ids
    for (name, mine), theirs in zip(net.state_dict().items(), reference.state_dict().values(), strict=True):
        assert (mine.dtype, mine.stride(), bits(mine)) == (theirs.dtype, theirs.stride(), bits(theirs)), name
    for mine, theirs in zip(net.parameters(), reference.parameters(), strict=True):
        grads = mine.grad, theirs.grad
        assert grads[0].dtype == grads[1].dtype
        assert grads[0].stride() == grads[1].stride()
        assert bits(grads[0]) == bits(grads[1])
    assert net.table.dtype == torch.float32  # as .to() leaves a plain attribute


def test_training_goes_on_as_after_module_to():
    ours, theirs = in_mid_training(), in_mid_training()
    tm.move(*ours, dtype=torch.float64, cast_optimizer=True)
    theirs[0].to(torch.float64)
    for state in theirs[1].state.values():
        state.update(exp_avg=state["exp_avg"].double(), exp_avg_sq=state["exp_avg_sq"].double())
    for net, optimizer in (ours, theirs):
        torch.manual_seed(1)
        optimizer.step()
        optimizer.zero_grad()
        for _ in range(3):
            step(net, optimizer)
    for one, other in zip(ours[0].state_dict().values(), theirs[0].state_dict().values(), strict=True):
        assert bits(one) == bits(other)


def test_optimizer_state_keeps_its_dtype_unless_it_is_to_be_cast():
    net, optimizer = in_mid_training()
    receipt = tm.move(net, optimizer, dtype=torch.bfloat16)
    assert [note.code for note in receipt.plan.notes] == ["N064"]
    state = optimizer.state[net.head.weight]
    assert {state["exp_avg"].dtype, state["step"].dtype} == {torch.float32}
    tm.move(net, optimizer, dtype=torch.bfloat16, cast_optimizer=True)
    assert (state["exp_avg"].dtype, state["step"].dtype) == (torch.bfloat16, torch.float32)
    step(net, optimizer)


@pytest.mark.twin
def test_a_cast_that_fails_changes_nothing(twin):
    net, optimizer = in_mid_training()
    named = dict(net.state_dict(keep_vars=True))
    before = trace(named)
    copies = len(tm.plan(net, optimizer, to="twin:0", dtype=torch.float64).moves)
    used = twin.bytes_in_use()
    for number in range(1, copies + 1):
        twin.fail_at(number)
        with pytest.raises(tm.MoveFailed):
            tm.move(net, optimizer, to="twin:0", dtype=torch.float64, memory_format=torch.channels_last)
        assert trace(named) == before
        assert twin.bytes_in_use() == used


class Anchored(nn.Linear):
    """Passes a plain attribute through the function itself, as detection heads do."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.stride = torch.tensor([8.0, 16.0])

    def _apply(self, fn, recurse=True):
        super()._apply(fn, recurse)
        self.stride = fn(self.stride)
        return self


def test_what_a_module_passes_through_its_own_apply_is_cast_as_by_module_to(route):
    module, reference = Anchored(), Anchored().to(torch.bfloat16)
    route.start(module)
    tm.move(module, dtype=torch.bfloat16, mover=route.mover, **({} if route.is_fresh else {"to": route.away}))
    assert module.stride.dtype == reference.stride.dtype == torch.bfloat16
    assert bits(module.stride) == bits(reference.stride)
    kept = Anchored()
    stride = kept.stride
    receipt = tm.move(kept, dtype=torch.bfloat16, keep=["stride"])
    assert kept.stride is stride
    assert [stay.why for stay in receipt.plan.stays] == ["kept by keep="]


def test_tied_weights_stay_tied_and_views_stay_views():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    net[1].weight = net[0].weight
    flat = torch.randn(20)
    views = nn.ParameterList([nn.Parameter(flat[2:8].view(2, 3)), nn.Parameter(flat[8:20])])
    apart = aliases({"one": views[0], "other": views[1], "flat": flat})
    with pytest.raises(tm.MoveRefused, match="which is not converted"):
        tm.move({"views": views, "flat": flat}, dtype=torch.bfloat16)
    assert aliases({"one": views[0], "other": views[1], "flat": flat}) == apart
    tm.move(net, views, dtype=torch.bfloat16)
    assert net[1].weight is net[0].weight
    assert views[0].untyped_storage()._cdata == views[1].untyped_storage()._cdata
    assert bits(views[1]) == bits(flat[8:20].bfloat16())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": torch.int8}, "takes a floating-point or complex dtype"),
        ({"dtype": "bfloat16"}, r"Fix: dtype=torch\.bfloat16"),
        ({"memory_format": "channels_last"}, r"Fix: memory_format=torch\.channels_last"),
        ({"to": "cpu", "cast_optimizer": True}, "needs dtype="),
    ],
)
def test_bad_arguments_are_answered_with_the_right_ones(options, message):
    with pytest.raises(TypeError, match=message):
        tm.move(nn.Linear(2, 2), **options)


def test_tensors_without_a_module_cannot_be_converted():
    with pytest.raises(tm.MoveRefused, match="R049 list: only parameters and buffers of modules are converted"):
        tm.move([torch.ones(3)], dtype=torch.float16)


def test_results_say_what_is_converted():
    net, optimizer = in_mid_training()
    plan = tm.plan(net, optimizer, dtype=torch.bfloat16)
    assert str(plan).startswith("net, optimizer: would be converted to bfloat16: 18 tensors in 18 storages")
    receipt = tm.apply(plan)
    assert str(receipt).startswith("net, optimizer: converted to bfloat16: ")
    assert receipt.plan.to_json()
    again = tm.move(net, optimizer, dtype=torch.bfloat16)
    assert str(again).startswith("net, optimizer: already on cpu as bfloat16, nothing moved")


# ---------------------------------------------------------------- dicts of devices


@pytest.mark.twin
def test_each_part_goes_to_the_device_of_the_first_pattern_that_matches(twin):
    net, optimizer = in_mid_training()
    receipt = tm.move(net, optimizer, to={"encoder.0": "twin:0", "encoder.*": "twin:1", "*": "cpu"}, verify="bytes")
    assert {str(each.device) for each in net.encoder[0].parameters()} == {"twin:0"}
    assert {str(each.device) for each in net.encoder[1].state_dict().values()} == {"twin:1"}
    assert net.head.weight.device.type == "cpu"
    state = optimizer.state[net.encoder[0].weight]
    assert (str(state["exp_avg"].device), state["step"].device.type) == ("twin:0", "cpu")
    assert str(net.encoder[0].weight.grad.device) == "twin:0"
    assert str(receipt).startswith("net, optimizer: moved to twin:0, twin:1, cpu: ")
    assert not tm.move(net, optimizer, to={"encoder.0": "twin:0", "encoder.*": "twin:1", "*": "cpu"}).plan.moves
    tm.move(net, optimizer, to="cpu")
    step(net, optimizer)


@pytest.mark.twin
@pytest.mark.parametrize("pattern", ["net.encoder", "encoder", "encoder.*", "net.enc*", "net.encoder.*"])
def test_a_pattern_may_begin_with_the_name_of_the_object_or_within_it(pattern, twin):
    net, _ = in_mid_training()
    tm.move(net, to={pattern: "twin:0", "*": "cpu"})
    assert {each.device.type for each in net.encoder.parameters()} == {"twin"}
    assert {each.device.type for each in net.head.parameters()} == {"cpu"}


@pytest.mark.twin
@pytest.mark.parametrize(
    ("to", "code"),
    [
        ({"encoder": "twin:0"}, "R015"),
        ({"encoder": "twin:0", "heda": "twin:1", "*": "cpu"}, "R011"),
        ({"*": "cpu", "encoder": "twin:0"}, "R011"),
        ({"encoder": "twin:0", "head.*": "twin:1", "*": "cpu"}, "R041"),
        ({"encoder": "nowhere", "*": "cpu"}, "R010"),
    ],
    ids=["nothing for the rest", "typo", "never reached", "tied apart", "no such device"],
)
def test_patterns_that_cannot_be_meant_are_refused(to, code, twin):
    net, optimizer = in_mid_training()
    net.encoder.tied = net.head.weight
    before = trace(dict(net.state_dict(keep_vars=True)))
    with pytest.raises(tm.MoveRefused, match=code):
        tm.move(net, optimizer, to=to)
    assert trace(dict(net.state_dict(keep_vars=True))) == before


@pytest.mark.twin
def test_tied_weights_are_refused_where_one_of_them_is_everything_else(twin):
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    net[1].weight = net[0].weight
    with pytest.raises(tm.MoveRefused, match=r"R041 net\[0\]\.weight: is also net\[1\]\.weight"):
        tm.move(net, to={"net.1": "twin:0", "*": "twin:1"})
    also = [net[0].weight, *net[1].parameters()]  # a list that has them too is not in the way
    net[1].weight = nn.Parameter(torch.ones(4, 4))
    net[0].weight = nn.Parameter(torch.ones(4, 4))
    also[0] = net[0].weight
    tm.move(also, net, to={"net.1": "twin:0", "net.0": "twin:1", "*": "cpu"})
    assert {str(each.device) for each in net[1].parameters()} == {"twin:0"}


@pytest.mark.twin
def test_patterns_of_gradients_and_optimizer_state_decide_nothing(twin):
    net, optimizer = in_mid_training()
    for pattern in ("*.grad", "*exp_avg*"):
        with pytest.raises(tm.MoveRefused, match="R011"):
            tm.move(net, optimizer, to={pattern: "twin:0", "*": "cpu"})


def test_the_bytes_of_a_plan_are_those_that_arrive():
    net, optimizer = in_mid_training()
    plan = tm.plan(net, optimizer, dtype=torch.bfloat16)
    assert sum(move["nbytes"] for move in json.loads(plan.to_json())["moves"]) == plan.nbytes


def test_an_optimizer_that_is_not_given_beside_a_cast_is_noted():
    net, optimizer = in_mid_training()
    (note,) = tm.plan(net, dtype=torch.bfloat16).notes
    assert note.path == "optimizer"
    assert "of it left as float32 on cpu. Fix: tm.move(net, optimizer, ..., cast_optimizer=True)" in note.why
    del optimizer


def test_a_dict_that_is_no_dict_of_patterns_is_a_type_error():
    for to in ({}, {0: "cpu"}):
        with pytest.raises(TypeError, match=re.escape("to={'encoder': 'cuda:0', '*': 'cpu'}")):
            tm.move(nn.Linear(2, 2), to=to)


class Remembers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(2, 2)
        self.inside.device = torch.device("cpu")
        self.outside = nn.Linear(2, 2)
        self.outside.device = torch.device("cpu")


@pytest.mark.twin
def test_remembered_devices_follow_the_part_that_holds_them(twin):
    module = Remembers()
    tm.move(module, to={"inside": "twin:0", "outside": "twin:1"})
    assert (str(module.inside.device), str(module.outside.device)) == ("twin:0", "twin:1")
