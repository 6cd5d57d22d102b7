"""A file of torch.save: its archive, and the contents of its pickle."""

from __future__ import annotations

from torchmove.checkpoints.archive import Archive, names
from torchmove.checkpoints.kinds import refuse_other_zip
from torchmove.checkpoints.reading import Reading
from torchmove.checkpoints.source import Budget, Source, Unfit

PICKLE = "data.pkl"
_MOST_PICKLE_BYTES = 64 << 20


class TorchFile:
    """An open file of torch.save."""

    def __init__(self, source: Source, budget: Budget | None = None) -> None:
        refuse_other_zip(names(source))
        self.source = source
        self.archive = Archive(source, budget)
        self.pickled = self.archive.read(PICKLE, _MOST_PICKLE_BYTES)
        self.archive.budget.grant(source, self.archive.records[PICKLE].offset, len(self.pickled))
        self.reading = Reading(self.pickled, self.archive.records, self.archive.budget)
        self.alignment = self._alignment()
        self.byteorder = self._byteorder()

    @property
    def unused_bytes(self) -> int:
        used = {f"data/{key}" for key in self.reading.storages}
        records = self.archive.records.values()
        return sum(record.nbytes for record in records if record.name.startswith("data/") and record.name not in used)

    def _alignment(self) -> int:
        alignment = self._small(".storage_alignment", b"64")
        if not alignment.isdigit() or not 1 <= int(alignment) <= 1 << 14:
            raise Unfit("R065", f"invalid storage alignment {alignment!r}")
        return int(alignment)

    def _byteorder(self) -> str:
        order = self._small("byteorder", b"little")
        if order not in (b"little", b"big"):
            raise Unfit("R065", f"invalid byte order {order!r}")
        return order.decode()

    def _small(self, name: str, default: bytes) -> bytes:
        return self.archive.read(name, 16) if name in self.archive.records else default
