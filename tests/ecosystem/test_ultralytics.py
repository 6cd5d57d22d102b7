"""ultralytics: every configuration of YOLO and RT-DETR, narrow; what their own `_apply` moves; losses that remember."""

from __future__ import annotations

import copy
import functools
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from laws import bits
from lives import Life, goes_on, library, state_of, told
from torch import Tensor, nn

import torchmove as tm

ultralytics = library("ultralytics")
tasks = library("ultralytics.nn.tasks")
yaml = library("yaml")
library("ultralytics.utils").LOGGER.setLevel(logging.CRITICAL)
torch_utils = library("ultralytics.utils.torch_utils")
CONFIGURATIONS = {
    path.stem: path for path in sorted((Path(ultralytics.__file__).parent / "cfg" / "models").rglob("*.yaml"))
}
# Their widths cannot be scaled: the smallest of each is there.
LARGE = {"rtdetr-resnet101", "rtdetr-resnet50", "rtdetr-x", "yolo11-cls-resnet18", "yolov3", "yolov3-spp", "yolov9m"}
LARGE |= {"yolov8-cls-resnet101", "yolov8-cls-resnet50", "yolov9c", "yolov9c-seg", "yolov9e", "yolov9e-seg"}
NAMES = [name for name in CONFIGURATIONS if name not in LARGE]
OPEN = {"WorldDetect": "WorldModel", "YOLOEDetect": "YOLOEModel"}  # their classes are words
OPEN |= {"YOLOESegment": "YOLOESegModel", "YOLOESegment26": "YOLOESegModel", "RTDETRDecoder": "RTDETRDetectionModel"}
CLASSES, EDGE = 3, 64


@functools.cache
def template(name: str) -> nn.Module:
    configuration = yaml.safe_load(CONFIGURATIONS[name].read_text())
    head = configuration["head"][-1][2]
    configuration["nc"] = 80 if head in OPEN else CLASSES
    if "scales" in configuration:
        wide = name.startswith("yolo12") or "world" in name
        configuration |= {"scales": {"n": [0.33, 0.25 if wide else 0.125, 256]}, "scale": "n"}
    known = ultralytics.YOLO.task_map.fget(ultralytics.YOLO.__new__(ultralytics.YOLO))
    kind = getattr(tasks, OPEN[head]) if head in OPEN else known[tasks.guess_model_task(configuration)]["model"]
    torch.manual_seed(0)
    model: nn.Module = kind(configuration, verbose=False)
    model.args, model.nc = library("ultralytics.cfg").get_cfg(), configuration["nc"]
    # Its `_apply` gives the head attributes of its own, as in every program that says where the model shall be.
    return model.to("cpu")


def made(name: str) -> Any:
    return copy.deepcopy(template(name))


def pictures(model: nn.Module, count: int = 2) -> Tensor:
    return torch.rand(count, 3, EDGE, EDGE).to(next(model.parameters()).device)


def batch_for(model: nn.Module) -> dict[str, Tensor]:
    """Two pictures with two things each, and what each task wants to know of them."""
    boxes = torch.rand(4, 5 if isinstance(model, tasks.OBBModel) else 4) * 0.4 + 0.3
    masks = torch.zeros(2, EDGE, EDGE)
    masks[:, 16:40, 16:40], masks[:, 30:50, 30:50] = 1, 2
    batch = {
        "cls": torch.randint(CLASSES, (4, 1)).float(),
        "bboxes": boxes,
        "batch_idx": torch.tensor([0.0, 0.0, 1.0, 1.0]),
        "masks": masks,
        "sem_masks": masks.clamp(max=CLASSES - 1),
        "semantic_mask": masks.clamp(max=CLASSES - 1).long(),
        "depth": torch.rand(2, EDGE, EDGE) + 0.5,
        "keypoints": torch.rand(4, *getattr(model, "kpt_shape", (17, 3))),
        "txt_feats": torch.randn(2, 80, 512),
    }
    if isinstance(model, tasks.ClassificationModel):
        batch["cls"] = torch.randint(CLASSES, (2,))
    device = next(model.parameters()).device
    return {"img": pictures(model), **{key: value.to(device) for key, value in batch.items()}}


def stored(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters, buffers, and the tensors in plain attributes."""
    for path, module in model.named_modules():
        named = {**vars(module), **module._parameters, **module._buffers}
        yield from ((f"{path}.{name}", value) for name, value in named.items() if isinstance(value, Tensor))


@pytest.mark.parametrize("name", NAMES)
def test_a_model_is_where_to_would_put_it_and_sees_the_same(name, twin):
    native, moved = made(name).to("twin:0").eval(), made(name).eval()
    tm.move(moved, to="twin:0")
    ours, theirs = dict(stored(moved)), dict(stored(native))
    assert {path: bits(each) for path, each in ours.items()} == {path: bits(each) for path, each in theirs.items()}
    assert {each.device for each in ours.values()} == {torch.device("twin:0")}
    # The model itself has the stride of its head too and, where words are its classes, their features: forgotten.
    assert {path for path, each in theirs.items() if each.device != torch.device("twin:0")} <= {".stride", ".txt_feats"}
    torch.manual_seed(1)
    seen = pictures(native, 1)
    with torch.no_grad():
        assert told(moved(seen)) == told(native(seen))


TRAINED = ["yolov8", "yolov8-seg", "yolov8-pose", "yolov8-obb", "yolov8-cls", "yolov8-world", "yolov8-rtdetr"]
TRAINED += ["yolov10n", "yoloe-v8", "yolo26", "yolo26-sem"]


@pytest.mark.parametrize("name", TRAINED)
def test_a_model_trains_on_with_its_loss_and_its_average(name, cpu_route):
    def make() -> Life:
        model = made(name).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        average = torch_utils.ModelEMA(model)

        def live() -> Any:
            optimizer.zero_grad()
            found, _ = model.loss(batch_for(model))
            loss = sum(found.values()) if isinstance(found, dict) else found.sum()
            loss.backward()
            optimizer.step()
            average.update(model)
            return loss.detach()

        def tensors() -> dict[str, Tensor]:
            averages = {f"average {name}": tensor for name, tensor in stored(average.ema)}
            gradients = {f"{name}.grad": each.grad for name, each in model.named_parameters() if each.grad is not None}
            return {**dict(stored(model)), **gradients, **averages, **state_of(optimizer)}

        return Life((model, optimizer, average), tensors, live, lambda: state_of(optimizer, steps=True))

    goes_on(make, cpu_route)
