"""The device that the examples move to: the accelerator of the machine or, without one, torch's lazy device.

Every build of torch has the lazy device. It has its own memory, runs forward, backward and optimizers, and refuses
operations that mix its tensors with CPU tensors, as an accelerator does.
"""

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook


def second_device() -> torch.device:
    if torch.accelerator.is_available():
        return torch.accelerator.current_accelerator()
    from torch import _lazy
    from torch._lazy import ts_backend

    ts_backend.init()
    # It records operations until a value is read. Fifty steps recorded as one program take minutes to compile.
    register_optimizer_step_post_hook(lambda *_: _lazy.mark_step())
    return torch.device("lazy")
