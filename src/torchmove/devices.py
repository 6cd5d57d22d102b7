"""Devices: which one is meant, does it exist, how much is free there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

# A name like this in an attribute or under a key holds a device, if what is there reads as one.
_DEVICE_NAME = re.compile(r"(^|_)device$")
# And in a dict of such a name every entry holds one: transformers' hf_device_map says where each part of a model is.
_MAP_NAME = re.compile(r"(^|_)device_map$")


class NoSuchDevice(Exception):
    """The device cannot be had; says why, and what there is instead."""


def resolve_device(to: torch.device | str | int) -> torch.device:
    """The device that `to` means, with its index. Raises NoSuchDevice."""
    device = _auto() if isinstance(to, str) and to == "auto" else _parse(to)
    if device.type == "meta":
        raise NoSuchDevice("meta tensors have no bytes, moving there would lose them all")
    if device.type == "cpu":
        return torch.device("cpu")
    count = _count(device)
    if count == 0:
        raise NoSuchDevice(f"this machine has no {device.type} device; it has {available_devices()}")
    index = _current(device) if device.index is None else device.index
    if count is not None and index >= count:
        raise NoSuchDevice(f"{device} does not exist; this machine has {available_devices()}")
    return torch.device(device.type, index)


def available_devices() -> str:
    """The machine's devices, in words."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return "cpu"
    count = torch.accelerator.device_count()
    return f"cpu and {accelerator.type}:0" + (f" to {accelerator.type}:{count - 1}" if count > 1 else "")


def is_same_device(one: torch.device, other: torch.device) -> bool:
    """Equal, a missing index taken for the current one."""
    if one == other:
        return True
    if one.type != other.type:
        return False
    return one.type == "cpu" or _index(one) == _index(other)


def remembered_device(name: object, value: object, within: object) -> torch.device | None:
    """The device that a stored value stands for: a `torch.device` anywhere, a string under a name that says device, and
    a string or an index `within` a map of devices."""
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
    """What can be allocated there, torch's cache included; None where the device does not say."""
    if device.type == "cpu":
        return _free_host_bytes()
    free, module = driver_free_memory(device), device_module(device)
    if free is not None and hasattr(module, "memory_reserved"):
        free += module.memory_reserved(device) - module.memory_allocated(device)
    return free


def driver_free_memory(device: torch.device) -> int | None:
    """What the device has for anybody, torch's cache not included; None where it does not say."""
    module = device_module(device)
    return int(module.mem_get_info(device)[0]) if hasattr(module, "mem_get_info") else None


def synchronize_device(device: torch.device) -> None:
    """Wait until everything given to the device is done."""
    if device.type != "cpu" and hasattr(device_module(device), "synchronize"):
        device_module(device).synchronize(device)


def release_cached_memory(device: torch.device) -> None:
    """Memory that torch's allocator keeps for later goes back to the device."""
    if hasattr(device_module(device), "empty_cache"):
        device_module(device).empty_cache()


def device_module(device: torch.device) -> Any:
    """What torch has for a kind of device (torch.cuda, say); None where it has nothing."""
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
        if not isinstance(to, (str, int)):
            raise NoSuchDevice(f"a {type(to).__name__} is not a device") from error
        raise NoSuchDevice(f"{to!r} is not a device: {str(error).splitlines()[0]}") from error


def _count(device: torch.device) -> int | None:
    module = device_module(device)
    if module is None:
        # A device without a Python module (lazy): it exists if a tensor of no elements can be had there.
        return None if _answers(device) else 0
    return int(module.device_count()) if module.is_available() else 0


def _answers(device: torch.device) -> bool:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, ImportError, AssertionError):  # each kind of device says no in its own way
        return False
    return True


def _current(device: torch.device) -> int:
    module = device_module(device)
    # Asking an accelerator for its current device would wake it; before that, its first one is current.
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
