"""Checkpoint files: what is in them, and writing them anew so that they load without the device they were saved from.

    contents = inspect("model.pt")                                 # no tensor's data is read, nothing is run
    done = relocate("model.pt", to="cpu", out="model-cpu.pt")      # the original stays as it is

Both take files of torch.save; `inspect` also .safetensors files; and both sharded folders, or their index. Whatever is
not a sound checkpoint is refused with CheckpointRefused, in a line.
"""

from torchmove.checkpoints.contents import Contents, Entry, Kept, Mention, OptimizerState
from torchmove.checkpoints.inspecting import inspect
from torchmove.checkpoints.relocating import Relocated, relocate
from torchmove.errors import CheckpointRefused

__all__ = [
    "CheckpointRefused",
    "Contents",
    "Entry",
    "Kept",
    "Mention",
    "OptimizerState",
    "Relocated",
    "inspect",
    "relocate",
]
