"""gpytorch: training data in plain attributes, caches of predictions, and matrices that are not computed yet."""

from __future__ import annotations

from typing import Any

import torch
from lives import Life, goes_on, library, registered, trained

import torchmove as tm

gpytorch = library("gpytorch")


class Exact(gpytorch.models.ExactGP):
    def __init__(self, likelihood: Any) -> None:
        x = torch.linspace(0, 1, 10)
        super().__init__(x, torch.sin(6 * x), likelihood)
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel() + gpytorch.kernels.LinearKernel())

    def forward(self, x: Any) -> Any:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def training() -> Life:
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    model = Exact(likelihood)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    life = trained(
        model, optimizer, lambda device: -objective(model(*model.train_inputs), model.train_targets), None, objective
    )
    tensors = life.tensors
    life.tensors = lambda: {**tensors(), "inputs": model.train_inputs[0], "targets": model.train_targets}
    return life


def test_a_process_trains_on(route):
    goes_on(training, route)


def test_predictions_go_on_from_their_caches(route):
    def make() -> Life:
        learnt = training()
        learnt.live()
        model = learnt.objects[0].eval()

        def live() -> Any:
            where = model.train_inputs[0].device
            with torch.no_grad(), gpytorch.settings.fast_pred_var():
                found = model.likelihood(model(torch.linspace(0, 2, 5).to(where)))
                return [found.mean, found.variance]

        return Life(
            (model, *learnt.objects[1:]),
            lambda: registered(model) | {"inputs": model.train_inputs[0]} | caches(model),
            live,
        )

    goes_on(make, route)


def caches(model: Any) -> dict[str, torch.Tensor]:
    kept = model.prediction_strategy
    named = {str(key[0]): value for key, value in kept._memoize_cache.items()}
    assert {"mean_cache", "covar_cache"} <= named.keys()
    return {"mean": named["mean_cache"], "covariance": named["covar_cache"], "labels": kept.train_labels}


def test_a_matrix_that_is_not_computed_yet_moves_as_an_object(route):
    def make() -> Life:
        kernel = gpytorch.kernels.RBFKernel().requires_grad_(False)
        x = torch.linspace(0, 1, 6)[:, None]
        lazy = kernel(x)
        return Life((lazy,), lambda: {**registered(kernel), "x": lazy.x1}, lazy.to_dense)

    goes_on(make, route, lambda life, device: check(life.objects[0], device))


def check(lazy: Any, device: torch.device) -> None:
    assert lazy.device == device


def test_constraints_are_children_and_not_noted(twin):
    receipt = tm.move(training().objects[0], to="twin:0")
    assert receipt.plan.notes == ()


def test_to_takes_the_training_data_along_and_leaves_the_caches_of_predictions_behind(twin):
    model = training().objects[0].eval()
    with torch.no_grad(), gpytorch.settings.fast_pred_var():
        model(torch.linspace(0, 2, 5)).variance  # noqa: B018  it fills the caches
    model.to("twin:0")
    assert model.train_inputs[0].device.type == "twin"
    assert {tensor.device.type for tensor in caches(model).values()} == {"cpu"}
    tm.move(model, to="twin:0")
    assert {tensor.device.type for tensor in caches(model).values()} == {"twin"}
