"""Reports of checkpoint files: their contents, and what relocate wrote."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from torchmove.checkpoints.inspecting import Contents, SavedStorage, SavedTensor, shown
from torchmove.checkpoints.relocating import Relocated
from torchmove.checkpoints.untrusted import in_a_line
from torchmove.formatting import counted, readable_bytes
from torchmove.reporting import Report
from torchmove.reporting.page import Sheet, table

_SHOWN = 10  # optimizers and device names


class ContentsReport(Report[Contents]):
    def sheet(self) -> Sheet:
        places = ", ".join(f"{readable_bytes(size)} on {device}" for device, size in self.result.devices().items())
        count = f"{counted(len(self.result.entries), 'tensor')} in {counted(len(self.result.storages), 'storage')}"
        columns = ("path", "device", "dtype", "shape", "bytes", "shares with")
        return Sheet(
            f"{self.result.name} ({self.result.kind}): {count}" + (f", {places}" if places else ""),
            (*self._lines(),),
            (table("tensors", columns, map(self._row, self.result.entries), total=len(self.result.entries)),),
        )

    def _lines(self) -> Iterator[str]:
        if len(self.result.files) > 1:
            first = ", ".join(map(in_a_line, self.result.files[:3]))
            yield f"in {counted(len(self.result.files), 'file')}: {first}{', ...' if self.result.files[3:] else ''}"
        if self.result.beyond_bytes:
            yield f"{readable_bytes(self.result.beyond_bytes)} of the storages are not used by any tensor"
        if self.result.unlisted:
            yield f"{self.result.unlisted} more paths of these tensors are not listed: the limit is 1000 a tensor"
        yield from map(str, self.result.optimizers[:_SHOWN])
        if self.result.optimizers[_SHOWN:]:
            yield f"... and {len(self.result.optimizers) - _SHOWN} more optimizers: to_json() has all of them"
        yield from (f"{shown(path)}: names the device {device}" for path, device in self.result.mentions[:_SHOWN])
        if self.result.mentions[_SHOWN:]:
            yield f"... and {len(self.result.mentions) - _SHOWN} more device names: to_json() has all of them"

    def _row(self, entry: SavedTensor) -> tuple[object, ...]:
        others = 0 if entry.storage is None else len(self.result.by_storage[entry.storage]) - 1
        more = f" (+{others - 2})" if others > 2 else ""
        shares = ", ".join(map(shown, islice(self.result.sharing(entry), 2))) + more
        return shown(entry.path), self.result.device_of(entry), entry.dtype, entry.shape, entry.nbytes, shares

    def facts(self) -> dict[str, Any]:
        return {
            "name": self.result.name,
            "kind": self.result.kind,
            "files": list(self.result.files),
            "devices": self.result.devices(),
            "bytes": self.result.nbytes,
            "beyond_bytes": self.result.beyond_bytes,
            "unlisted": self.result.unlisted,
            "tensors": [self._entry_facts(entry) for entry in self.result.entries],
            "storages": [
                {**self._storage_facts(storage), "tensors": self.result.by_storage.get(index, [])}
                for index, storage in enumerate(self.result.storages)
            ],
            "optimizers": [
                {"path": str(each.path), "parameters": each.parameters, "kinds": dict(each.kinds), "bytes": each.nbytes}
                for each in self.result.optimizers
            ],
            "mentions": [{"path": str(path), "device": device} for path, device in self.result.mentions],
        }

    def _entry_facts(self, entry: SavedTensor) -> dict[str, Any]:
        facts = {**entry._asdict(), "path": str(entry.path), "device": self.result.device_of(entry)}
        facts["file"] = None if entry.storage is None else self.result.storages[entry.storage].file
        return {"bytes" if key == "nbytes" else key: value for key, value in facts.items()}

    def _storage_facts(self, storage: SavedStorage) -> dict[str, Any]:
        file, key, device, nbytes, used = storage
        return {"file": file, "key": key, "device": device, "bytes": nbytes, "used_bytes": used}


class RelocatedReport(Report[Relocated]):
    def sheet(self) -> Sheet:
        before, after = self.result.before, self.result.after
        came = ", ".join(device for device in before.devices() if device != self.result.target)
        title = (
            f"{after.name}: {counted(self.result.storages, 'storage')} of {len(after.storages)} from {came} to "
            f"{self.result.target}; {readable_bytes(after.nbytes)} in {self.result.seconds:.3g} s"
        )
        lines = [f"Verified: {', '.join(self.result.checked)}"]
        if not self.result.loaded:
            lines.append("not loaded with torch: the file has the other byte order")
        lines += [f"{shown(path)}: names the device {device}, unchanged" for path, device in after.mentions[:_SHOWN]]
        if after.mentions[_SHOWN:]:
            lines.append(f"... and {len(after.mentions) - _SHOWN} more device names: to_json() has all of them")
        return Sheet(title, tuple(lines))

    def facts(self) -> dict[str, Any]:
        return {
            "name": self.result.before.name,
            "out": self.result.after.name,
            "to": self.result.target,
            "storages": self.result.storages,
            "bytes": self.result.after.nbytes,
            "seconds": self.result.seconds,
            "loaded": self.result.loaded,
            "checked": list(self.result.checked),
            "before": self.result.before.devices(),
            "after": self.result.after.devices(),
            "left_alone": [{"path": str(path), "device": device} for path, device in self.result.after.mentions],
        }
