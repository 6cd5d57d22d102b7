"""Every optimizer class of some libraries, found by introspection: after a move in mid-training each of its tensors is
where a native start would have put it, and it goes on like one that was never moved."""

from __future__ import annotations

import importlib
import inspect
import itertools
import pkgutil
import random
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy
import pytest
import torch
from laws import bits
from lives import library
from torch import Tensor, nn
from torch.optim import Optimizer

import torchmove as tm

LIBRARIES = (
    "pytorch_optimizer",
    "timm.optim",
    "heavyball",
    "schedulefree",
    "prodigyopt",
    "dadaptation",
    "galore_torch",
    "torchzero",
    "grokadamw",
    "bitsandbytes.optim",
    "torchao.optim",
    "transformers.optimization",
    "lion_pytorch",
    "adabelief_pytorch",
    "came_pytorch",
    "kron_torch",
)


def classes_of(name: str) -> Iterator[type[Optimizer]]:
    """Those that can be reached by a name in the library, or below it."""
    module = importlib.import_module(name)
    modules = [module]
    for info in pkgutil.walk_packages(getattr(module, "__path__", ()), name + "."):
        try:
            modules.append(importlib.import_module(info.name))
        except Exception:  # wants what is not installed
            continue
    found = {each for each in itertools.chain(*(vars(module).values() for module in modules)) if inspect.isclass(each)}
    mine = [each for each in found if issubclass(each, Optimizer) and each.__module__.startswith(name.split(".")[0])]
    yield from sorted(mine, key=lambda each: (each.__module__, each.__qualname__))


def rows() -> Iterator[Any]:
    for name in LIBRARIES:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                kinds = list(classes_of(name))
        except (ImportError, RuntimeError):  # it is not installed, or what it wants does not load
            yield pytest.param(name, None, id=name)
            continue
        for kind in kinds:
            yield pytest.param(name, kind, id=f"{kind.__module__}.{kind.__qualname__}")


# What a class wants beside parameters, by the name of the argument.
ARGUMENTS: dict[str, Callable[[nn.Module], Any]] = {
    "lr": lambda model: 0.01,
    "optimizer": lambda model: torch.optim.AdamW(model.parameters(), lr=0.01),
    "base": lambda model: torch.optim.AdamW(model.parameters(), lr=0.01),
    "base_optimizer": lambda model: torch.optim.SGD,
    "model": lambda model: model,
    "num_iterations": lambda model: 10,
    "num_data": lambda model: 10,
    "momentum": lambda model: 0.9,
    "rho_scheduler": lambda model: lambda: 0.05,
}


def seed(number: int) -> None:
    """Some draw from the generators of Python and numpy."""
    torch.manual_seed(number)
    random.seed(number)
    numpy.random.seed(number)


class Way(NamedTuple):
    """How to make an optimizer of a class, and how to step with it."""

    matrices: bool
    style: str
    given: str
    call: str

    def model(self, device: str) -> nn.Module:
        seed(0)
        shapes = [(6, 5), (4, 6)] if self.matrices else [(6, 5), (5,), (4, 6), (3, 2, 3, 3)]
        tensors = [torch.randn(shape) for shape in shapes]
        return nn.ParameterList([nn.Parameter(tensor.to(device)) for tensor in tensors])

    def make(self, kind: type, model: nn.Module) -> Optimizer:
        needed = [*inspect.signature(kind).parameters.values()]
        values = {each.name: ARGUMENTS[each.name](model) for each in needed if self.wants(each)}
        if self.given == "instances" and "base_optimizer" in values:
            values["base_optimizer"] = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        first = needed[0].name
        parameters: list[Any] = list(model.named_parameters() if self.style == "named" else model.parameters())
        if self.style == "flags":
            matrices = [each for each in parameters if each.dim() == 2]
            others = [each for each in parameters if each.dim() != 2]
            parameters = [{"params": some, "use_muon": is_so} for some, is_so in ((matrices, True), (others, False))]
        made = kind(**values) if first in values else kind(parameters, **values)
        if callable(train := getattr(made, "train", None)):
            train()
        return made

    def wants(self, argument: inspect.Parameter) -> bool:
        if argument.name not in ARGUMENTS:
            return False
        return argument.default is argument.empty or (argument.name == "lr") == (self.given == "needed")

    def step(self, optimizer: Optimizer, model: nn.Module, number: int) -> None:
        seed(number)
        weights = [torch.randn(each.shape).to(each.device) for each in model.parameters()]

        def loss_and_gradients() -> Tensor:
            model.zero_grad()
            pairs = zip(model.parameters(), weights, strict=True)
            loss = sum((each.square() * weight.square()).sum() + (each * weight).sum() for each, weight in pairs)
            loss.backward(create_graph=self.call == "graph")
            return loss

        with torch.enable_grad():
            loss_and_gradients()
        if self.call in ("closure", "float"):
            optimizer.step(loss_and_gradients if self.call == "closure" else lambda: loss_and_gradients().item())
        else:
            optimizer.step()
        if self.call == "graph":
            model.zero_grad()  # the graphs of these gradients hold the parameters


STYLES, GIVEN = ("plain", "named", "flags"), ("needed", "all", "instances")
CALLS = ("plain", "closure", "float", "graph")
WAYS = [Way(*each) for each in itertools.product((False, True), STYLES, GIVEN, CALLS)]


def way_of(kind: type) -> tuple[Way | None, str]:
    """The first way in which it steps on the CPU; or why there is none."""
    why = ""
    for way in WAYS:
        try:
            model = way.model("cpu")
            optimizer = way.make(kind, model)
            for number in range(2):
                way.step(optimizer, model, number)
        except Exception as error:
            why = why or f"{type(error).__name__}: {error}"
        else:
            return way, ""
    return None, why


def started(way: Way, kind: type, device: str) -> tuple[nn.Module, Optimizer]:
    model = way.model(device)
    optimizer = way.make(kind, model)
    for number in range(2):
        way.step(optimizer, model, number)
    return model, optimizer


def tensors_of(*objects: Any) -> dict[str, Tensor]:
    return {str(slot.path): slot.tensor for slot in tm.survey(list(objects)).tensors}


def places_of(*objects: Any) -> dict[str, str]:
    """By path; an optimizer may have the ids of its parameters for keys."""
    return {re.sub(r"\d{9,}", "...", path): tensor.device.type for path, tensor in tensors_of(*objects).items()}


@pytest.fixture(autouse=True)
def _nothing_compiled() -> Iterator[None]:
    with torch.compiler.set_stance("force_eager"):
        yield


@pytest.fixture(autouse=True)
def _random_numbers_as_before() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        yield


# Those that cannot be made, or make no step, on the CPU: by name, with the reason.
NOT_MADE: dict[str, str] = {
    "bitsandbytes.optim.ademamix.AdEMAMix32bit": "output with shape [5] doesn't match the broadcast shape [6, 5]",
    "bitsandbytes.optim.ademamix.PagedAdEMAMix32bit": "output with shape [5] doesn't match the broadcast shape [6, 5",
    "bitsandbytes.optim.optimizer.Optimizer1State": "missing 1 required positional argument: 'params'",
    "bitsandbytes.optim.optimizer.Optimizer2State": "missing 1 required positional argument: 'params'",
    "bitsandbytes.optim.optimizer.Optimizer8bit": "missing 1 required positional argument: 'defaults'",
    "galore_torch.adamw8bit.AdamW8bit": "Torch not compiled with CUDA enabled",
    "heavyball.PSGDBase": "missing 1 required positional argument: 'defaults'",
    "heavyball.SAMWrapper": "'AdamW' object has no attribute 'train'",
    "heavyball.SOAPBase": "missing 1 required positional argument: 'defaults'",
    "heavyball.SplitOpt": "dictionary update sequence element #0 has length 5; 2 is required",
    "heavyball.chainable.BaseOpt": "missing 1 required positional argument: 'defaults'",
    "heavyball.chainable.ChainOpt": "missing 1 required positional argument: 'defaults'",
    "heavyball.chainable.MSAM": "missing 1 required positional argument: 'defaults'",
    "heavyball.chainable.ScheduleFree": "missing 1 required positional argument: 'defaults'",
    "heavyball.utils.StatefulOptimizer": "missing 1 required positional argument: 'defaults'",
    "kron_torch.dist_kron.Kron": "Torch not compiled with CUDA enabled",
    "kron_torch.dist_onesidedkron.OneSidedKron": "Torch not compiled with CUDA enabled",
    "pytorch_optimizer.base.optimizer.BaseOptimizer": "Can't instantiate abstract class BaseOptimizer with abstract",
    "pytorch_optimizer.optimizer.alig.AliG": "AliG requires closure.(e.g. `optimizer.step(lambda: float(loss))`).",
    "pytorch_optimizer.optimizer.demo.DeMo": "Default process group has not been initialized, please make sure to ca",
    "pytorch_optimizer.optimizer.lomo.AdaLOMO": "output with shape [3] doesn't match the broadcast shape [3, 2, 3]",
    "pytorch_optimizer.optimizer.lomo.LOMO": "NotImplementedError",
    "pytorch_optimizer.optimizer.muon.base.MuonBase": "Can't instantiate abstract class MuonBase with abstract metho",
    "pytorch_optimizer.optimizer.muon.distributed_muon.DistributedMuon": "Tensor.__contains__ only supports Tensor o",
    "pytorch_optimizer.optimizer.sam.GSAM": "type object 'SGD' has no attribute 'param_groups'",
    "pytorch_optimizer.optimizer.sam.WSAM": "missing 1 required positional argument: 'params'",
    "torchao.optim.adam._AdamBase": "missing 4 required positional arguments: 'betas', 'eps', 'weight_decay', and 'a",
    "torchao.optim.cpu_offload.CPUOffloadOptimizer": "CPU Offload currently only supports CUDA & XPU",
    "torchzero.core.modular.Optimizer": "Empty list of modules passed to `Optimizer`",
    "torchzero.optim.utility.split.Split": "iteration over a 0-d tensor",
    "torchzero.optim.wrappers.moors.MoorsWrapper": "missing 1 required positional argument: 'algorithm_fn'",
    "torchzero.optim.wrappers.scipy.brute.ScipyBrute": "missing 2 required positional arguments: 'lb' and 'ub'",
    "torchzero.optim.wrappers.scipy.differential_evolution.ScipyDE": "missing 2 required positional arguments: 'lb'",
    "torchzero.optim.wrappers.scipy.direct.ScipyDIRECT": "missing 2 required positional arguments: 'lb' and 'ub'",
    "torchzero.optim.wrappers.scipy.dual_annealing.ScipyDualAnnealing": "missing 2 required positional arguments: 'l",
    "torchzero.optim.wrappers.scipy.experimental.ScipyLeastSquaresOptimization": "ScipyLeastSquaresOptimization.step",
    "torchzero.optim.wrappers.scipy.experimental.ScipyRootOptimization": "ScipyRootOptimization.step() missing 1 req",
    "torchzero.optim.wrappers.scipy.sgho.ScipySHGO": "missing 2 required positional arguments: 'lb' and 'ub'",
    "torchzero.optim.wrappers.wrapper.WrapperBase": "missing 1 required positional argument: 'defaults'",
}
# Those whose two steps did not end within 15 seconds.
NOT_TRIED = {
    "pytorch_optimizer.optimizer.sso.SpectralSphere",
    "torchzero.optim.wrappers.scipy.basin_hopping.ScipyBasinHopping",
    "torchzero.optim.wrappers.scipy.minimize.ScipyMinimize",
}
# Those whose own step fails on the twin when they start there: nothing to compare with.
NOT_ON_THE_TWIN: dict[str, str] = {}

_QMAPS = {"list[1].name2qmap['dynamic']": "twin", "list[1].name2qmap['udynamic']": "twin"}
# Those that a move puts elsewhere than a native start: the paths, and where they are after the move.
PLACED_OTHERWISE: dict[str, dict[str, str]] = {
    # A parameter that nobody gave it, and that it never looks at.
    "transformers.trainer_pt_utils.LayerWiseDummyOptimizer": {"list[1].param_groups[0]['params'][0]": "twin"},
    # Tables that a step takes to the device of a parameter, where it is large enough; this step cannot be simulated.
    "bitsandbytes.optim.lamb.LAMB8bit": _QMAPS,
    "bitsandbytes.optim.lars.LARS8bit": _QMAPS,
    "bitsandbytes.optim.sgd.SGD8bit": _QMAPS,
}


@pytest.mark.parametrize(("name", "kind"), list(rows()))
def test_an_optimizer_goes_on_from_where_a_native_start_would_be(name, kind):
    if kind is None:
        library(name)
    full = f"{kind.__module__}.{kind.__qualname__}"
    if full in NOT_TRIED:
        pytest.skip(f"{full} takes too long")
    way, why = way_of(kind)
    if full in NOT_MADE:
        assert way is None
        assert NOT_MADE[full] in why
        pytest.skip(f"{full} cannot be made: {why}")
    assert way is not None, why
    (model, optimizer), (other_model, other) = (started(way, kind, "cpu") for _ in range(2))
    tm.move(model, optimizer, to="twin:0")
    if full in NOT_ON_THE_TWIN:
        with pytest.raises(Exception, match=re.escape(NOT_ON_THE_TWIN[full])):
            started(way, kind, "twin:0")
    else:
        assert places_of(model, optimizer) == places_of(*started(way, kind, "twin:0")) | PLACED_OTHERWISE.get(full, {})
        its_model, on_twin = started(way, kind, "cpu")
        tm.move(its_model, on_twin, to="twin:0")
        way.step(on_twin, its_model, 2)
    tm.move(model, optimizer, to="cpu")
    for number in (2, 3):
        way.step(optimizer, model, number)
        way.step(other, other_model, number)
    mine, its = ([*map(bits, tensors_of(*each).values())] for each in ((model, optimizer), (other_model, other)))
    assert mine == its


CHAINS = [("Adam",), ("SOAP",), ("Orthogonalize",), ("LBFGS",), ("Shampoo",), ("RMSprop", "HeavyBall")]


@pytest.mark.parametrize("names", CHAINS)
def test_a_chain_of_modules_of_torchzero(names):
    """Its optimizer is made of modules, and keeps their states in attributes of its own."""
    torchzero = library("torchzero")

    class Chain(torchzero.Optimizer):  # type: ignore[misc, name-defined]
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, *[getattr(torchzero.m, name)() for name in names], torchzero.m.LR(0.01))

    way = Way(False, "plain", "needed", "closure")
    (model, optimizer), (other_model, other) = (started(way, Chain, "cpu") for _ in range(2))
    tm.move(model, optimizer, to="twin:0")
    assert places_of(model, optimizer) == places_of(*started(way, Chain, "twin:0"))
    tm.move(model, optimizer, to="cpu")
    for number in (2, 3):
        way.step(optimizer, model, number)
        way.step(other, other_model, number)
    assert [*map(bits, model.parameters())] == [*map(bits, other_model.parameters())]
