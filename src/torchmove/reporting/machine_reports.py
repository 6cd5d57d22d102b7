"""Reports of a machine's devices and of a benchmark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchmove.bench import TURNS, Bench, Extra, Trip, compared
from torchmove.formatting import counted, readable_bytes
from torchmove.machine import Devices
from torchmove.reporting import Report
from torchmove.reporting.page import Sheet, table


class DevicesReport(Report[Devices]):
    def sheet(self) -> Sheet:
        title = f"{counted(len(self.result.found), 'device')}, torch {self.result.torch}"
        columns = ("device", "name", "memory", "free", "used", "link", "peer access")
        rows = [
            (each.device, each.name, *map(_size, sizes), each.link or "-", ", ".join(each.peers) or "-")
            for each in self.result.found
            for sizes in [(each.total_bytes, each.free_bytes, each.used_bytes)]
        ]
        lines = () if len(self.result.found) > 1 else ("no accelerator; tm.rehearse finds device bugs without one",)
        return Sheet(title, lines, (table("devices", columns, rows, total=len(rows)),))

    def facts(self) -> dict[str, Any]:
        return {"torch": self.result.torch, "devices": [each.facts() for each in self.result.found]}


def _size(count: int | None) -> str:
    return "-" if count is None else readable_bytes(count)


class BenchReport(Report[Bench]):
    def sheet(self) -> Sheet:
        state = f"{self.result.state}: {readable_bytes(self.result.nbytes)} in {self.result.tensors} tensors"
        there, back = self.result.extra
        lines = (
            self.result.machine,
            f"movers: {self.result.movers[0]} to {self.result.device}, {self.result.movers[1]} to cpu",
            f"peak memory beyond the state, to {self.result.device}: {_peaks(there)}",
            f"peak memory beyond the state, to cpu: {_peaks(back)}",
        )
        columns = (
            "way",
            f"GB/s to {self.result.device}",
            "x Module.to",
            "of link",
            "GB/s to cpu",
            "x Module.to",
            "of link",
        )
        figures = compared(self.result.ways)
        rows = [
            (title, *_cells(figures[name]["there"]), *_cells(figures[name]["back"]))
            for name, title in TITLES.items()
            if name in figures
        ]
        return Sheet(f"{state}, {self.result.device} and cpu", lines, (table("speed", columns, rows, total=len(rows)),))

    def facts(self) -> dict[str, Any]:
        legs = Trip._fields
        return {
            "machine": self.result.machine,
            "device": str(self.result.device),
            "state": self.result.state,
            "nbytes": self.result.nbytes,
            "tensors": self.result.tensors,
            "turns": TURNS,
            "movers": dict(zip(legs, self.result.movers, strict=True)),
            "extra_bytes": {leg: extra._asdict() for leg, extra in zip(legs, self.result.extra, strict=True)},
            "ways": compared(self.result.ways),
        }


TITLES = {
    "usual_first": "Module.to and a loop over the state, first",
    "usual": "Module.to and a loop over the state, later",
    "move_first": "tm.move, first in the process",
    "move": "tm.move, later",
    "move_bytes": 'tm.move(verify="bytes"), later',
    "link": "pinned memory (limit of the link)",
}


def _cells(leg: Mapping[str, float | None]) -> tuple[str, str, str]:
    times, share = leg["times_as_fast"], leg["share_of_link"]
    return f"{leg['gb_per_second']:.3g}", "" if times is None else f"{times:.3g}", _percent(share)


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def _peaks(extra: Extra) -> str:
    host, device = ("unknown" if each is None else readable_bytes(each) for each in extra)
    return f"host {host}, device {device}"
