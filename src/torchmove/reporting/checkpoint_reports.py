"""Reports of checkpoint files: their contents, and what relocate wrote."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from torchmove.checkpoints.inspecting import Contents, SavedStorage, SavedTensor, SelectedContents, shown
from torchmove.checkpoints.relocating import Relocated
from torchmove.checkpoints.untrusted import in_a_line
from torchmove.formatting import counted, readable_bytes
from torchmove.reporting import Report
from torchmove.reporting.page import Sheet, Table, table

_SHOWN = 10  # optimizers and device names


class ContentsReport(Report[Contents]):
    def sheet(self) -> Sheet:
        places = ", ".join(f"{readable_bytes(size)} on {device}" for device, size in self.result.devices().items())
        count = f"{counted(len(self.result.entries), 'tensor')} in {counted(len(self.result.storages), 'storage')}"
        return Sheet(
            f"{self.result.name} ({self.result.kind}): {count}" + (f", {places}" if places else ""),
            (*self._lines(), *self._metadata()),
            (self.table(range(len(self.result.entries))),),
        )

    def table(self, indices: Sequence[int]) -> Table:
        columns = ("path", "device", "dtype", "shape", "bytes", "shares with")
        return table(
            "tensors", columns, (self._row(self.result.entries[index]) for index in indices), total=len(indices)
        )

    def _metadata(self) -> Iterator[str]:
        """The metadata, once for files that have the same."""
        texts = Counter(item for metadata in self.result.metadata.values() for item in metadata.items())
        for (key, text), count in islice(texts.items(), _SHOWN):
            some = "" if count == len(self.result.metadata) else f" (in {counted(count, 'file')})"
            yield f"metadata {in_a_line(key, 60)}: {in_a_line(text, 200)}{some}"
        if len(texts) > _SHOWN:
            yield f"... and {len(texts) - _SHOWN} more metadata: to_json() has all of them"

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
        return self.facts_of(range(len(self.result.entries)))

    def facts_of(self, indices: Sequence[int], pattern: str = "") -> dict[str, Any]:
        """The tensors with these indices, and their storages; of all tensors also those that none of them uses."""
        entries = [self.result.entries[index] for index in indices]
        used = dict.fromkeys(entry.storage for entry in entries if entry.storage is not None)
        kept = sorted(used) if pattern else range(len(self.result.storages))
        number = {storage: place for place, storage in enumerate(kept)}
        tensors: defaultdict[int, list[int]] = defaultdict(list)
        for index, entry in enumerate(entries):
            if entry.storage is not None:
                tensors[entry.storage].append(index)
        devices: Counter[str] = Counter()
        for storage in kept:
            devices[self.result.storages[storage].device] += self.result.storages[storage].nbytes
        return {
            "name": self.result.name,
            "kind": self.result.kind,
            "files": list(self.result.files),
            "metadata": {file: dict(texts) for file, texts in self.result.metadata.items()},
            "filter": pattern,
            "devices": devices,
            "nbytes": devices.total(),
            "beyond_bytes": self.result.beyond_bytes,
            "unlisted": self.result.unlisted,
            "tensors": [self._entry_facts(entry, number) for entry in entries],
            "storages": [
                {**self._storage_facts(self.result.storages[storage]), "tensors": tensors[storage]} for storage in kept
            ],
            "optimizers": [
                {
                    "path": str(each.path),
                    "parameters": each.parameters,
                    "kinds": dict(each.kinds),
                    "nbytes": each.nbytes,
                }
                for each in self.result.optimizers
            ],
            "mentions": [{"path": str(path), "device": device} for path, device in self.result.mentions],
        }

    def _entry_facts(self, entry: SavedTensor, number: Mapping[int, int]) -> dict[str, Any]:
        facts = {**entry._asdict(), "path": str(entry.path), "device": self.result.device_of(entry)}
        facts["storage"] = None if entry.storage is None else number[entry.storage]
        facts["file"] = None if entry.storage is None else self.result.storages[entry.storage].file
        return facts

    def _storage_facts(self, storage: SavedStorage) -> dict[str, Any]:
        file, key, device, nbytes, used = storage
        return {"file": file, "key": key, "device": device, "nbytes": nbytes, "used_bytes": used}


class SelectedContentsReport(Report[SelectedContents]):
    def sheet(self) -> Sheet:
        contents, chosen = self.result.contents, self.result.indices
        title = f"{contents.name} ({contents.kind}): {counted(len(chosen), 'tensor')} of {len(contents.entries)}"
        size = f", {readable_bytes(sum(contents.entries[index].nbytes for index in chosen))}" if chosen else ""
        return Sheet(f"{title} match {self.result.pattern!r}{size}", (), (ContentsReport(contents).table(chosen),))

    def facts(self) -> dict[str, Any]:
        return ContentsReport(self.result.contents).facts_of(self.result.indices, self.result.pattern)


class RelocatedReport(Report[Relocated]):
    def sheet(self) -> Sheet:
        before, after = self.result.before, self.result.after
        target, took = self.result.target, f"{readable_bytes(after.nbytes)} in {self.result.seconds:.3g} s"
        if self.result.storages:
            came = ", ".join(device for device in before.devices() if device != target)
            count = f"{counted(self.result.storages, 'storage')} of {len(after.storages)}"
            title = f"{after.name}: {count} from {came} to {target}; {took}"
        else:
            why = f"all of it was on {target} already" if after.storages else "it has no tensors"
            title = f"{after.name}: copied unchanged, {why}; {took}"
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
            "nbytes": self.result.after.nbytes,
            "seconds": self.result.seconds,
            "loaded": self.result.loaded,
            "checked": list(self.result.checked),
            "before": self.result.before.devices(),
            "after": self.result.after.devices(),
            "left_alone": [{"path": str(path), "device": device} for path, device in self.result.after.mentions],
        }
