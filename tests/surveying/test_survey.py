"""What survey finds, what it does not touch, and how it names things."""

from __future__ import annotations

import functools
import gc
import json
import sys
import threading
import weakref
from collections import Counter, OrderedDict

import pytest
import torch
from torch import nn
from zoo import ZOO, numbers

import torchmove as tm
from torchmove.surveying.paths import _unused
from torchmove.surveying.readers import modules
from torchmove.surveying.survey import survey_objects


def paths(*objects):
    return [str(slot.path) for slot in tm.survey(*objects).tensors]


def test_paths_begin_with_the_callers_name_and_can_be_pasted():
    net = nn.Sequential(nn.Linear(1, 1), nn.ModuleDict({"head": nn.Linear(1, 1)}))
    net.extra = {"a b": [numbers(1)], 3: (numbers(2),)}
    inventory = tm.survey(net)
    for slot in inventory.tensors:
        assert eval(str(slot.path), {"net": net}) is slot.tensor
    assert "net[1]['head'].weight" in {str(slot.path) for slot in inventory.tensors}


def test_paths_of_optimizer_state_can_be_pasted():
    model = nn.Linear(1, 1)
    optimizer = torch.optim.Adam(model.parameters())
    model(numbers(1)).sum().backward()
    optimizer.step()
    for slot in tm.survey(model, optimizer).tensors:
        assert eval(str(slot.path), {"model": model, "optimizer": optimizer}) is slot.tensor


def test_objects_without_a_name_are_named_by_kind():
    assert paths(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)) == ["model.weight", "model_2.weight"]


def test_a_thousand_objects_without_a_name_are_named_without_asking_for_every_name_each_time():
    class Asked(dict):
        count = 0

        def __contains__(self, name):
            Asked.count += 1
            return super().__contains__(name)

    taken, counts = Asked(model_3=0), Counter()
    for _ in range(1000):
        taken[_unused("model", taken, counts)] = 0
    assert [*taken][:4] == ["model_3", "model", "model_2", "model_4"]
    assert len(taken) == 1001
    assert Asked.count <= 2001


def test_a_parameter_is_named_by_its_model_whatever_the_order():
    model = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters())
    assert paths(optimizer, model) == ["model.weight"]


@pytest.mark.twin
def test_nesting_may_be_deeper_than_pythons_stack():
    deepest = numbers(3)
    nest = [deepest]
    for _ in range(100_000):
        nest = [nest]
    model = nn.Module()
    model.nest = nest
    inventory = tm.survey(model)
    assert [slot.tensor for slot in inventory.tensors] == [deepest]
    assert str(inventory.tensors[0].path).count("[0]") == 100_001
    tm.move(model, to="twin:0")
    assert deepest.device.type == "twin"
    while nest is not deepest:  # Python itself would fall over a nest this deep if it were dropped at once
        nest = nest[0]


def test_a_chain_of_modules_may_be_as_deep():
    first = module = nn.Module()
    for _ in range(5_000):
        module.next = nn.Module()
        module = module.next
    module.weight = nn.Parameter(numbers(1))
    assert len(tm.survey(first).tensors) == 1


def test_roles_are_told_apart():
    state = ZOO["adamw"]()
    model, optimizer = state.objects
    model.register_buffer("table", numbers(1))
    model.extra = numbers(1)
    roles = {str(slot.path): slot.role for slot in tm.survey(model, optimizer).tensors}
    assert roles["model[0].weight"] == "parameter"
    assert roles["model[0].weight.grad"] == "gradient"
    assert roles["model.table"] == "buffer"
    assert roles["model.extra"] == "tensor"
    assert roles["optimizer.state[model[0].weight]['exp_avg']"] == "state"


def test_who_shares_with_whom_is_printed():
    model = ZOO["views_of_flat"]().objects[0]
    text = str(tm.survey(model))
    assert "model.one" in text
    assert json.loads(tm.survey(model).to_json())["storages"][0]["tensors"] == [0, 1, 2, 3]


def test_things_outside_of_a_state_are_not_entered():
    model = nn.Module()
    model.python_module, model.klass, model.thread = sys.modules[__name__], nn.Linear, threading.current_thread()
    model.weak = __import__("weakref").ref(nn.Linear(1, 1))
    model.stream = sys.stdout
    assert not tm.survey(model).tensors


class OnClass(nn.Module):
    table = numbers(3)


@pytest.mark.twin
def test_a_tensor_on_a_class_is_reported_once():
    model = nn.Sequential(OnClass(), OnClass())
    receipt = tm.move(model, to="twin:0")
    assert [note.code for note in receipt.plan.notes] == ["N021"]
    assert OnClass.table.device.type == "cpu"


class Cached(nn.Module):
    @functools.lru_cache  # noqa: B019 (it is how people write it)
    def mask(self, size):
        return numbers(size)


@pytest.mark.twin
def test_a_filled_cache_on_a_class_is_reported():
    model = Cached()
    model.mask(3)
    assert [note.code for note in tm.move(model, to="twin:0").plan.notes] == ["N033"]
    Cached.mask.cache_clear()


@pytest.mark.twin
def test_a_tensor_in_many_places_is_no_burden():
    model = nn.Module()
    model.many = [numbers(1)] * 100_000
    inventory = tm.survey(model)
    assert "(+99997)" in str(inventory)
    assert not tm.plan(model, to="twin:0", keep=["model.many[5]"]).moves


def test_a_tensor_that_an_optimizer_keeps_twice_is_there_once_under_both_names():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    clock = torch.tensor(1.0)
    for state in optimizer.state.values():
        state["step"] = clock
    found = tm.survey(model, optimizer)
    assert [str(slot.path) for slot in found.tensors if slot.tensor is clock] == [
        "optimizer.state[model.weight]['step']"
    ]
    assert [*map(str, found.other_paths[id(clock)])] == ["optimizer.state[model.bias]['step']"]
    assert len({id(slot.tensor) for slot in found.tensors}) == len(found.tensors) == 9


def test_an_object_given_twice_is_there_once():
    model = nn.Linear(1, 1)
    assert len(tm.survey(model, model).tensors) == 2


def test_long_inventories_print_in_part_and_say_so():
    model = nn.ModuleList(nn.Linear(1, 1) for _ in range(100))
    assert "and 160 more" in str(tm.survey(model))
    assert len(json.loads(tm.survey(model).to_json())["tensors"]) == 200


class Holding(nn.Module):
    """Has what it is given before what every module has, or behind it."""

    def __init__(self, held, first):
        if first:
            self.held = held
        super().__init__()
        self.weight = nn.Parameter(numbers(2))
        if not first:
            self.held = held


HELD = {
    "numbers": (1, 2.0, None),
    "tensor": (1, numbers(3)),
    "list": [numbers(3)],
    "tuples": ((numbers(3),),),
    "module": [nn.Linear(1, 1)],
    "text": "cpu",
    "function": numbers,
}


def found(*objects):
    inventory = tm.survey(*objects)
    devices = [(str(value.path), value.value) for value in inventory.device_values]
    return (
        [(str(slot.path), slot.role) for slot in inventory.tensors],
        devices,
        [told.diagnostic for told in inventory.diagnostics],
    )


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("held", HELD)
def test_what_a_module_holds_besides_is_found_wherever_it_has_it(held, first):
    model = Holding(HELD[held], first)
    slots, _, _ = found(model)
    assert len(slots) == {"tensor": 2, "list": 2, "tuples": 2, "module": 3}.get(held, 1)


@pytest.mark.parametrize(
    ("name", "held", "devices"),
    [
        ("device", "cpu", [("model.device", "cpu")]),
        pytest.param("hf_device_map", {"": 0}, [("model.hf_device_map['']", 0)], marks=pytest.mark.twin),
        ("where", torch.device("cpu"), [("model.where", torch.device("cpu"))]),
        ("width", 3, []),
        ("mode", "cpu", []),
    ],
)
def test_a_device_that_a_module_remembers_is_found_among_numbers_and_texts(name, held, devices):
    model = nn.Linear(1, 1)
    setattr(model, name, held)
    assert found(model)[1] == devices


@pytest.mark.parametrize("kind", ZOO)
def test_reading_a_module_quickly_finds_what_reading_all_of_it_finds(kind, monkeypatch):
    objects = ZOO[kind]().objects
    quickly = found(*objects)
    monkeypatch.setattr(modules, "_has_only_registered", lambda stored: False)
    assert found(*objects) == quickly


def test_a_gradient_is_found_without_being_compared_with_anything():
    class Unlike(torch.Tensor):
        def __eq__(self, other):
            raise AssertionError("compared")

        __hash__ = torch.Tensor.__hash__

    model = nn.Linear(3, 1, bias=False)
    model.weight.grad = torch.zeros(1, 3).as_subclass(Unlike)
    assert paths(model) == ["model.weight", "model.weight.grad"]


def test_a_class_that_was_surveyed_can_be_forgotten():
    def made():
        held = numbers(3)

        class Local(nn.Module):
            def forward(self, x):
                return x * held

        return Local, weakref.ref(held)

    kind, held = made()
    tm.survey(kind())
    del kind
    gc.collect()
    assert held() is None


def test_a_device_that_is_given_does_not_hide_those_that_others_remember():
    device, other = torch.device("cpu"), Holding(torch.device("cpu"), first=False)
    found = survey_objects({"device": device, "other": other})
    assert [str(value.path) for value in found.device_values] == ["other.held"]


@pytest.mark.parametrize("name", ["_parameters", "_buffers", "_modules"])
def test_a_module_whose_containers_are_gone_is_read_as_far_as_it_goes(name):
    model = nn.Sequential(nn.BatchNorm1d(2))
    setattr(model[0], name, None)
    left = {"_parameters": 3, "_buffers": 2, "_modules": 5}[name]
    assert len(tm.survey(model).tensors) == left


def test_odd_names_and_odd_classes_are_read():
    class Unhashable(type):
        __hash__ = None

    class Odd(nn.Module):
        value = Unhashable("Value", (), {})()

    model = Odd()
    model.__dict__[5] = (1, 2)
    model.weight = nn.Parameter(numbers(2))
    assert paths(model) == ["model.weight"]
    assert paths(nn.Sequential(OrderedDict({"\u00b2": nn.Linear(1, 1, bias=False)}))) == [
        "getattr(model, '\u00b2').weight"
    ]
