"""kornia: every module of its parts that needs no weights from the net, beside `.to()`; augmentations that go on."""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from laws import bits
from lives import Life, goes_on, library, registered, told
from torch import Tensor, nn

import torchmove as tm

kornia = library("kornia")
PARTS = ("augmentation", "color", "enhance", "filters", "geometry.transform", "losses")
KINDS = {
    f"{part}.{name}": kind
    for part in PARTS
    for name, kind in vars(importlib.import_module(f"kornia.{part}")).items()
    if inspect.isclass(kind) and issubclass(kind, nn.Module)
}


def makeable(kind: type) -> bool:
    """Without an argument."""
    named = inspect.signature(kind).parameters.values()
    if any(each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD) for each in named):
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kind()
    except (
        RuntimeError,
        ImportError,
        TypeError,
        NotImplementedError,
        ValueError,
        OSError,
    ):  # a base, or it wants the net
        return False
    return True


def made(kind: type) -> Any:
    torch.manual_seed(0)
    return kind()


def stored(value: Any, name: str = "", depth: int = 0) -> Iterator[tuple[str, Tensor]]:
    """Every tensor in a module and in what its modules have in plain attributes."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, nn.Module):
        for key, each in {**vars(value), **value._parameters, **value._buffers, **value._modules}.items():
            yield from stored(each, f"{name}.{key}", depth)
    elif isinstance(value, (dict, list, tuple)) and depth < 3:
        entries = value.items() if isinstance(value, dict) else enumerate(value)
        for key, each in entries:
            yield from stored(each, f"{name}.{key}", depth + 1)


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if makeable(kind)])
def test_a_module_is_where_to_would_put_it_and_where_it_would_not(name, twin):
    native, moved = made(KINDS[name]), made(KINDS[name])
    native.to("twin:0")
    tm.move(moved, to="twin:0")
    ours, theirs = dict(stored(moved)), dict(stored(native))
    assert {path: bits(each) for path, each in ours.items()} == {path: bits(each) for path, each in theirs.items()}
    assert {path for path, each in ours.items() if each.device.type != "twin"} == set()


AUGMENTATIONS = {
    name.split(".")[1]: kind
    for name, kind in KINDS.items()
    if name.startswith("augmentation.") and name.split(".")[1].startswith(("Random", "Color", "CenterCrop"))
}
GIVEN: dict[str, dict[str, Any]] = {
    "CenterCrop": {"size": (8, 8)},
    "RandomCrop": {"size": (8, 8)},
    "RandomResizedCrop": {"size": (8, 8)},
    "RandomAffine": {"degrees": 20.0},
    "RandomRotation": {"degrees": 20.0},
    "RandomShear": {"shear": 0.2},
    "RandomGaussianBlur": {"kernel_size": (3, 3), "sigma": (0.1, 2.0)},
    "RandomMotionBlur": {"kernel_size": 3, "angle": 20.0, "direction": 0.5},
    "RandomBoxBlur": {},
    "RandomRain": {"drop_height": (1, 3)},
    "RandomRotation90": {"times": (0, 3)},
}
TWO_DIMENSIONAL = [
    name
    for name, kind in AUGMENTATIONS.items()
    if issubclass(
        kind, kornia.augmentation.IntensityAugmentationBase2D | kornia.augmentation.GeometricAugmentationBase2D
    )
    and (name in GIVEN or makeable(kind))
]


@pytest.mark.parametrize("name", TWO_DIMENSIONAL)
def test_an_augmentation_goes_on(name, cpu_route):
    def make() -> Life:
        augment = AUGMENTATIONS[name](**GIVEN.get(name, {}), **({"p": 1.0} if name != "CenterCrop" else {}))

        def live() -> Any:
            return augment(torch.rand(2, 3, 16, 16).to(cpu_route.home))

        return Life((augment,), lambda: registered(augment), live)

    goes_on(make, cpu_route)


@pytest.mark.parametrize("name", TWO_DIMENSIONAL)
def test_an_augmentation_that_moved_augments_there(name, twin):
    """As one that was made there: its own next call."""
    given = {**GIVEN.get(name, {}), **({"p": 1.0} if name != "CenterCrop" else {})}
    native, moved = AUGMENTATIONS[name](**given).to("twin:0"), AUGMENTATIONS[name](**given)
    torch.manual_seed(0)
    moved(torch.rand(2, 3, 16, 16))
    tm.move(moved, to="twin:0")
    pictures = torch.rand(2, 3, 16, 16).to("twin:0")
    found = []
    for each in (native, moved):
        torch.manual_seed(1)
        try:
            found.append(told(each(pictures)))
        except (RuntimeError, NotImplementedError, AttributeError) as error:
            found.append(type(error).__name__)
    assert found[0] == found[1]
