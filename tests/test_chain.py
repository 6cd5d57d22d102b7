"""The calls as users make them: what they take, what they refuse, in which surroundings they work."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from types import MappingProxyType
from typing import Any

import pytest
import torch
from laws import assert_same, bits, trace
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from zoo import ZOO, numbers

import torchmove as tm
from torchmove.internals.storages import has_storage
from torchmove.moving import movers
from torchmove.moving.movers.copies import Plain
from torchmove.testing import refresh

pytestmark = pytest.mark.twin


def refusals(call: Callable[[], Any]) -> list[tuple[str, str]]:
    with pytest.raises(tm.MoveRefused) as error:
        call()
    return [(refusal.code, refusal.path) for refusal in error.value.refusals]


# ---------------------------------------------------------------- to


def test_to_takes_what_torch_device_takes():
    model = nn.Linear(1, 1)
    for target in (torch.device("twin", 1), "twin:0", "twin", "cpu", torch.device("cpu")):
        tm.move(model, to=target)
        expected = torch.device(target)
        assert model.weight.device == (torch.device("twin:0") if expected == torch.device("twin") else expected)


def test_auto_is_the_accelerator_of_the_machine():
    model = nn.Linear(1, 1)
    tm.move(model, to="auto")
    assert model.weight.device.type == torch.accelerator.current_accelerator().type


@pytest.mark.parametrize("target", ["twin:2", "nonsense", "meta", "hpu", 3.5])
def test_a_device_that_does_not_exist_is_refused(target):
    model = nn.Linear(1, 1)
    assert refusals(lambda: tm.move(model, to=target)) == [("R010", f"to={target!r}")]
    assert model.weight.device.type == "cpu"


# ---------------------------------------------------------------- keep


def test_patterns_keep_what_they_match():
    model = nn.ModuleDict({"a": ZOO["nested_modules"]().objects[0], "b": nn.Linear(1, 1)})
    model.table = numbers(2)
    tm.move(model, to="twin:0", keep=["model['a'][1]", "*.table"])
    assert model["a"][1][0].weight.device.type == model.table.device.type == "cpu"
    assert model["a"][0].weight.device.type == model["b"].weight.device.type == "twin"


def test_a_pattern_matches_whole_steps():
    model = nn.Module()
    model.a, model.ab = numbers(1), numbers(2)
    tm.move(model, to="twin:0", keep=["model.a"])
    assert model.a.device.type == "cpu"
    assert model.ab.device.type == "twin"


def test_a_pattern_may_be_spelled_as_in_a_state_dict():
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    tm.move(model, to="twin:0", keep=["model.0.*"])
    assert [parameter.device.type for parameter in model.parameters()] == ["cpu", "cpu", "twin", "twin"]


def test_a_pattern_for_the_optimizer_keeps_its_state_and_not_the_model():
    model, optimizer = ZOO["adamw"]().objects
    tm.move(model, optimizer, to="twin:0", keep=["optimizer"])
    assert model[0].weight.device.type == "twin"
    assert optimizer.state[model[0].weight]["exp_avg"].device.type == "cpu"


def test_a_remembered_device_is_kept_by_its_path():
    model = nn.Linear(1, 1)
    model.offload_device = torch.device("cpu")
    tm.move(model, to="twin:0", keep=["model.offload_device"])
    assert model.offload_device == torch.device("cpu")


class Empty(nn.Module):
    """Like a metric that has counted nothing yet: there is no tensor in it, and it knows where it is."""

    def __init__(self, device: str, other_device: str) -> None:
        super().__init__()
        self.device, self.other_device = torch.device(device), other_device


def test_a_state_without_tensors_is_where_it_says_it_is():
    metric = Empty("cpu", "cpu")
    assert not tm.verify(metric, on="twin:0").ok
    receipt = tm.move(metric, to="twin:0")
    assert (metric.device, metric.other_device) == (torch.device("twin:0"), "twin")
    assert "cpu -> twin:0" in str(receipt)
    assert tm.verify(metric, on="twin:0").ok
    assert tm.move(metric, to="twin:0").plan.repoints == ()
    with tm.parked(metric):
        assert (metric.device, metric.other_device) == (torch.device("cpu"), "cpu")
    assert (metric.device, metric.other_device) == (torch.device("twin:0"), "twin")


def test_a_state_without_tensors_that_names_two_devices_is_left_alone():
    metric = Empty("cpu", "twin:1")
    tm.move(metric, to="twin:0")
    assert (metric.device, metric.other_device) == (torch.device("cpu"), "twin:1")
    tm.move(metric, to="twin:0", keep=["metric.other_device"])
    assert (metric.device, metric.other_device) == (torch.device("twin:0"), "twin:1")


def test_what_a_state_without_tensors_plans_for_meta_stays():
    metric = Empty("cpu", "meta")
    tm.move(metric, to="twin:0")
    assert (metric.device, metric.other_device) == (torch.device("twin:0"), "meta")


def test_the_texts_of_a_state_without_tensors_say_what_follows():
    metric = Empty("cpu", "cpu")
    assert "no tensors found, only remembered devices changed" in str(tm.move(metric, to="twin:0"))
    parked = tm.park(metric)
    assert "metric.device: twin:0 -> cpu" in str(parked)
    parked.wake()
    assert "no tensors found, nothing moved" in str(tm.move(metric, to="twin:0"))


def test_new_storages_are_where_the_old_ones_were():
    state = [torch.ones(3), torch.ones(3, device="twin:0"), torch.ones(3, device="twin:1")]
    places = [tensor.data_ptr() for tensor in state]
    refresh(state)
    assert [str(tensor.device) for tensor in state] == ["cpu", "twin:0", "twin:1"]
    assert not {tensor.data_ptr() for tensor in state} & {*places}


class MakesItsOwn(Plain):
    """Its copies have the shape that they should, and such strides as torch gives a new tensor."""

    def copy(self, load: Any, advance: Any) -> list[Tensor]:
        return [torch.empty(copy.shape, dtype=copy.dtype).copy_(copy) for copy in super().copy(load, advance)]


def test_the_step_of_a_dimension_of_length_one_is_kept(monkeypatch):
    thin = torch.empty_strided((3, 1), (1, 7)).copy_(numbers(3, 1))
    before, was = thin.clone(), thin.data_ptr()
    monkeypatch.setitem(movers._TABLE, "plain", MakesItsOwn())
    refresh({"thin": thin})
    assert thin.is_contiguous()
    assert thin.stride() == (1, 7)
    assert thin.data_ptr() != was
    assert torch.equal(thin, before)


def test_new_storages_leave_what_is_remembered():
    metric = Empty("twin:0", "twin:0")
    refresh(metric)
    assert (metric.device, metric.other_device) == (torch.device("twin:0"), "twin:0")


def test_a_device_in_a_place_that_cannot_be_written_to_is_noted():
    state = {"weight": torch.ones(3), "settings": MappingProxyType({"device": "cpu"})}
    receipt = tm.move(state, to="twin:0")
    assert state["weight"].device == torch.device("twin:0")
    assert [(note.code, note.path) for note in receipt.plan.notes] == [("N040", "state['settings']['device']")]


@pytest.mark.parametrize("keep", ["model.weight", None, nn.Linear(1, 1)])
def test_keep_takes_a_list(keep):
    with pytest.raises(TypeError, match="keep= needs a list"):
        tm.move(nn.Linear(1, 1), to="twin:0", keep=keep)


def test_a_kept_module_keeps_its_optimizer_state_with_it():
    state = ZOO["adamw"]()
    model, optimizer = state.objects
    tm.move(model, optimizer, to="twin:0", keep=[model[0]])
    assert {str(tensor.device) for tensor in optimizer.state[model[0].weight].values()} == {"cpu"}
    assert model[0].weight.grad.device.type == "cpu"
    assert optimizer.state[model[2].weight]["exp_avg"].device.type == "twin"


def test_a_kept_tensor_and_a_list_of_tensors_stay():
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1), nn.Linear(1, 1))
    tm.move(model, to="twin:0", keep=[model[0].weight, list(model[1].parameters())])
    assert [parameter.device.type for parameter in model.parameters()] == ["cpu", "twin", "cpu", "cpu", "twin", "twin"]


@pytest.mark.parametrize("kept", [lambda optimizer: optimizer, lambda optimizer: optimizer.state])
def test_a_kept_optimizer_keeps_its_state_but_not_the_model(kept):
    model, optimizer = ZOO["adamw"]().objects
    tm.move(model, optimizer, to="twin:0", keep=[kept(optimizer)])
    assert model[0].weight.device.type == "twin"
    assert optimizer.state[model[0].weight]["exp_avg"].device.type == "cpu"


def test_what_is_kept_but_not_there_is_refused():
    model = nn.Linear(1, 1)
    found = refusals(lambda: tm.move(model, to="twin:0", keep=["model.wieght", nn.Linear(1, 1)]))
    assert [code for code, _ in found] == ["R011", "R011"]
    assert model.weight.device.type == "cpu"


def test_memory_shared_between_kept_and_moved_is_refused():
    flat = numbers(4)
    model = nn.Module()
    model.left, model.right = flat[:2], flat[2:]
    assert [code for code, _ in refusals(lambda: tm.move(model, to="twin:0", keep=["model.left"]))] == ["R041"]


def test_what_stands_in_the_way_of_a_kept_object_does_not_matter():
    model = nn.ModuleDict({"real": nn.Linear(1, 1), "meta": nn.Linear(1, 1, device="meta")})
    tm.move(model, to="twin:0", keep=[model["meta"]])
    assert model["real"].weight.device.type == "twin"


# ---------------------------------------------------------------- refusals, plans, receipts


def test_all_reasons_are_given_at_once():
    model = nn.Sequential(nn.Linear(1, 1, device="meta"), torch.nn.DataParallel(nn.Linear(1, 1)))
    found = refusals(lambda: tm.move(model, to="twin:0"))
    assert sorted({code for code, _ in found}) == ["R020", "R030"]


def test_a_refused_plan_is_not_applied():
    plan = tm.plan(nn.Linear(1, 1, device="meta"), to="twin:0")
    assert not plan.ok
    assert {code for code, _ in refusals(lambda: tm.apply(plan))} == {"R030"}


UNDER_FAKES = [
    refresh,
    tm.park,
    lambda model: tm.move(model, to="cpu"),
    lambda model: tm.move(model, to="cpu", verify="bytes"),
    lambda model: tm.apply(tm.plan(model, to="cpu", verify="bytes")),
]


@pytest.mark.parametrize("call", UNDER_FAKES)
def test_under_a_fake_mode_nothing_moves(call):
    model = nn.Linear(2, 2, device="twin:0")
    storage, before = model.weight.untyped_storage()._cdata, model.weight.detach().clone()
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert refusals(lambda: call(model)) == [("R014", "FakeTensorMode")]
    assert model.weight.untyped_storage()._cdata == storage
    assert torch.equal(model.weight, before)
    has_storage.cache_clear()
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert has_storage("twin")


def test_a_plan_is_not_applied_under_a_fake_mode_but_after_it():
    model = nn.Linear(2, 2)
    plan = tm.plan(model, to="twin:0")
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert refusals(lambda: tm.apply(plan)) == [("R014", "FakeTensorMode")]
    assert tm.apply(plan).moved_bytes == 24


def test_a_plan_is_applied_once_and_not_to_another_state():
    model = nn.Linear(1, 1)
    plan = tm.plan(model, to="twin:0")
    tm.apply(plan)
    assert refusals(lambda: tm.apply(plan)) == [("R013", "plan")]
    plan = tm.plan(model, to="cpu")
    model.weight.grad = torch.ones(1, 1, device="twin:0")
    assert refusals(lambda: tm.apply(plan)) == [("R013", "plan")]


def test_a_plan_is_not_applied_to_a_state_that_is_in_use_since():
    model = nn.Linear(1, 1)
    plan = tm.plan(model, to="twin:0")
    loss = model(torch.ones(1, 1)).square()
    assert refusals(lambda: tm.apply(plan)) == [("R013", "plan")]
    del loss
    tm.apply(plan)


def test_a_plan_is_not_applied_when_a_remembered_device_has_changed_since():
    model = nn.Linear(1, 1)
    model.device = "cpu"
    plan = tm.plan(model, to="twin:0")
    model.device = "meta"
    assert refusals(lambda: tm.apply(plan)) == [("R013", "plan")]
    assert model.device == "meta"


def test_bytes_are_compared_when_asked():
    model = nn.Linear(3, 3)
    receipt = tm.move(model, to="twin:0", verify="bytes")
    assert "values" in receipt.verdict.checked
    with torch.no_grad():
        model.weight[0, 0] += 1
    verdict = tm.verify(model, after=receipt)
    assert [(finding.code, finding.path) for finding in verdict.findings] == [("V101", "model.weight")]
    with pytest.raises(tm.VerificationError):
        verdict.raise_if_bad()


def test_verify_finds_what_a_later_to_breaks():
    model = ZOO["tied_weights"]().objects[0]
    receipt = tm.move(model, to="twin:0")
    model.to("cpu")  # unties on this class of device
    found = {finding.code for finding in tm.verify(model, after=receipt).findings}
    assert {"V301", "V302"} <= found


def test_verify_without_on_and_after_is_an_error():
    with pytest.raises(TypeError, match="on="):
        tm.verify(nn.Linear(1, 1))


def test_an_unknown_mover_is_refused():
    assert refusals(lambda: tm.move(nn.Linear(1, 1), to="twin:0", mover="rocket")) == [("R012", "mover='rocket'")]


def test_an_unknown_value_of_verify_is_an_error():
    with pytest.raises(ValueError, match="bytes"):
        tm.move(nn.Linear(1, 1), to="twin:0", verify="a bit")


def test_a_receipt_keeps_nothing_alive():
    model, optimizer = ZOO["adamw"]().objects
    receipt = tm.move(model, optimizer, to="twin:0")
    gradient, weight = weakref.ref(model[0].weight.grad), weakref.ref(model[0].weight)
    optimizer.zero_grad()
    assert gradient() is None
    del model, optimizer
    gc.collect()
    assert weight() is None
    assert str(receipt)
    assert str(receipt.plan)
    assert str(receipt.plan.inventory)
    assert receipt.to_json()


def test_the_callers_variables_are_not_kept_alive():
    model, bystander = nn.Linear(1, 1), numbers(3)
    watcher = weakref.ref(bystander)
    tm.survey(model)
    del bystander
    assert watcher() is None


def test_nothing_to_move_is_an_error():
    with pytest.raises(TypeError, match="no objects were given"):
        tm.move(to="twin:0")


@pytest.mark.parametrize("slip", [nn.Linear(1, 1).parameters(), {}.values(), map(id, []), nn.Linear, 3])
def test_what_holds_no_state_is_an_error(slip):
    with pytest.raises(TypeError, match=f"cannot search {type(slip).__name__} for tensors"):
        tm.move(slip, to="twin:0")


@pytest.mark.parametrize(("text", "hint"), [("cuda:0", "Fix: to='cuda:0'"), ("model", "Fix: pass the object itself")])
def test_a_string_among_the_objects_is_an_error(text, hint):
    with pytest.raises(TypeError, match=re.escape(hint)):
        tm.move(nn.Linear(1, 1), text, to="twin:0")


@pytest.mark.parametrize("move", [tm.move, lambda *state, to, keep: tm.park(*state, keep=keep)])
def test_a_move_to_the_cpu_takes_no_step_off_it(move):
    """Of a parameter that is kept elsewhere: AdamW would refuse to go on with its step there."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    tm.move(model, to="twin:0")
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2, device="twin:0")).sum().backward()
    optimizer.step()
    move(model, optimizer, to="cpu", keep=[model[1]])
    assert {each["step"].device.type for each in optimizer.state.values()} == {"cpu"}
    kept = optimizer.state[model[1].weight]
    assert {kept["exp_avg"].device.type, model[1].weight.device.type} == {"twin"}


def test_what_keep_names_may_be_anywhere():
    """A tensor, a module that remembers a device, a part that holds both."""
    model, part = nn.Sequential(nn.Linear(1, 1)), nn.Linear(1, 1)
    model.part, part.table, part.device = part, torch.ones(2), torch.device("cpu")
    tm.move(model, to="twin:0", keep=[part])
    assert [each.code for each in tm.verify(model, on="twin:0").findings] == ["V401"] * 3 + ["V403"]
    assert tm.verify(model, on="twin:0", keep=[part]).ok
    assert tm.verify(model, on="twin:0", keep=["*.part.*"]).ok
    found = tm.verify(model, on="twin:0", keep=[part.table]).findings
    assert [each.path for each in found] == ["model.part.weight", "model.part.bias", "model.part.device"]


def test_keep_of_a_verification_names_what_is_there():
    model = nn.Linear(1, 1)
    with pytest.raises(tm.MoveRefused, match="R011"):
        tm.verify(model, on="cpu", keep=["model.wieght"])
    with pytest.raises(TypeError, match="keep= goes with on="):
        tm.verify(model, after=tm.move(model, to="twin:0"), keep=[model.weight])


def test_a_result_of_the_wrong_class_is_an_error():
    model = nn.Linear(1, 1)
    with pytest.raises(TypeError, match="takes a Plan"):
        tm.apply(model)
    with pytest.raises(TypeError, match="receipt"):
        tm.verify(model, after=model)
    with pytest.raises(TypeError, match="on="):
        tm.verify(model, after=tm.move(model, to="twin:0"), on="cpu")


def test_the_repr_of_a_result_is_short():
    model = nn.ModuleList(nn.Linear(1, 1) for _ in range(100))
    receipt = tm.move(model, to="twin:0")
    for noun in (tm.survey(model), tm.plan(model, to="cpu"), receipt, receipt.verdict):
        assert len(repr(noun)) < 200


def test_a_tensor_without_memory_fails_and_changes_nothing():
    model = nn.Linear(1, 1)
    model.zeros = torch._efficientzerotensor((2,))
    with pytest.raises(tm.MoveFailed, match="has no memory"):
        tm.move(model, to="twin:0")
    assert model.weight.device.type == "cpu"


def test_none_among_the_objects_is_ignored():
    assert tm.move(None, nn.Linear(1, 1), None, to="twin:0").plan.tensors == 2


def test_the_receipt_counts_what_moved():
    model = nn.Linear(3, 3)
    receipt = tm.move(model, to="twin:0")
    assert (receipt.plan.tensors, receipt.moved_bytes, receipt.mover) == (2, 48, "plain")
    assert receipt.seconds > 0


# ---------------------------------------------------------------- surroundings

SURROUNDINGS: dict[str, Callable[[], Any]] = {
    "nothing": nullcontext,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "default device": lambda: torch.device("meta"),
    "anomaly detection": torch.autograd.set_detect_anomaly,
    "saved tensor hooks": lambda: torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda x: x),
}


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("surroundings", SURROUNDINGS)
def test_a_move_works_under_any_mode_of_torch(surroundings, route):
    model, optimizer = ZOO["adamw"]().objects
    route.start(model, optimizer)
    before = trace(dict(model.named_parameters()))
    around = SURROUNDINGS[surroundings]
    with around() if surroundings != "anomaly detection" else around(True):
        route.there(model, optimizer)
    assert_same(before, trace(dict(model.named_parameters())))
    optimizer.zero_grad()
    model(torch.ones(1, 3, device=route.away)).sum().backward()
    optimizer.step()


def test_it_works_in_another_thread():
    model = nn.Linear(1, 1)
    thread = threading.Thread(target=lambda: tm.move(model, to="twin:0"))
    thread.start()
    thread.join()
    assert model.weight.device.type == "twin"


def test_modules_with_an_apply_of_their_own_get_their_chance(route):
    class Flattened(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(numbers(4))
            self.seen: list[torch.device] = []

        def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
            result = super()._apply(fn, recurse)
            self.seen.append(self.weight.device)
            return result

    model = nn.Sequential(Flattened())
    route.start(model)
    model[0].seen.clear()
    weight = model[0].weight
    route.there(model)
    assert model[0].seen == [route.away]
    assert model[0].weight is weight


def test_a_registered_reader_is_used_and_a_registered_rule_too():
    class Ring:
        __slots__ = ("handle",)

    class Clocked(torch.optim.SGD):
        pass

    frames = numbers(3)

    @tm.register_reader(Ring)
    def read(ring):
        yield tm.item("frames", frames)

    tm.register_rule(Clocked, "ticks", "cpu")
    model = nn.Linear(1, 1)
    optimizer = Clocked(model.parameters())
    optimizer.state[model.weight] = {"ticks": torch.tensor(1.0), "other": torch.tensor(2.0)}
    tm.move(model, optimizer, Ring(), to="twin:0")
    assert frames.device.type == "twin"
    assert optimizer.state[model.weight]["ticks"].device.type == "cpu"
    assert optimizer.state[model.weight]["other"].device.type == "twin"


@pytest.mark.parametrize("place", ["cpu", "parameter"])
def test_a_rule_is_asked_once_for_all_that_are_alike(twin, place):
    class Counted(torch.optim.SGD):
        pass

    asked = []

    def rule(group):
        asked.append(id(group))
        return place

    tm.register_rule(Counted, "ticks", rule)
    model = nn.Sequential(*(nn.Linear(1, 1) for _ in range(20)))
    optimizer = Counted([{"params": model[:10].parameters()}, {"params": model[10:].parameters()}])
    for parameter in model.parameters():
        optimizer.state[parameter] = {"ticks": torch.tensor(1.0)}
    tm.plan(model, optimizer, to="twin:0")
    assert asked == [*map(id, optimizer.param_groups)]


@pytest.mark.parametrize("bad", [tm.register_reader, lambda: tm.register_reader("Ring")])
def test_a_reader_needs_types(bad):
    with pytest.raises(TypeError):
        bad()


class Schedule:
    """Makes its table on the CPU; from the first sample on it remembers samples on their device."""

    def __init__(self) -> None:
        self.table, self.remembered, self.started = numbers(4), [numbers(3)], None


tm.register_rule(Schedule, "*", lambda schedule: "cpu" if schedule.started is None else "parameter")
tm.register_rule(Schedule, "table", "cpu")


@pytest.mark.parametrize("started", [None, 7])
def test_a_rule_can_ask_the_object_where_it_keeps_an_attribute(started, twin):
    schedule = Schedule()
    schedule.started = started
    tm.move(nn.Linear(1, 1), schedule, to="twin:0")
    assert schedule.table.device.type == "cpu"
    assert schedule.remembered[0].device.type == ("cpu" if started is None else "twin")
    tm.move(schedule, to="cpu")
    assert schedule.remembered[0].device.type == "cpu"


def test_what_is_kept_on_the_cpu_follows_where_it_shares_memory_with_what_moves(route):
    schedule = Schedule()
    schedule.started, schedule.view = 7, schedule.table[1:]
    before = trace({"table": schedule.table, "view": schedule.view})
    route.start(schedule)
    route.there(schedule)
    assert schedule.table.device == schedule.view.device == route.away
    assert trace({"table": schedule.table, "view": schedule.view}) == before


class NoiseSchedule:
    """Goes through numpy whenever a sampling begins, as those of diffusers do."""

    def __init__(self) -> None:
        self.alphas, self.timesteps = torch.linspace(1, 0, 10).cumprod(0), None

    def begin(self, device):
        self.timesteps = torch.from_numpy(self.alphas.numpy()[::3].copy()).to(device)


def test_a_sampling_goes_on_and_begins_anew_after_a_move(route):
    tm.register_rule(NoiseSchedule, "alphas", "cpu")
    model, schedule = nn.Linear(2, 2), NoiseSchedule()
    route.start(model, schedule)
    schedule.begin(route.home)
    before = bits(schedule.timesteps)
    for go, device in ((route.there, route.away), (route.back, route.home)):
        go(model, schedule)
        assert schedule.timesteps.device == device
        model(torch.ones(1, 2, device=device)).mul(schedule.timesteps[0]).sum().backward()
        schedule.begin(device)
        assert bits(schedule.timesteps) == before


def test_a_rule_needs_a_place():
    with pytest.raises(ValueError, match="cpu"):
        tm.register_rule(torch.optim.SGD, "ticks", "gpu")


# ---------------------------------------------------------------- a device without storages

NO_STORAGE = """
import torch, torchmove as tm
from torch._lazy import ts_backend

ts_backend.init()
flat = torch.arange(6.0)
model = torch.nn.Linear(2, 3)
model.one, model.two, model.tied = flat[:4], flat[2:], model.weight
model.weight.register_hook(lambda gradient: gradient * 2)
before = {name: tensor.tolist() for name, tensor in model.state_dict().items()}
identity = id(model.weight)
receipt = tm.move(model, to="lazy", verify="bytes")
assert {str(slot.device) for slot in tm.survey(model).tensors} == {"lazy:0"}
assert [note.code for note in receipt.plan.notes] == ["N041"]
model.one[3] = 10.0
assert model.two.cpu().tolist() == [2, 10, 4, 5]  # still one piece of memory
model(torch.ones(1, 2, device="lazy")).sum().backward()
assert model.weight.grad.cpu().tolist() == [[2, 2]] * 3
tm.move(model, to="cpu", verify="bytes")
assert id(model.weight) == identity and model.tied is model.weight
assert {name: tensor.tolist() for name, tensor in model.state_dict().items()} == before
class Own(torch.nn.Parameter):
    pass

many = [Own(torch.full((2,), float(number))) for number in range(1500)]
tm.move(many, to="lazy")
assert len(tm.survey(many).storages) == 1500
tm.apply(tm.plan(many, to="cpu"))
assert [parameter.tolist() for parameter in many] == [[number, number] for number in range(1500)]
expanded = {"row": torch.randn(3, 1).expand(3, 4)}
tm.move(expanded, to="lazy", verify="bytes")
assert expanded["row"].device.type == "lazy"
model.mixed = [flat, flat.view(torch.int32)]
model.codes = torch.zeros(4, dtype=torch.uint8).view(torch.uint4)
try:
    tm.move(model, to="lazy")
except tm.MoveRefused as error:
    print([refusal.code for refusal in error.refusals])
"""


@pytest.mark.slow
def test_a_device_without_storages_is_served_too():
    """In a process of its own: torch's lazy device and the twin device cannot be told apart within one."""
    ran = subprocess.run([sys.executable, "-c", NO_STORAGE], capture_output=True, text=True, check=False)
    assert ran.stdout == "['R043', 'R044']\n", ran.stderr


@pytest.mark.parametrize("is_given", [True, False])
def test_a_view_of_whose_graph_torch_does_not_tell(is_given, route):
    base, weight = torch.ones(4), torch.ones(4, requires_grad=True)
    with torch.no_grad():
        view = base[:2]
    base.mul_(weight)
    base.sum().backward()
    with pytest.raises(RuntimeError, match="A view was created in no_grad mode"):
        view.grad_fn  # noqa: B018
    held = torch.zeros(2) if not is_given else view
    route.there([held])
    route.back([held])
    assert held.detach().tolist() == ([1, 1] if is_given else [0, 0])
