"""What goes wrong in the wild when a state changes its device, one test for each way, over every route."""

from __future__ import annotations

import copy
import functools
import gc
import pickle
import warnings
import weakref
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from laws import assert_same, bits, trace
from torch import Tensor, nn
from zoo import numbers

import torchmove as tm
from torchmove.planning.placement import Keep
from torchmove.planning.planner import make_plan
from torchmove.surveying.survey import survey_objects
from torchmove.testing import refresh

pytestmark = pytest.mark.twin


def codes(error: pytest.ExceptionInfo[tm.MoveRefused]) -> set[str]:
    return {refusal.code for refusal in error.value.refusals}


def refuses(*objects: Any) -> set[str]:
    """The codes for which a move to the twin device is refused; nothing may have moved."""
    with pytest.raises(tm.MoveRefused) as error:
        tm.move(*objects, to="twin:0")
    for refusal in error.value.refusals:
        assert refusal.path
        assert refusal.why
        assert refusal.remedy
    return codes(error)


def trained(optimizer_class: Any, **options: Any) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = optimizer_class(model.parameters(), **options)
    step(model, optimizer)
    return model, optimizer


def step(model: nn.Module, optimizer: Any) -> None:
    device = next(model.parameters()).device
    optimizer.zero_grad()
    model(numbers(3, 4).to(device) / 12).square().sum().backward()
    optimizer.step()


# ---------------------------------------------------------------- left behind by Module.to


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(numbers(3))
        self.scale = numbers(3)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight * self.scale


def test_a_tensor_in_a_plain_attribute_moves(route):
    model = Scale()
    route.start(model)
    route.there(model)
    assert model.scale.device == model.weight.device == route.away
    assert model(torch.ones(3, device=route.away)).tolist() == [1, 4, 9]


@dataclass(frozen=True)
class Anchors:
    boxes: Tensor


def test_tensors_in_containers_on_a_module_move(route):
    model = nn.Module()
    model.grids = [numbers(2), {"stride": (numbers(3), Anchors(numbers(4)))}]
    route.start(model)
    route.there(model)
    found = model.grids[0], model.grids[1]["stride"][0], model.grids[1]["stride"][1].boxes
    assert {tensor.device for tensor in found} == {route.away}


def test_modules_in_a_plain_list_move_and_are_noted(twin):
    model = nn.Module()
    model.blocks, model.heads = [nn.Linear(2, 2)], {"a": nn.Linear(2, 2)}
    receipt = tm.move(model, to="twin:0")
    assert model.blocks[0].weight.device == model.heads["a"].bias.device == torch.device("twin:0")
    assert [note.code for note in receipt.plan.notes] == ["N020", "N020"]


def test_children_that_a_dict_holds_too_are_not_noted(twin):
    model = nn.Sequential(nn.Linear(2, 2))
    model.by_name = {"first": model[0]}
    assert tm.move(model, to="twin:0").plan.notes == ()


def test_a_child_with_a_to_of_its_own_is_moved_by_its_parent(route):
    class Camera(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self._transform = numbers(4)

        def to(self, device: Any) -> Camera:
            self._transform = self._transform.to(device)
            return self

    parent = nn.Sequential(Camera())
    route.start(parent)
    route.there(parent)
    assert parent[0]._transform.device == route.away


def test_attributes_of_a_parameter_move_and_stay_on_it(route):
    model = nn.Linear(2, 2)
    model.weight.quant_state = {"absmax": numbers(2), "code": [numbers(3)]}
    route.start(model)
    route.there(model)
    assert model.weight.quant_state["absmax"].device == route.away
    assert model.weight.quant_state["code"][0].device == route.away


def test_caches_filled_by_the_first_forward_move(route):
    class Rotary(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if not hasattr(self, "cos"):
                self.cos, self.state = torch.cos(x).detach(), (x.detach() + 1, x.detach() + 2)
            return x * self.cos + self.state[0]

    model = Rotary()
    model(numbers(3))
    route.start(model)
    route.there(model)
    assert model.cos.device == model.state[0].device == model.state[1].device == route.away
    model(numbers(3).to(route.away))


def test_the_contents_of_an_lru_cache_move_and_are_noted(twin):
    @functools.lru_cache
    def mask(size: int) -> Tensor:
        return numbers(size)

    model = nn.Module()
    model.mask = mask
    made = mask(3)
    receipt = tm.move(model, to="twin:0")
    assert mask(3) is made
    assert made.device == torch.device("twin:0")
    assert "N030" in {note.code for note in receipt.plan.notes}


def test_closures_of_hooks_partials_and_defaults_move(route):
    model = nn.Linear(2, 2)
    shift, scale, start = numbers(2), numbers(2), numbers(2)
    model.register_forward_hook(lambda module, args, output: output + shift)
    model.activation = functools.partial(torch.mul, scale)

    def with_default(x: Tensor, y: Tensor = start) -> Tensor:
        return x + y

    model.with_default = with_default
    route.start(model)
    route.there(model)
    assert shift.device == scale.device == start.device == route.away
    model.with_default(model.activation(model(torch.ones(1, 2, device=route.away))))


def test_a_traced_program_with_a_tensor_baked_in_is_refused():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(Scale(), torch.ones(3))
    assert refuses(traced) == {"R022"}
    assert refuses(nn.Sequential(traced)) == {"R022"}
    assert next(traced.parameters()).device.type == "cpu"


def double(x: Tensor) -> Tensor:
    return x * 2


def test_a_scripted_function_is_refused_only_for_what_is_baked_in():
    table = numbers(3)
    model = Scale()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.act = torch.jit.script(double)
        tm.move(model, to="twin:0")
        model.act = torch.jit.trace(lambda x: x + table, numbers(3))
    tm.move(model, to="cpu")  # where the table is
    with pytest.raises(tm.MoveRefused) as error:
        tm.move(model, to="twin:0")
    assert codes(error) == {"R022"}


def test_exported_programs_are_refused():
    class Fill(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + torch.zeros(3, device=torch.device("cpu"))

    program = torch.export.export(Fill(), (torch.ones(3),))
    assert refuses(program) == {"R023"}
    assert refuses(program.module()) == {"R023"}


def test_the_computed_weight_of_old_weight_norm_moves_and_is_computed_again(route):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = torch.nn.utils.weight_norm(nn.Linear(2, 3))
    route.start(model)
    route.there(model)
    assert model.weight.device == model.weight_g.device == route.away
    model(torch.ones(1, 2, device=route.away)).sum().backward()
    assert model.weight_v.grad.device == route.away


# ---------------------------------------------------------------- stale knowledge of the device


class Busy(nn.Linear):
    def _apply(self, *arguments: Any, **options: Any) -> Any:
        return super()._apply(*arguments, **options)


def test_a_weak_proxy_of_a_module_with_work_of_its_own_is_not_taken_for_one(twin):
    model = Busy(2, 2)
    model.helper = Config()
    model.helper.owner = weakref.proxy(model)
    tm.move(model, to="twin:0")
    assert model.weight.device.type == "twin"


class Config:
    def __init__(self) -> None:
        self.device = "cpu"
        self.name = "cpu"


def test_remembered_devices_are_re_pointed(twin):
    model = nn.Linear(2, 2)
    model.device, model.config, model.devices = torch.device("cpu"), Config(), {"main": torch.device("cpu")}
    receipt = tm.move(model, to="twin:0")
    assert model.device == model.devices["main"] == torch.device("twin:0")
    assert model.config.device == "twin"
    assert model.config.name == "cpu"
    assert len(receipt.plan.repoints) == 3
    tm.move(model, to="twin:1")
    assert model.config.device == "twin:1"
    tm.move(model, to="cpu")
    assert model.device == torch.device("cpu")
    assert model.config.device == "cpu"


def test_maps_of_devices_are_re_pointed_names_and_indices_too(twin):
    model = nn.Linear(2, 2)
    tm.move(model, to="twin:0")
    model.hf_device_map = {"": 0, "0.attention": "twin:0", "head": "disk", "tokens": 7}
    tm.move(model, to="twin:1")
    assert model.hf_device_map == {"": 1, "0.attention": "twin:1", "head": "disk", "tokens": 7}
    tm.move(model, to="cpu")
    assert model.hf_device_map == {"": "cpu", "0.attention": "cpu", "head": "disk", "tokens": 7}


def test_a_metric_resets_onto_its_new_device(twin):
    class Metric(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self._device = torch.device("cpu")
            self._defaults = {"total": torch.tensor(0.0)}
            self.total = torch.tensor(3.0)

        def reset(self) -> None:
            self.total = self._defaults["total"].clone().to(self._device)

    metric = Metric()
    tm.move(metric, to="twin:0")
    metric.reset()
    assert metric.total.device == torch.device("twin:0")


def test_a_generator_stays_and_is_reported(twin):
    model = Scale()
    model.generator = torch.Generator()
    receipt = tm.move(model, to="twin:0")
    assert model.generator.device.type == "cpu"
    assert [(note.code, note.path) for note in receipt.plan.notes] == [("N032", "model.generator")]


# ---------------------------------------------------------------- optimizers


@pytest.mark.parametrize(
    ("optimizer_class", "options", "moved", "kept"),
    [
        (torch.optim.SGD, {"momentum": 0.9}, {"momentum_buffer"}, set()),
        (torch.optim.AdamW, {}, {"exp_avg", "exp_avg_sq"}, {"step"}),
        (torch.optim.AdamW, {"fused": True}, {"exp_avg", "exp_avg_sq", "step"}, set()),
        (torch.optim.NAdam, {}, {"exp_avg", "exp_avg_sq"}, {"step", "mu_product"}),
        (torch.optim.ASGD, {}, {"step", "eta", "mu", "ax"}, set()),
    ],
)
def test_optimizer_state_goes_where_the_optimizer_would_put_it(route, optimizer_class, options, moved, kept):
    model, optimizer = trained(optimizer_class, **options)
    route.start(model, optimizer)
    route.there(model, optimizer)
    state = optimizer.state[model[0].weight]
    assert {key for key in state if state[key].device == route.away} >= moved
    assert {key for key in state if state[key].device.type == "cpu"} >= kept
    step(model, optimizer)


@pytest.mark.cuda
def test_capturable_state_is_on_the_gpu():
    model = nn.Linear(4, 4, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), capturable=True)
    model(torch.ones(2, 4, device="cuda")).sum().backward()
    optimizer.step()
    tm.move(model, optimizer, to="cpu")
    tm.move(model, optimizer, to="cuda")
    assert optimizer.state[model.weight]["step"].device.type == "cuda"
    optimizer.step()


def test_lbfgs_trains_on(route):
    model, _ = trained(torch.optim.SGD)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(numbers(3, 4).to(next(model.parameters()).device) / 12).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    route.start(model, optimizer)
    route.there(model, optimizer)
    assert all(mine is param for mine, param in zip(optimizer._params, model.parameters(), strict=True))
    optimizer.step(closure)


def test_a_tensor_learning_rate_stays_unless_the_step_runs_on_the_device(twin):
    model, optimizer = trained(torch.optim.AdamW, lr=torch.tensor(0.01), foreach=False)
    receipt = tm.move(model, optimizer, to="twin:0")
    assert optimizer.param_groups[0]["lr"].device.type == "cpu"
    assert any("lr" in str(stay.path) for stay in receipt.plan.stays)
    step(model, optimizer)
    model, optimizer = trained(torch.optim.AdamW, lr=torch.tensor([0.01]), foreach=False)
    tm.move(model, optimizer, to="twin:0")
    assert optimizer.param_groups[0]["lr"].device.type == "cpu"
    model, optimizer = trained(torch.optim.AdamW, lr=torch.tensor(0.01), fused=True)
    tm.move(model, optimizer, to="twin:0")
    assert optimizer.param_groups[0]["lr"].device.type == "twin"


def test_state_keeps_its_dtype_beside_a_low_precision_parameter(route):
    model = nn.Linear(2, 2).bfloat16()
    optimizer = torch.optim.SGD(model.parameters())
    kinds = {"count": torch.int64, "mask": torch.bool, "codes": torch.uint8, "master": torch.float32}
    for key, dtype in kinds.items():
        optimizer.state[model.weight][key] = torch.ones(2, 2).to(dtype)
    route.start(model, optimizer)
    route.there(model, optimizer)
    state = optimizer.state[model.weight]
    assert {key: state[key].dtype for key in kinds} == kinds
    assert {state[key].device for key in kinds} == {route.away}


def test_an_optimizer_made_before_the_move_trains_the_model(route):
    model, optimizer = trained(torch.optim.SGD, lr=0.1)
    route.start(model, optimizer)
    route.there(model, optimizer)
    before = bits(model[0].weight)
    step(model, optimizer)
    assert bits(model[0].weight) != before


def test_plain_to_loses_what_is_attached_to_a_parameter_that_it_replaces(twin):
    def hung() -> tuple[nn.Linear, list[int], weakref.ref[nn.Parameter]]:
        model, calls = nn.Linear(1, 1), []
        model.weight.note = "decays"
        model.weight.register_hook(lambda grad: calls.append(1))
        return model, calls, weakref.ref(model.weight)

    def used(model: nn.Linear) -> None:
        model(torch.ones(1, 1, device="twin:0")).sum().backward()

    lost, calls, watched = hung()
    lost.to("twin:0")
    used(lost)
    assert (hasattr(lost.weight, "note"), calls, watched()) == (False, [], None)
    kept, calls, watched = hung()
    tm.move(kept, to="twin:0")
    used(kept)
    assert (kept.weight.note, calls, watched()) == ("decays", [1], kept.weight)


def test_plain_to_orphans_the_optimizer_and_verify_reports_it(twin):
    model, optimizer = trained(torch.optim.SGD)
    model.to("twin:0")
    verdict = tm.verify(model, optimizer, on="twin:0")
    assert "V303" in {finding.code for finding in verdict.findings}
    tm.move(model, optimizer, to="twin:0")  # takes the old parameters along, and the model does not get them back
    found = tm.verify(model, optimizer, on="twin:0").findings
    assert [(each.code, each.remedy) for each in found] == [
        ("V303", "create it again: optimizer = SGD(model.parameters(), ...)")
    ]
    assert tm.verify(model, torch.optim.SGD(model.parameters(), 0.1), on="twin:0").ok
    with pytest.raises(tm.VerificationError):
        verdict.raise_if_bad()


def test_an_optimizer_without_state_moves(route):
    model = nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    route.start(model, optimizer)
    route.there(model, optimizer)
    step(model, optimizer)


# ---------------------------------------------------------------- companions


def test_loss_weights_outside_the_model_move(route):
    loss = nn.CrossEntropyLoss(weight=numbers(3))
    route.start(loss)
    route.there(loss)
    loss(torch.ones(1, 3, device=route.away), torch.tensor([1], device=route.away))


class Shadow:
    """An EMA helper as people write it: it holds the model too."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.shadow = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}


def test_an_ema_shadow_moves(route):
    model = nn.Linear(2, 2)
    ema = Shadow(model)
    route.start(model, ema)
    route.there(model, ema)
    assert {tensor.device for tensor in ema.shadow.values()} == {route.away}


def test_an_ema_that_is_kept_stays_and_the_model_moves(twin):
    model = nn.Linear(2, 2)
    ema = Shadow(model)
    receipt = tm.move(model, ema, to="twin:0", keep=[ema])
    assert model.weight.device.type == "twin"
    assert {tensor.device.type for tensor in ema.shadow.values()} == {"cpu"}
    assert {stay.why for stay in receipt.plan.stays} == {"kept by keep="}


def test_a_gradient_scaler_moves_with_what_it_keeps_by_device(twin):
    scaler = torch.amp.GradScaler("cpu")
    model, optimizer = trained(torch.optim.SGD)
    scaler.scale(model(torch.ones(1, 4)).sum()).backward()
    scaler.unscale_(optimizer)
    tm.move(model, optimizer, scaler, to="twin:0")
    found = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
    assert scaler._scale.device == scaler._growth_tracker.device == torch.device("twin:0")
    assert {key: value.device for key, value in found.items()} == {torch.device("twin:0"): torch.device("twin:0")}
    assert scaler._device == "twin"


def test_random_states_of_a_checkpoint_stay_on_the_cpu(twin):
    checkpoint = {"model": nn.Linear(1, 1).state_dict(), "rng_state": torch.get_rng_state()}
    tm.move(checkpoint, to="twin:0")
    assert checkpoint["model"]["weight"].device.type == "twin"
    torch.set_rng_state(checkpoint["rng_state"])


@pytest.mark.parametrize("size", [6, 16])  # as small as a scalar, or not
def test_random_states_on_a_device_stay_there_when_the_rest_comes_to_the_cpu(twin, size):
    random = torch.arange(size, dtype=torch.uint8, device="twin:0")
    checkpoint = {"weight": torch.ones(3, device="twin:0"), "rng_state": random}
    tm.move(checkpoint, to="cpu")
    assert checkpoint["weight"].device.type == "cpu"
    assert checkpoint["rng_state"].device.type == "twin"


@pytest.mark.parametrize("options", [{}, {"capturable": True}], ids=["ordinary", "capturable"])
def test_the_scalars_of_an_optimizer_come_to_the_cpu_from_wherever_they_are(twin, options):
    model, optimizer = trained(torch.optim.Adam)
    tm.move(model, optimizer, to="twin:0")
    optimizer.param_groups[0].update(options)
    for state in optimizer.state.values():
        state["step"] = state["step"].to("twin:0")
    assert not tm.move(model, optimizer, to="cpu").plan.stays
    assert {value.device.type for state in optimizer.state.values() for value in state.values()} == {"cpu"}


def test_memory_that_other_processes_share_is_noted(twin):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.LazyLinear(2))
    assert not tm.plan(model[:2], to="twin:0").notes
    model[1].share_memory()
    receipt = tm.move(model, to="twin:0")
    assert [(note.code, note.path) for note in receipt.plan.notes] == [("N042", "model[1].weight ... and 1 more")]
    assert not tm.move(model, to="cpu").plan.notes  # on the way back there is nothing left to be cut
    assert not tm.plan(model, to="cpu").notes
    nothing_of_it = torch.ones(4).share_memory_()[4:]
    assert not tm.plan({"empty": nothing_of_it}, to="twin:0").notes  # nothing of it travels


def test_data_does_not_follow_and_is_noted(twin):
    dataset = torch.utils.data.TensorDataset(numbers(3))
    model = Scale()
    model.loader = torch.utils.data.DataLoader(dataset)
    model.data = dataset
    receipt = tm.move(model, to="twin:0")
    assert dataset.tensors[0].device.type == "cpu"
    assert [note.code for note in receipt.plan.notes] == ["N031", "N031"]


class Experiment:
    """Has anything with a length as its dataset, as the trainers of libraries do."""

    def __init__(self) -> None:
        self.model, self.train_set = Scale(), [{"x": numbers(3)}, {"x": numbers(3)}]
        self.later: Any = None


tm.register_rule(Experiment, "train_set", "data")


def test_a_plain_list_that_is_a_dataset_stays(route):
    experiment = Experiment()
    route.start(experiment)
    receipt = route.there(experiment)
    assert experiment.model.weight.device == route.away
    assert {each["x"].device.type for each in experiment.train_set} == {"cpu"}
    assert [(note.code, note.path) for note in receipt.plan.notes] == [("N031", "experiment.train_set")]
    assert tm.plan(experiment, to="cpu", keep=[experiment.train_set]).ok


def test_a_dataset_that_is_given_by_itself_moves(twin):
    experiment = Experiment()
    given = experiment.train_set
    receipt = tm.move(experiment, given, to="twin:0")
    assert {each["x"].device.type for each in given} == {"twin"}
    assert receipt.plan.notes == ()


def test_a_module_and_a_number_are_no_dataset(twin):
    experiment = Experiment()
    experiment.train_set = experiment.later = nn.Linear(2, 2)
    assert tm.move(experiment, to="twin:0").plan.notes == ()
    assert experiment.later.weight.device.type == "twin"
    experiment.train_set = None
    assert tm.move(experiment, to="cpu").plan.notes == ()


def test_batches_fetched_ahead_stay(twin):
    experiment = Experiment()
    experiment.later = iter(torch.utils.data.DataLoader(experiment.train_set, batch_size=2))
    receipt = tm.move(experiment, to="twin:0")
    assert [note.path for note in receipt.plan.notes] == ["experiment.train_set", "experiment.later"]
    assert next(experiment.later)["x"].device.type == "cpu"


def test_a_rule_of_data_is_not_for_optimizers():
    with pytest.raises(ValueError, match="'data' is for other objects"):
        tm.register_rule(torch.optim.SGD, "momentum_buffer", "data")


def test_devices_in_keys_of_many_entries_are_one_note(twin):
    model = Scale()
    model.cache = {(size, torch.device("cpu")): numbers(size) for size in range(1, 6)}
    model.more = {("a", torch.device("cpu")): 1}
    receipt = tm.move(model, to="twin:0")
    (note,) = receipt.plan.notes
    assert note.code == "N040"
    assert note.path == "list(model.cache)[0][1] ... and 5 more"
    assert note.why == "stores cpu in an object that cannot be changed"
    assert {tensor.device.type for tensor in model.cache.values()} == {"twin"}


# ---------------------------------------------------------------- identity and aliasing


def test_tied_weights_stay_tied(route):
    model = nn.Sequential(nn.Embedding(3, 2), nn.Linear(2, 3, bias=False))
    model[1].weight = model[0].weight
    route.start(model)
    route.there(model)
    assert model[1].weight is model[0].weight
    assert len(list(model.parameters())) == 1


def test_a_buffer_in_many_modules_is_copied_once(twin):
    mask = numbers(1000)
    model = nn.ModuleList(nn.Identity() for _ in range(10))
    for child in model:
        child.register_buffer("mask", mask)
    used = twin.bytes_in_use()
    receipt = tm.move(model, to="twin:0")
    assert receipt.moved_bytes == twin.bytes_in_use() - used == 4000
    assert all(child.mask is mask for child in model)


def test_an_expanded_buffer_stays_small(twin):
    model = nn.Module()
    model.register_buffer("ones", torch.ones(1).expand(512, 512))
    used = twin.bytes_in_use()
    tm.move(model, to="twin:0")
    assert twin.bytes_in_use() - used == 4
    assert model.ones.shape == (512, 512)


def test_only_the_reachable_part_of_a_storage_is_copied(twin):
    model = nn.Module()
    model.register_buffer("row", torch.arange(1_000_000.0)[500_000:500_010])
    used = twin.bytes_in_use()
    receipt = tm.move(model, to="twin:0")
    assert receipt.moved_bytes == twin.bytes_in_use() - used < 200
    assert model.row.tolist() == list(range(500_000, 500_010))


def test_hooks_of_every_kind_still_run(route):
    model = nn.Linear(2, 1)
    calls: list[str] = []
    handle = model.weight.register_hook(lambda gradient: calls.append("tensor"))
    model.weight.register_post_accumulate_grad_hook(lambda parameter: calls.append("late"))
    model.register_forward_pre_hook(lambda *_: calls.append("before"))
    model.register_full_backward_hook(lambda *_: calls.append("backward"))
    route.start(model)
    route.there(model)
    model(torch.ones(1, 2, device=route.away, requires_grad=True)).sum().backward()
    assert sorted(calls) == ["backward", "before", "late", "tensor"]
    handle.remove()
    calls.clear()
    model(torch.ones(1, 2, device=route.away, requires_grad=True)).sum().backward()
    assert sorted(calls) == ["backward", "before", "late"]


def test_a_parameter_subclass_with_a_weak_reference_moves(route):
    class Marked(nn.Parameter):
        pass

    model = nn.Module()
    model.weight = Marked(numbers(3))
    watcher = weakref.ref(model.weight)
    route.start(model)
    route.there(model)
    assert watcher() is model.weight
    assert type(model.weight) is Marked
    assert model.weight.device == route.away


def test_recurrent_weights_are_used_after_the_move(route):
    model = nn.LSTM(3, 4, num_layers=2)
    route.start(model)
    route.there(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # cuDNN warns where the weights are not one flat piece
        model(torch.ones(2, 1, 3, device=route.away))[0].sum().backward()
    assert all(flat is weight for flat, weight in zip(model._flat_weights, model.parameters(), strict=True))


@pytest.mark.cuda
def test_recurrent_weights_are_flat_on_the_gpu_each_time():
    model = nn.LSTM(3, 4, num_layers=2)
    for _ in range(2):
        tm.move(model, to="cuda", verify="bytes")
        assert len({weight.untyped_storage()._cdata for weight in model.parameters()}) == 1
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # cuDNN warns where they are not
            model(torch.ones(2, 1, 3, device="cuda"))
        tm.move(model, to="cpu", verify="bytes")


def test_recurrent_weights_that_are_views_of_a_flat_buffer_stay_so(route):
    model = nn.LSTM(3, 4)
    flat = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    torch.nn.utils.vector_to_parameters(flat, model.parameters())
    model.flat = flat
    route.start(model)
    route.there(model)
    flat.zero_()
    assert all(not weight.any() for weight in model.parameters())


# ---------------------------------------------------------------- wrappers


@pytest.fixture
def process_group(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_distributed_data_parallel_is_refused(process_group):
    wrapped = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
    assert refuses(wrapped) == {"R020"}
    assert refuses(nn.DataParallel(nn.Linear(2, 2))) == {"R020"}
    assert wrapped.module.weight.device.type == "cpu"


class Training:
    def __init__(self) -> None:
        self.net = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
        self.optimizer = torch.optim.SGD(self.net.parameters())
        self.other = torch.optim.SGD(nn.Linear(2, 2).parameters())


def test_the_remedy_for_a_wrapped_model_can_be_pasted(process_group):
    ddp = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
    optimizer, average, training = torch.optim.SGD(ddp.parameters()), nn.Linear(2, 2), Training()
    (refusal,) = tm.plan(ddp, optimizer, average, to="twin:0").refusals
    assert refusal.remedy == "ddp = tm.rewrap(ddp, optimizer, average, to='twin:0')"
    (refusal,) = tm.plan(training, average, to="cpu").refusals
    assert refusal.remedy == "training.net = tm.rewrap(training.net, average, training.optimizer, to='cpu')"
    exec(refusal.remedy, {"tm": tm, "training": training, "average": average})
    assert type(training.net) is nn.parallel.DistributedDataParallel
    both = tm.plan(ddp, training.net, optimizer, to="twin:0").refusals
    assert both[0].remedy == "ddp = tm.rewrap(ddp, optimizer, to='twin:0')"


def test_shards_do_not_go_to_an_accelerator_without_their_mesh(process_group):
    """On many ranks: tests/ranks/test_distributed.py."""
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
    model = torch.distributed.fsdp.fully_shard(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert refuses(model, optimizer) == {"R048"}
    (refusal,) = tm.plan(model, optimizer, to="twin:0").refusals
    assert refusal.path.startswith("model[0].weight ... and ")
    assert "init_device_mesh('twin', (1,))" in refusal.remedy
    assert tm.plan(model, optimizer, to="cpu").ok
    mesh._device_type = "twin"
    assert tm.plan(model, optimizer, to="cpu").notes == ()  # it is there already
    assert tm.move(model, optimizer, to="twin:0").plan.notes == ()
    (note,) = tm.move(model, optimizer, to="cpu").plan.notes
    assert note.code == "N048"


def test_fsdp_shards_move_unless_fsdp_moves_them_itself(process_group):
    """On many ranks: tests/ranks/test_distributed.py."""
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
    model, offloaded = nn.Sequential(nn.Linear(2, 2)), nn.Sequential(nn.Linear(2, 2))
    torch.distributed.fsdp.fully_shard(model[0], mesh=mesh)
    before = model[0].weight.to_local().data_ptr()
    refresh(model)
    assert model[0].weight.to_local().data_ptr() != before
    policy = torch.distributed.fsdp.CPUOffloadPolicy(pin_memory=False)
    torch.distributed.fsdp.fully_shard(offloaded[0], mesh=mesh, offload_policy=policy)
    assert "R021" in refuses(offloaded)


def test_models_that_accelerate_placed_are_refused():
    accelerate = pytest.importorskip("accelerate")
    model = nn.Sequential(nn.Linear(2, 2))
    accelerate.cpu_offload(model, execution_device=torch.device("cpu"))
    assert "R024" in refuses(model)


def test_a_module_with_a_placement_hook_is_refused():
    model = nn.Linear(2, 2)
    model._hf_hook = object()
    assert refuses(model) == {"R024"}


def test_a_model_whose_weights_travel_in_groups_is_refused():
    """As diffusers' group offloading has them: a hook of the module holds the group; known by its name."""
    group = type("ModuleGroup", (), {"__module__": "diffusers.hooks.group_offloading"})()
    model = nn.Linear(2, 2)
    model._hooks_of_diffusers, group.modules = [group], [model]
    assert refuses(model) == {"R024"}


def test_an_optimizer_with_pages_of_the_driver_is_refused():
    """As bitsandbytes has them on a GPU; what is its own is known by its name."""
    paged = type("Optimizer8bit", (torch.optim.AdamW,), {"__module__": "bitsandbytes.optim.optimizer"})
    model, optimizer = trained(paged)
    optimizer.is_paged = True
    assert tm.plan(model, optimizer, to="twin:0").ok  # by itself that says nothing: small states have no pages
    optimizer.state[model[0].weight]["exp_avg"].is_paged = True
    assert refuses(model, optimizer) == {"R029"}


def test_a_compiled_module_moves_and_is_noted(twin):
    model = nn.Linear(2, 2)
    compiled = torch.compile(model)
    receipt = tm.move(compiled, to="twin:0")
    assert model.weight.device.type == "twin"
    assert [note.code for note in receipt.plan.notes] == ["N022"]


@pytest.mark.parametrize(("compiled", "noted"), [("01", ["model"]), ("1", ["model[1]"]), ("", [])])
def test_modules_compiled_in_place_move_and_are_noted(compiled, noted, twin):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0]._compiled_call_impl = None
    if "0" in compiled:
        model.compile(backend="eager")
    elif compiled:
        model[1].compile(backend="eager")
    call = model._compiled_call_impl
    receipt = tm.move(model, to="twin:0")
    assert [(note.code, str(note.path)) for note in receipt.plan.notes] == [("N022", path) for path in noted]
    assert {parameter.device.type for parameter in model.parameters()} == {"twin"}
    assert model._compiled_call_impl is call


@pytest.mark.cuda
def test_captured_graphs_are_refused():
    model = nn.Linear(2, 2, device="cuda")
    model.graph = torch.cuda.CUDAGraph()
    with pytest.raises(tm.MoveRefused) as error:
        tm.move(model, to="cpu")
    assert codes(error) == {"R025"}


# ---------------------------------------------------------------- special tensors


def test_the_values_of_a_csr_parameter_move(route):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = nn.Module()
        model.weight = nn.Parameter(torch.eye(3).to_sparse_csr())
    route.start(model)
    route.there(model)
    assert model.weight.device == model.weight.values().device == model.weight.crow_indices().device == route.away


def test_lazy_modules_move_and_initialize_there(route):
    model = nn.Sequential(nn.LazyLinear(2), nn.LazyBatchNorm1d())
    route.start(model)
    route.there(model)
    model(torch.ones(3, 4, device=route.away)).sum().backward()
    assert model[0].weight.shape == (2, 4)
    assert model[0].weight.device == model[1].running_mean.device == route.away


def test_a_meta_parameter_in_the_middle_refuses_all_of_it(twin):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"), nn.Linear(2, 2))
    assert refuses(model) == {"R030"}
    assert model[0].weight.device.type == "cpu"


def test_non_persistent_buffers_move(route):
    model = nn.Module()
    model.register_buffer("table", numbers(3), persistent=False)
    route.start(model)
    route.there(model)
    assert model.table.device == route.away


@pytest.mark.filterwarnings("ignore")
def test_packed_parameters_are_refused():
    if "fbgemm" not in torch.backends.quantized.supported_engines:
        pytest.skip("this build of torch has no engine for packed parameters")
    model = torch.ao.nn.quantized.Linear(2, 2)
    assert refuses(model) == {"R026"}


def test_double_precision_to_mps_is_refused_with_every_path():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    made = make_plan(
        survey_objects({"model": model}),
        torch.device("mps:0"),
        keep=Keep(survey_objects({}), ()),
        free_bytes=lambda device: None,
    )
    assert [(refusal.code, refusal.path) for refusal in made.refusals] == [
        ("R040", "model[1].weight"),
        ("R040", "model[1].bias"),
    ]


def test_a_buffer_with_a_live_graph_is_refused():
    model = nn.Linear(2, 2)
    model.state = model(torch.ones(1, 2))
    assert "R032" in refuses(model)


def test_a_differentiable_optimizer_that_holds_graphs_is_refused():
    weight = nn.Parameter(numbers(2)).clone()
    optimizer = torch.optim.SGD([weight.detach().requires_grad_()], momentum=0.9)
    optimizer.state[optimizer.param_groups[0]["params"][0]]["momentum_buffer"] = weight * 2
    assert "R032" in refuses(optimizer)


def test_a_move_between_forward_and_backward_is_refused():
    model = nn.Linear(2, 2)
    loss = model(torch.ones(1, 2)).sum()
    assert refuses(model) == {"R033"}
    loss.backward()
    tm.move(model, to="twin:0")  # the loss is still there, but its graph has run


def test_a_reason_that_many_paths_share_is_one_line():
    model = nn.Sequential(*[nn.Linear(2, 2, device="meta") for _ in range(75)])
    with pytest.raises(tm.MoveRefused) as error:
        tm.move(model, to="twin:0")
    assert len(error.value.refusals) == 150
    (head, line) = str(error.value).splitlines()
    assert head == "move refused for 1 reason; nothing was changed:"
    assert line.startswith("  R030 at 150 paths (model[0].weight ... and 149 more): a meta tensor has no bytes")
    assert line.count("Fix: ") == 1


def test_different_reasons_are_lines_of_their_own():
    model = nn.Linear(2, 2)
    model.left, model.right = model(torch.ones(1, 2)), model(torch.ones(1, 2))
    with pytest.raises(tm.MoveRefused) as error:
        tm.move(model, nn.Linear(2, 2, bias=False, device="meta"), to="twin:0")
    head, *lines = str(error.value).splitlines()
    assert head == "move refused for 3 reasons; nothing was changed:"
    single = [each for each in lines if " paths " not in each]
    assert single == [f"  {each}" for each in error.value.refusals if each.code == "R030"]
    (assigned,) = [each for each in lines if "R032 at 2 paths (model.left ... and 1 more)" in each]
    assert assigned.endswith("Fix: model.left = model.left.detach(), and the same for the others")
    assert any("R033 at 2 paths (model.weight ... and 1 more)" in each for each in lines)


def test_a_retained_graph_is_refused():
    model = nn.Linear(2, 2)
    loss = model(torch.ones(1, 2)).square().sum()
    loss.backward(retain_graph=True)
    assert refuses(model) == {"R033"}


def test_a_tensor_whose_memory_was_taken_away_is_refused():
    model = nn.Linear(2, 2)
    model.weight.data.untyped_storage().resize_(0)
    assert refuses(model) == {"R034"}


def test_parametrization_caching_under_way_is_refused():
    model = torch.nn.utils.parametrizations.orthogonal(nn.Linear(2, 2))
    with torch.nn.utils.parametrize.cached():
        model(torch.ones(1, 2)).sum().backward()
        assert "R027" in refuses(model)
    tm.move(model, to="twin:0")


# ---------------------------------------------------------------- memory and time


def test_not_enough_memory_is_refused_before_a_byte_is_copied(twin):
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(8)))
    before = trace(dict(model.named_parameters()))
    twin.limit_bytes(twin.bytes_in_use("twin:0") + 50_000, "twin:0")
    assert refuses(model) == {"R042"}
    assert_same(before, trace(dict(model.named_parameters())))


def test_memory_that_is_still_held_is_named(twin):
    model = nn.Linear(8, 8)
    snapshot = model.state_dict()
    receipt = tm.move(model, to="twin:0")
    assert [(str(held.path), held.nbytes) for held in receipt.held] == [("model.weight", 256), ("model.bias", 32)]
    assert "'weight'" in receipt.held[0].by
    assert snapshot["weight"].device.type == "cpu"
    del snapshot
    gc.collect()


@pytest.mark.cuda
def test_what_comes_back_from_the_gpu_can_be_read_at_once():
    model = nn.Linear(4096, 4096)
    expected = copy.deepcopy(model.state_dict())
    tm.move(model, to="cuda")
    with torch.no_grad():
        for _ in range(50):
            model.weight.mul_(1)
    tm.move(model, to="cpu")
    assert torch.equal(model.weight, expected["weight"])


# ---------------------------------------------------------------- where nobody looks


class Slotted(nn.Linear):
    __slots__ = ("cache", "never_set", "where")

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.cache, self.where = numbers(3), torch.device("cpu")


class BelowSlotted(Slotted):
    pass


@pytest.mark.parametrize("make", [Slotted, BelowSlotted])
def test_the_slots_of_a_module_are_state(make, route):
    model = make()
    before = bits(model.cache)
    route.start(model)
    route.there(model)
    assert model.cache.device == route.away
    assert bits(model.cache) == before
    assert route.is_fresh or model.where == route.away


class Hidden:
    """Its `__dict__` shows something else than what it has stored."""

    __dict__ = property(lambda self: {})


def test_a_property_called_dict_hides_nothing(route):
    model, hidden = nn.Linear(2, 2), Hidden()
    model.helper, hidden.table = hidden, numbers(3)
    route.start(model)
    route.there(model)
    assert hidden.table.device == model.weight.device == route.away


@pytest.mark.parametrize("kind", ["untyped", "typed"])
def test_a_storage_held_as_such_is_refused_unless_it_is_there(kind):
    model = nn.Linear(2, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.memory = model.weight.untyped_storage() if kind == "untyped" else torch.TypedStorage(3)
    assert refuses(model) == {"R047"}
    with pytest.raises(tm.MoveRefused, match=r"R047 model\.memory"):
        refresh(model)
    assert tm.plan(model, to="cpu").ok
    tm.move(model, to="twin:0", keep=["model.memory"])
    assert model.weight.device.type == "twin"


def test_a_tensor_that_is_only_a_key_of_the_state_moves(route):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    forgotten = nn.Parameter(numbers(3))
    optimizer.state[forgotten] = {"momentum_buffer": numbers(3)}
    optimizer.state["a name"] = {"count": numbers(1)}
    route.start(model, optimizer)
    route.there(model, optimizer)
    assert forgotten.device == optimizer.state[forgotten]["momentum_buffer"].device == route.away
    assert optimizer.state["a name"]["count"].device == route.away


def test_an_error_of_a_move_is_the_same_in_another_process():
    for error in (
        tm.MoveFailed("copying", "no memory", not_undone="a hook"),
        refusal_of(lambda: tm.move(nn.Linear(2, 2), to="nowhere")),
        refusal_of(lambda: tm.move(nn.Linear(2, 2, device="meta"), to="cpu")),
    ):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


def refusal_of(call: Any) -> tm.MoveRefused:
    with pytest.raises(tm.MoveRefused) as raised:
        call()
    return raised.value
