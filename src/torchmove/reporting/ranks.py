"""The report of ByRank."""

from __future__ import annotations

from typing import Any

from torchmove.formatting import counted, readable_bytes
from torchmove.ranks.tables import COLUMNS, ByRank
from torchmove.reporting import Report
from torchmove.reporting.sheet import Sheet, table


class ByRankReport(Report[ByRank]):
    def sheet(self) -> Sheet:
        columns = ("rank", "tensors", "bytes", "seconds", "GB/s", "mover", "still held")
        cells = [tuple(_cell(row[column]) for column in COLUMNS) for row in self.result.rows]
        slowest = self.result.rows[0]
        nbytes = sum(row["bytes"] for row in self.result.rows)
        title = f"{counted(len(self.result.rows), 'rank')}, {readable_bytes(nbytes)} in total"
        if slowest["seconds"] is not None:
            title += f"; the slowest is rank {slowest['rank']}, {slowest['seconds']:.3g} s"
        return Sheet(title, (), (table("ranks", columns, cells, total=len(cells)),))

    def facts(self) -> dict[str, Any]:
        return {"ranks": list(self.result.rows)}


def _cell(value: Any) -> object:
    return "" if value is None else f"{value:.3g}" if isinstance(value, float) else value
