"""A device to move to: the machine's accelerator or, where there is none, torch's lazy device.

The lazy device is part of every torch. It has bytes of its own, runs forward, backward and optimizers, and refuses to
mix its tensors with those of the CPU, as any accelerator does.
"""

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook


def second_device() -> torch.device:
    if torch.accelerator.is_available():
        return torch.accelerator.current_accelerator()
    from torch import _lazy
    from torch._lazy import ts_backend

    ts_backend.init()
    # It only notes what it is asked, until a value is wanted. Fifty steps noted as one program take minutes to compile.
    register_optimizer_step_post_hook(lambda *_: _lazy.mark_step())
    return torch.device("lazy")
