"""Devices: resolve a device argument, check that it exists, and measure its free memory."""

from __future__ import annotations

import re
from pathlib import Path
from types import NoneType
from typing import Any

import torch

# An attribute or a key with such a name holds a device, if its value parses as one.
_DEVICE_NAME = re.compile(r"(^|_)device$")
# Every entry of a dict with such a name holds one: transformers' hf_device_map maps submodules to devices.
_MAP_NAME = re.compile(r"(^|_)device_map$")


class NoSuchDevice(Exception):
    """The device does not exist; the message says why, and which devices exist. `instead`: one that could be meant."""

    def __init__(self, message: str, *, instead: str = "") -> None:
        super().__init__(message)
        self.instead = instead


def resolve_device(to: torch.device | str | int) -> torch.device:
    """The device that `to` names, with its index. Raises NoSuchDevice."""
    device = _auto() if isinstance(to, str) and to == "auto" else _parse(to)
    if device.type == "meta":
        raise NoSuchDevice("tensors on the meta device have no data: moving there would lose all of it")
    if device.type == "cpu":
        return torch.device("cpu")
    count = _count(device)
    if count == 0:
        raise NoSuchDevice(f"this machine has no {device.type} device; it has {available_devices()}")
    index = _current(device) if device.index is None else device.index
    if count is not None and index >= count:
        instead = f"{device.type}:{count - 1}"
        raise NoSuchDevice(f"{device} does not exist; this machine has {available_devices()}", instead=instead)
    return torch.device(device.type, index)


def assumed_device(to: torch.device | str | int) -> torch.device:
    """The device that `to` names, with its index; this machine need not have it. Raises NoSuchDevice."""
    if isinstance(to, str) and to == "auto":
        raise NoSuchDevice("'auto' takes a device that this machine has, and assume= one that it need not have")
    device = _parse(to)
    if device.type in ("cpu", "meta"):
        return resolve_device(device)
    return torch.device(device.type, device.index or 0)


def available_devices() -> str:
    """The machine's devices as text: `cpu and cuda:0 to cuda:3`."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return "cpu"
    count = torch.accelerator.device_count()
    return f"cpu and {accelerator.type}:0" + (f" to {accelerator.type}:{count - 1}" if count > 1 else "")


def is_same_device(one: torch.device, other: torch.device) -> bool:
    """Whether two devices are equal, where a missing index means the current device."""
    if one == other:
        return True
    if one.type != other.type:
        return False
    return one.type == "cpu" or _index(one) == _index(other)


def remembered_device(name: object, value: object, within: object) -> torch.device | None:
    """The device that a stored value stands for: any `torch.device`, a string under a name such as `device`, or a
    string or index `within` a device map."""
    if type(value) is torch.device:
        return value
    if type(value) is str or type(value) is int:
        in_map = type(within) is str and _MAP_NAME.search(within)
        if in_map or (type(value) is str and type(name) is str and _DEVICE_NAME.search(name)):
            try:
                return torch.device(value)
            except RuntimeError:
                return None
    return None


def free_memory(device: torch.device) -> int | None:
    """Bytes that can be allocated on a device, torch's cache included; None if the device does not report it."""
    if device.type == "cpu":
        return _free_host_bytes()
    free, module = driver_free_memory(device), device_module(device)
    if free is not None and hasattr(module, "memory_reserved"):
        free += module.memory_reserved(device) - module.memory_allocated(device)
    return free


def driver_free_memory(device: torch.device) -> int | None:
    """Bytes that the driver reports as free, torch's cache not included; None if it does not report them."""
    module = device_module(device)
    return int(module.mem_get_info(device)[0]) if hasattr(module, "mem_get_info") else None


def synchronize_device(device: torch.device) -> None:
    """Wait until the device has finished all queued work."""
    if device.type != "cpu" and hasattr(device_module(device), "synchronize"):
        device_module(device).synchronize(device)


def release_cached_memory(device: torch.device) -> None:
    """Return the memory in torch's cache to the device."""
    if hasattr(device_module(device), "empty_cache"):
        device_module(device).empty_cache()


def device_module(device: torch.device) -> Any:
    """torch's module for a type of device, such as `torch.cuda`; None if it has none."""
    try:
        return torch.get_device_module(device)
    except (RuntimeError, ImportError):
        return None


def _auto() -> torch.device:
    return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")


def _parse(to: torch.device | str | int) -> torch.device:
    try:
        return torch.device(to)
    except (RuntimeError, TypeError) as error:
        said = repr(to) if isinstance(to, (str, int, NoneType)) else type(to).__name__
        raise NoSuchDevice(f"{said} is not a device; this machine has {available_devices()}") from error


def _count(device: torch.device) -> int | None:
    module = device_module(device)
    if module is None:
        # A device without a Python module (lazy) exists if an empty tensor can be allocated there.
        return None if _answers(device) else 0
    return int(module.device_count()) if module.is_available() else 0


def _answers(device: torch.device) -> bool:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, ImportError, AssertionError):  # each type of device raises its own error
        return False
    return True


def _current(device: torch.device) -> int:
    module = device_module(device)
    # current_device() would initialize the accelerator; until then device 0 is current.
    if hasattr(module, "is_initialized") and not module.is_initialized():
        return 0
    return int(module.current_device()) if hasattr(module, "current_device") else 0


def _index(device: torch.device) -> int:
    return _current(device) if device.index is None else device.index


def _free_host_bytes() -> int | None:
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        return None
    found = re.search(r"MemAvailable:\s+(\d+) kB", text)
    return int(found[1]) * 1024 if found else None
