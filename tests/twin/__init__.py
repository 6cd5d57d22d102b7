"""A second device in ordinary memory: "twin:0" and "twin:1" hold bytes of their own and compute with the CPU's kernels.

`install()` builds the backend once per checkout and environment, registers it once per process and returns the device
module, which is `torch.twin` from then on.
"""

import contextlib
import fcntl
import os
import sys
import sysconfig
from pathlib import Path

import torch

from .device import TwinDevice

_FOLDER = Path(__file__).resolve().parent
_SOURCES = [str(_FOLDER / name) for name in ("memory.cpp", "loan.cpp", "operators.cpp", "autocast.cpp")]
# One for each environment: each has a torch of its own to build against.
_ENVIRONMENT = f"{Path(sys.prefix).name}-{torch.__version__}-{sys.implementation.cache_tag}"
_BUILD = _FOLDER.parents[1] / "build" / f"twin-{_ENVIRONMENT}"


def install() -> TwinDevice:
    """The twin device module, built and registered by the first call."""
    if not hasattr(torch, "twin"):
        _register(_build())
    return torch.twin


def _register(native):
    torch.utils.rename_privateuse1_backend("twin")
    torch._register_device_module("twin", TwinDevice(native))
    torch.utils.generate_methods_for_privateuse1_backend()
    native.register_hooks()


def _build():
    from torch.utils.cpp_extension import load

    with _sole_builder(), _scripts_on_path():
        return load("twin_device", _SOURCES, extra_cflags=["-O1"], build_directory=str(_BUILD))


@contextlib.contextmanager
def _sole_builder():
    """Waits for other builders. The system drops this lock when its holder dies; torch's lock file would stay."""
    _BUILD.mkdir(parents=True, exist_ok=True)
    with open(_BUILD / "builder", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        (_BUILD / "lock").unlink(missing_ok=True)
        yield


@contextlib.contextmanager
def _scripts_on_path():
    """torch looks for ninja on PATH, where a virtual environment that is not activated does not have it."""
    path = os.environ.get("PATH", os.defpath)
    os.environ["PATH"] = os.pathsep.join([sysconfig.get_path("scripts"), path])
    try:
        yield
    finally:
        os.environ["PATH"] = path
