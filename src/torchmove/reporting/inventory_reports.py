"""Reports of an Inventory, of some of its tensors, and of its Summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from torchmove.formatting import counted, listed, readable_bytes
from torchmove.internals.storages import shape_of
from torchmove.reporting import Report
from torchmove.reporting.drawing import drawn
from torchmove.reporting.page import Figure, Page, Point, Points, Sheet, Table, first_of, table
from torchmove.surveying.inventory import FoundDiagnostic, Inventory, Selection, StateTensor
from torchmove.surveying.summary import ModuleSummary, Summary


class InventoryReport(Report[Inventory]):
    def sheet(self) -> Sheet:
        places = listed([f"{readable_bytes(size)} on {device}" for device, size in self.result.devices().items()])
        count = f"{counted(len(self.result.tensors), 'tensor')} in {counted(len(self.result.storages), 'storage')}"
        return Sheet(
            f"{listed(self.result.roots)}: {count}" + (f", {places}" if places else ""),
            first_of([f"{found.code}  {path}: {found.why}" for path, _, found in self.result.diagnostics]),
            (self.table(range(len(self.result))),),
        )

    def table(self, indices: Sequence[int]) -> Table:
        rows = (self._row(self.result.tensors[index]) for index in indices)
        columns = ("path", "role", "device", "dtype", "shape", "bytes", "shares with")
        return table("tensors", columns, rows, total=len(indices))

    def page(self) -> Page:
        figures = [
            Figure("tensors", f"{len(self.result.tensors):,}", f"in {counted(len(self.result.storages), 'storage')}"),
            *(Figure(f"on {device}", readable_bytes(size)) for device, size in self.result.devices().items()),
        ]
        found = (Point(each.code, str(path), each.why, each.remedy) for path, _, each in self.result.diagnostics)
        points = (Points("Diagnostics", tuple(found)),)
        return Page(
            "Inventory", listed(self.result.roots), figures=tuple(figures), points=points, state=drawn(self.result)
        )

    def _row(self, entry: StateTensor) -> tuple[object, ...]:
        also = self.result.aliases(entry)
        shares = [*self.result.sharing(entry), *(f"is {path}" for path in also[:2])]
        left_out = len(shares[2:]) + len(also[2:])
        shown = ", ".join(map(str, shares[:2])) + (f" (+{left_out})" if left_out else "")
        dtype = str(entry.tensor.dtype).removeprefix("torch.")
        return entry.path, entry.role, entry.device, dtype, tuple(shape_of(entry.tensor)), entry.nbytes, shown

    def facts(self) -> dict[str, Any]:
        return self.facts_of(range(len(self.result)))

    def facts_of(self, indices: Sequence[int], pattern: str = "") -> dict[str, Any]:
        """The tensors with these indices, and their storages."""
        place = {index: number for number, index in enumerate(indices)}
        storages = [each for each in self.result.storages if any(index in place for index in each.indices)]
        devices: Counter[str] = Counter()
        for storage in storages:
            devices[str(storage.device)] += self.result.bytes_on(storage)
        return {
            "roots": list(self.result.roots),
            "filter": pattern,
            "nbytes": devices.total(),
            "tensors": [self._tensor_facts(self.result.tensors[index]) for index in indices],
            "storages": [
                {
                    "device": str(storage.device),
                    "nbytes": self.result.bytes_on(storage),
                    "tensors": [place[index] for index in storage.indices if index in place],
                }
                for storage in storages
            ],
            "devices": devices,
            "device_values": [{"path": str(v.path), "value": str(v.value)} for v in self.result.device_values],
            "diagnostics": [_diagnostic_facts(each) for each in self.result.diagnostics],
        }

    def _tensor_facts(self, entry: StateTensor) -> dict[str, Any]:
        return {
            "path": str(entry.path),
            "also": [str(path) for path in self.result.other_paths.get(id(entry.tensor), ())],
            "role": entry.role,
            "device": str(entry.device),
            "dtype": str(entry.tensor.dtype).removeprefix("torch."),
            "shape": list(shape_of(entry.tensor)),
            "nbytes": entry.nbytes,
            "requires_grad": entry.tensor.requires_grad,
        }


def _diagnostic_facts(found: FoundDiagnostic) -> dict[str, Any]:
    device = found.diagnostic.device
    return {"path": str(found.path), **found.diagnostic._asdict(), "device": None if device is None else str(device)}


class SelectionReport(Report[Selection]):
    def sheet(self) -> Sheet:
        inventory, chosen = self.result.inventory, self.result.indices
        if len(chosen) == len(inventory):
            title = InventoryReport(inventory).sheet().title
        else:
            size = readable_bytes(self.facts()["nbytes"])
            title = f"{listed(inventory.roots)}: {counted(len(chosen), 'tensor')} of {len(inventory)}"
            title += (
                f" match {self.result.pattern!r}, in storages of {size}"
                if chosen
                else f" match {self.result.pattern!r}"
            )
        return Sheet(title, (), (InventoryReport(inventory).table(chosen),))

    def facts(self) -> dict[str, Any]:
        return InventoryReport(self.result.inventory).facts_of(self.result.indices, self.result.pattern)


_SIZES = {
    "params": "parameter_bytes",
    "buffers": "buffer_bytes",
    "grads": "gradient_bytes",
    "state": "state_bytes",
    "other": "other_bytes",
}


class SummaryReport(Report[Summary]):
    def sheet(self) -> Sheet:
        once = [f"counted once: {path} is {counted_at}" for path, counted_at in self.result.counted_once]
        return Sheet(self.title(), first_of(once), (self.table(),))

    def title(self) -> str:
        parts = [self._parameters(), readable_bytes(self.result.nbytes), ", ".join(self._all("dtypes"))]
        if devices := self._all("devices"):
            parts[1] += f" on {listed(devices)}"
        if self.result.pattern:
            parts.append(f"only what matches {self.result.pattern!r}")
        return f"{listed(self.result.roots)}: {'; '.join(filter(None, parts))}"

    def _parameters(self) -> str:
        count, trainable = self.result.parameters, self.result.trainable
        if not count:
            return "no parameters"
        return f"{count:,} parameters, {f'{trainable:,} of them' if trainable != count else 'all'} trainable"

    def _all(self, name: str) -> list[str]:
        return sorted({each for row in self.result.modules for each in getattr(row, name)})

    def table(self) -> Table:
        rows, sizes = (
            self.result.modules,
            [name for name in _SIZES if any(getattr(row, _SIZES[name]) for row in self.result.modules)],
        )
        named = [name for name in ("devices", "dtypes") if len(self._all(name)) > 1]
        columns = (
            "module",
            "parameters",
            *(["trainable"] if self._some_frozen() else []),
            "size",
            *sizes,
            *named,
            "type",
        )
        cells = ([self._cell(row, name) for name in columns] for row in rows)
        return table("modules", columns, cells, total=len(rows))

    def _some_frozen(self) -> bool:
        return self.result.trainable != self.result.parameters

    def _cell(self, row: ModuleSummary, column: str) -> str:
        if column == "module":
            return f"{'  ' * row.depth}{row.path}"
        if column in ("parameters", "trainable"):
            return f"{getattr(row, column):,}" if getattr(row, column) else ""
        if column in _SIZES or column == "size":
            nbytes = row.nbytes if column == "size" else getattr(row, _SIZES[column])
            return readable_bytes(nbytes) if nbytes else ""
        return row.type if column == "type" else ", ".join(getattr(row, column))

    def facts(self) -> dict[str, Any]:
        return {
            "roots": list(self.result.roots),
            "depth": self.result.depth,
            "filter": self.result.pattern,
            "parameters": self.result.parameters,
            "trainable": self.result.trainable,
            "nbytes": self.result.nbytes,
            "modules": [
                {**row._asdict(), "path": str(row.path), "nbytes": row.nbytes, "dtypes": list(row.dtypes)}
                for row in self.result.modules
            ],
            "counted_once": [{"path": str(path), "counted_at": str(at)} for path, at in self.result.counted_once],
        }
