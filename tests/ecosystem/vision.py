"""torchvision beside a CPU build of torch.

PyPI's wheel is made for CUDA's torch. Beside a CPU build its operators do not load, and `import torchvision` fails on
the first one that it wants to describe. The two names it asks for, declared and never implemented, are enough to
import it and to build its models; what calls an operator (detection's forward) fails as it would anyway.
"""

from __future__ import annotations

import importlib.util

import torch

_OPERATORS = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}


def make_importable() -> None:
    """Has to come before anything imports torchvision; does nothing where its operators load."""
    found = importlib.util.find_spec("torchvision")
    if found is None or torch.version.cuda is not None:
        return
    for name, schema in _OPERATORS.items():
        if not hasattr(torch.ops.torchvision, name):
            torch.library.define(f"torchvision::{name}", schema)
