"""Checkpoint files: list their contents, and rewrite them so that they load without the device they were saved from.

    contents = inspect("model.pt")                                 # reads no tensor data, runs no code
    done = relocate("model.pt", to="cpu", out="model-cpu.pt")      # leaves the original unchanged

Both take files of torch.save and sharded folders or their index; `inspect` also takes .safetensors files. An invalid
checkpoint raises CheckpointRefused.
"""

from torchmove.checkpoints.inspecting import Contents, DeviceMention, OptimizerState, SavedStorage, SavedTensor, inspect
from torchmove.checkpoints.relocating import Relocated, relocate
from torchmove.errors import CheckpointRefused

__all__ = [
    "CheckpointRefused",
    "Contents",
    "DeviceMention",
    "OptimizerState",
    "Relocated",
    "SavedStorage",
    "SavedTensor",
    "inspect",
    "relocate",
]
