"""The machine's devices, their memory, and the links between them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from torchmove.devices import device_module, free_memory
from torchmove.formatting import counted
from torchmove.moving.movers.traffic import cores
from torchmove.results import Result


class MachineDevice(NamedTuple):
    """One device of the machine."""

    device: str
    name: str
    total_bytes: int | None  # None: the device does not report it
    free_bytes: int | None
    link: str  # to the host
    peers: tuple[str, ...]  # devices whose memory it can access directly

    @property
    def used_bytes(self) -> int | None:
        return None if self.total_bytes is None or self.free_bytes is None else self.total_bytes - self.free_bytes

    def facts(self) -> dict[str, Any]:
        return {**self._asdict(), "used_bytes": self.used_bytes}


@dataclass(frozen=True, eq=False, repr=False)
class Devices(Result):
    """The machine's devices, the CPU first."""

    found: tuple[MachineDevice, ...]
    torch: str


def devices() -> Devices:
    """List every device that torch can use now."""
    found = [_cpu()]
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is not None:
        count = torch.accelerator.device_count()
        found += (_accelerator(torch.device(accelerator.type, index), count) for index in range(count))
    return Devices(tuple(found), torch.__version__)


def _cpu() -> MachineDevice:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else None
    return MachineDevice("cpu", counted(cores(), "core"), total, free_memory(torch.device("cpu")), "", ())


def _accelerator(device: torch.device, count: int) -> MachineDevice:
    module = device_module(device)
    name = module.get_device_name(device) if hasattr(module, "get_device_name") else device.type
    free = total = None
    if hasattr(module, "mem_get_info"):
        free, total = map(int, module.mem_get_info(device))
    return MachineDevice(str(device), name, total, free, _link(device), _peers(device, count))


def _link(device: torch.device) -> str:
    """The link between device and host, if the kernel reports it: `PCIe 32.0 GT/s x16`."""
    if device.type != "cuda":
        return ""
    properties: Any = torch.cuda.get_device_properties(device)  # Any: torch's type stub lacks some attributes
    bus = f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"
    entry = Path("/sys/bus/pci/devices") / bus
    try:
        speed, width = ((entry / f"current_link_{what}").read_text().strip() for what in ("speed", "width"))
    except OSError:
        return ""
    return f"PCIe {speed.removesuffix(' PCIe')} x{width}"


def _peers(device: torch.device, count: int) -> tuple[str, ...]:
    if device.type != "cuda":
        return ()
    others = (torch.device("cuda", index) for index in range(count))
    return tuple(str(each) for each in others if each != device and torch.cuda.can_device_access_peer(device, each))
