"""botorch: models with their transforms, and acquisition functions in the middle of an optimization."""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from laws import bits
from lives import Life, goes_on, library
from torch import Tensor, nn

import torchmove as tm

library("botorch")
models = library("botorch.models")
acquisition = library("botorch.acquisition")
inputs = library("botorch.models.transforms.input")
outcomes = library("botorch.models.transforms.outcome")
fit = library("botorch.fit")
samplers = library("botorch.sampling.normal")

X = torch.rand(12, 2, dtype=torch.double, generator=torch.Generator().manual_seed(0))
Y = torch.sin(6 * X[:, :1]) + X[:, 1:]


def single(**named: Any) -> Any:
    return models.SingleTaskGP(X.clone(), Y.clone(), **named)


TRANSFORMS: dict[str, Callable[[], Any]] = {
    "Normalize": lambda: inputs.Normalize(d=2),
    "InputStandardize": lambda: inputs.InputStandardize(d=2),
    "Round": lambda: inputs.Round(integer_indices=[0]),
    "Log10": lambda: inputs.Log10(indices=[0]),
    "Warp": lambda: inputs.Warp(d=2, indices=[0, 1]),
    "AppendFeatures": lambda: inputs.AppendFeatures(torch.ones(1, 1, dtype=torch.double), transform_on_train=True),
    "FilterFeatures": lambda: inputs.FilterFeatures(torch.tensor([0])),
    "InputPerturbation": lambda: inputs.InputPerturbation(torch.full((1, 2), 0.1, dtype=torch.double)),
    "InteractionFeatures": inputs.InteractionFeatures,
    "chained": lambda: inputs.ChainedInputTransform(one=inputs.Normalize(d=2), two=inputs.Warp(d=2, indices=[0])),
}
MODELS: dict[str, Callable[[], Any]] = {
    "plain": lambda: single(outcome_transform=None),
    "standardized": lambda: single(outcome_transform=outcomes.Standardize(m=1)),
    "fixed noise": lambda: single(train_Yvar=torch.full_like(Y, 0.01)),
    "two tasks": lambda: models.MultiTaskGP(torch.cat([X, (X[:, :1] > 0.5).double()], -1), Y.clone(), task_feature=2),
    "list": lambda: models.ModelListGP(single(), single(input_transform=inputs.Normalize(d=2))),
    "mixed": lambda: models.MixedSingleTaskGP(torch.cat([X, (X[:, :1] > 0.5).double()], -1), Y.clone(), cat_dims=[2]),
    "variational": lambda: models.SingleTaskVariationalGP(X.clone(), Y.clone(), inducing_points=6),
    **{f"with {name}": lambda make=make: single(input_transform=make()) for name, make in TRANSFORMS.items()},
}


def stored(*values: Any) -> dict[str, Tensor]:
    """Every tensor in modules, plain attributes and what they hold, the caches of predictions aside."""
    found: dict[str, Tensor] = {}
    seen: set[int] = set()

    def look(value: Any, path: str) -> None:
        if isinstance(value, Tensor):
            found[path] = value
        elif id(value) not in seen and isinstance(value, (nn.Module, dict, list, tuple)):
            seen.add(id(value))
            entries: dict[Any, Any] = {}
            if isinstance(value, nn.Module):
                entries = {**vars(value), **value._parameters, **value._buffers, **value._modules}
            else:
                entries = dict(value) if isinstance(value, dict) else dict(enumerate(value))
            for key, each in entries.items():
                look(each, f"{path}.{key}")

    for index, value in enumerate(values):
        look(value, str(index))
    return found


def seen_by(model: Any) -> Tensor:
    """Where to look, for the model's number of features."""
    inner = model.models[0] if hasattr(model, "models") else model
    width = 3 if isinstance(model, (models.MultiTaskGP, models.MixedSingleTaskGP)) else 2
    points = torch.linspace(0, 1, 5 * width, dtype=torch.double).reshape(5, width)
    points[:, 2:] = points[:, 2:].round()
    return points.to(next(inner.parameters()).device)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_predicts_on(name, route):
    def make() -> Life:
        model = MODELS[name]().eval()

        def live() -> Any:
            with torch.no_grad():
                posterior = model.posterior(seen_by(model))
                return [posterior.mean, posterior.variance]

        return Life((model,), lambda: stored(model), live)

    goes_on(make, route)


@pytest.mark.parametrize("name", ["plain", "standardized", "with Warp", "with Normalize", "list"])
def test_a_model_trains_on(name, route):
    def make() -> Life:
        model = MODELS[name]()
        gpytorch = library("gpytorch")
        kind = gpytorch.mlls.SumMarginalLogLikelihood if name == "list" else gpytorch.ExactMarginalLogLikelihood
        objective = kind(model.likelihood, model)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)  # the noise has a bound that Adam does not know

        def live() -> Any:
            objective.train()
            optimizer.zero_grad()
            loss = -objective(model(*model.train_inputs), model.train_targets).sum()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return Life((objective, model, optimizer), lambda: stored(model), live)

    goes_on(make, route)


def sampler() -> Any:
    return samplers.SobolQMCNormalSampler(torch.Size([8]), seed=0)


GIVEN: dict[str, Callable[[Any], dict[str, Any]]] = {
    "best_f": lambda model: {"best_f": Y.max()},
    "beta": lambda model: {"beta": 0.2},
    "X_baseline": lambda model: {"X_baseline": X.clone()},
    "tau": lambda model: {"tau": 0.1},
    "mc_points": lambda model: {"mc_points": X[:4].clone()},
    "candidate_set": lambda model: {"candidate_set": X.clone()},
    "X_observed": lambda model: {"X_observed": X.clone()},
}


def arguments(kind: type) -> Any:
    return inspect.signature(kind).parameters


FOUND = {name: getattr(acquisition, name) for name in dir(acquisition)}  # some are imported when they are asked for
KINDS = {
    name: kind
    for name, kind in FOUND.items()
    if inspect.isclass(kind) and issubclass(kind, acquisition.AcquisitionFunction) and "model" in arguments(kind)
}


def wanted(kind: type) -> dict[str, Any]:
    """What its constructor needs beside a model, as far as it is known here."""
    named = arguments(kind)
    found: dict[str, Any] = {}
    for name, each in named.items():
        if name in GIVEN and each.default is each.empty:
            found |= GIVEN[name](None)
        elif name == "sampler":
            found["sampler"] = sampler()
    return found


def makeable(kind: type) -> bool:
    try:
        torch.manual_seed(0)
        kind(single(), **wanted(kind))(X[:2, None])
    except Exception:
        return False
    return True


ACQUISITIONS = [name for name, kind in KINDS.items() if makeable(kind)]


def test_most_acquisition_functions_are_tried():
    assert len(ACQUISITIONS) >= 15


@pytest.mark.parametrize("name", ACQUISITIONS)
def test_an_acquisition_function_goes_on(name, route):
    def make() -> Life:
        # Else what the model has cached of its training data keeps a graph to its hyperparameters.
        model = single(input_transform=inputs.Normalize(d=2)).requires_grad_(False)
        function = KINDS[name](model, **wanted(KINDS[name]))

        def live() -> Any:
            at = X[:2, None].to(next(model.parameters()).device).requires_grad_()
            value = function(at)
            value.sum().backward()
            return [value.detach(), at.grad]

        return Life((function,), dict, live)

    goes_on(make, route)


def test_what_is_cached_of_a_model_that_is_trained_has_a_graph_and_is_refused_until_it_is_dropped(twin):
    model = single()
    function = acquisition.UpperConfidenceBound(model, beta=0.2)
    before = function(X[:2, None]).detach()
    assert {each.code for each in tm.plan(function, to="twin:0").refusals} == {"R032", "R033"}
    model.train()
    model.eval()
    gc.collect()
    tm.move(function, to="twin:0")
    assert bits(function(X[:2, None].to("twin:0"))) == bits(before)
