"""torchmetrics: a metric remembers its device, defaults, a cache and lists; those of a group share their state."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lives import Life, goes_on, library

import torchmove as tm

torchmetrics = library("torchmetrics")
classification = library("torchmetrics.classification")
CLASSES = 3


def tracked() -> Any:
    tracker = torchmetrics.wrappers.MetricTracker(classification.MulticlassAccuracy(CLASSES))
    tracker.increment()
    return tracker


METRICS = {
    "accuracy": lambda: classification.MulticlassAccuracy(CLASSES),
    "lists": lambda: classification.MulticlassAUROC(CLASSES),
    "binned": lambda: classification.MulticlassAUROC(CLASSES, thresholds=5),
    "confusion": lambda: classification.MulticlassConfusionMatrix(CLASSES),
    "tracked": tracked,
    "bootstrapped": lambda: torchmetrics.wrappers.BootStrapper(classification.MulticlassAccuracy(CLASSES), 3),
    "least": lambda: torchmetrics.wrappers.MinMaxMetric(classification.MulticlassAccuracy(CLASSES)),
    "composed": lambda: classification.MulticlassPrecision(CLASSES) + classification.MulticlassRecall(CLASSES),
}


def lives_as(metric: Any, home: Any) -> Life:
    def live() -> Any:
        said = []
        for _ in range(2):
            device = home().device
            scores, truth = torch.rand(6, CLASSES).to(device), torch.randint(CLASSES, (6,)).to(device)
            metric.update(scores, truth)
            said.append(metric.compute())
        return said

    return Life((metric,), lambda: stored(metric), live)


def stored(value: Any, name: str = "metric") -> dict[str, torch.Tensor]:
    """Every tensor of a metric: states, lists, defaults, what was computed and cached, of the metrics inside too."""
    if isinstance(value, torch.Tensor):
        return {name: value}
    inside: dict[str, Any] = {}
    if isinstance(value, dict):
        inside = {str(key): each for key, each in value.items()}
    elif isinstance(value, (list, tuple)):
        inside = {str(index): each for index, each in enumerate(value)}
    elif isinstance(value, torch.nn.Module):
        inside = vars(value)
    return {path: found for key, each in inside.items() for path, found in stored(each, f"{name}.{key}").items()}


def inner(metric: Any) -> Any:
    """A metric that remembers a device: the metric itself, or the first one that it wraps."""
    metrics = [each for each in metric.modules() if isinstance(each, torchmetrics.Metric)]
    return metrics[-1]


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_that_has_counted_nothing_goes_where_it_is_told(name, route):
    metric = METRICS[name]()
    for device in (route.home, route.away):
        tm.move(metric, to=device)
        assert {each.device for each in metric.modules() if isinstance(each, torchmetrics.Metric)} == {device}


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_counts_on(name, route):
    def make() -> Life:
        metric = METRICS[name]()
        return lives_as(metric, lambda: inner(metric))

    def where(life: Life, device: torch.device) -> None:
        found = [each for each in life.objects[0].modules() if isinstance(each, torchmetrics.Metric)]
        assert {each.device for each in found} == {device}
        metric = inner(life.objects[0])
        assert {tensor.device for tensor in stored(metric.metric_state).values()} == {device}

    goes_on(make, route, where)


def collection() -> Any:
    metrics = [getattr(classification, f"Multiclass{each}")(CLASSES) for each in ("Precision", "Recall", "AUROC")]
    return torchmetrics.MetricCollection(metrics, compute_groups=True)


def test_metrics_of_one_group_share_their_state_still(route):
    def make() -> Life:
        metrics = collection()
        return lives_as(metrics, lambda: metrics.MulticlassAUROC)

    def shares(life: Life, device: torch.device) -> None:
        metrics = life.objects[0]
        assert metrics.compute_groups[0] == ["MulticlassPrecision", "MulticlassRecall"]
        one, other = (metrics._modules[name] for name in metrics.compute_groups[0])
        assert one.tp is other.tp
        assert one.device == other.device == device

    goes_on(make, route, shares)


def test_what_was_computed_and_what_a_synced_metric_keeps_move(twin):
    metric = torchmetrics.MeanMetric()
    metric.update(torch.tensor([1.0, 3.0]))
    metric.compute()
    metric._cache = {name: getattr(metric, name).clone() for name in metric._defaults}
    tm.move(metric, to="twin:0")
    assert {tensor.device.type for tensor in stored(metric).values()} == {"twin"}
    assert metric.compute().item() == 2.0


def test_reset_brings_the_defaults_of_the_new_device(twin):
    metric = classification.MulticlassAccuracy(CLASSES)
    tm.move(metric, to="twin:0")
    metric.reset()
    assert metric.tp.device.type == "twin"


def test_to_makes_new_states_and_each_metric_of_a_group_gets_its_own(twin):
    metrics = collection()
    scores, truth = torch.rand(6, CLASSES), torch.randint(CLASSES, (6,))
    metrics.update(scores, truth)
    metrics.update(scores, truth)
    one, other = (metrics._modules[name] for name in metrics.compute_groups[0])
    assert one.tp is other.tp
    metrics.to("twin:0")
    assert one.tp.data_ptr() != other.tp.data_ptr()
