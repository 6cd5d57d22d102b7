"""Reports of parked states, of swaps, and of all ranks in one table."""

from __future__ import annotations

from typing import Any

from torchmove.formatting import counted, listed, readable_bytes
from torchmove.parking.parked_states import Parked, Swap
from torchmove.ranks import COLUMNS, ByRank
from torchmove.reporting import Report, report
from torchmove.reporting.chain_reports import PlanReport
from torchmove.reporting.page import Figure, Page, Sheet, table


class ParkedReport(Report[Parked]):
    def sheet(self) -> Sheet:
        names, plan = listed([*self.result.objects]), self.result.receipt.plan
        if not plan.moves:
            return Sheet(f"{names}: nothing to park: every tensor is on the CPU or kept", PlanReport(plan).repointed())
        state = "parked" if self.result.is_parked else "woken after parking"
        title = (
            f"{names}: {state}: {counted(plan.tensors, 'tensor')}, {readable_bytes(plan.nbytes)} in "
            f"{self.result.receipt.seconds:.3g} s"
        )
        lines = [f"{readable_bytes(nbytes)} freed on {device}" for device, nbytes in self.result.freed.items()]
        lines.append(f"{readable_bytes(plan.nbytes - self.result.unchanged_bytes)} copied")
        if self.result.unchanged_bytes:
            lines[-1] += f", {readable_bytes(self.result.unchanged_bytes)} unchanged since the last park"
        lines += map(str, self.result.notes)
        return Sheet(title, tuple(lines), report(self.result.receipt).sheet().tables)

    def page(self) -> Page:
        """The page of its receipt, with other figures."""
        sheet, figures = (
            self.sheet(),
            [
                *(Figure(f"freed on {device}", readable_bytes(nbytes)) for device, nbytes in self.result.freed.items()),
                Figure("copied", readable_bytes(self.result.receipt.plan.nbytes - self.result.unchanged_bytes)),
                Figure("unchanged", readable_bytes(self.result.unchanged_bytes)),
            ],
        )
        return (
            report(self.result.receipt)
            .page()
            ._replace(
                kind="Parked", title=sheet.title, lines=tuple(map(str, self.result.notes)), figures=tuple(figures)
            )
        )

    def facts(self) -> dict[str, Any]:
        return {
            "is_parked": self.result.is_parked,
            "freed_bytes": self.result.freed_bytes,
            "freed": {str(device): nbytes for device, nbytes in self.result.freed.items()},
            "copied_bytes": self.result.copied_bytes,
            "unchanged_bytes": self.result.unchanged_bytes,
            "ordinary_bytes": self.result.ordinary_bytes,
            "notes": [note._asdict() for note in self.result.notes],
            "receipt": report(self.result.receipt).facts(),
        }


class SwapReport(Report[Swap]):
    def sheet(self) -> Sheet:
        how = "at the same time" if self.result.at_once else "one after the other, because the device cannot hold both"
        return Sheet(
            f"swapped {how}", (report(self.result.parked).sheet().title, report(self.result.receipt).sheet().title)
        )

    def facts(self) -> dict[str, Any]:
        return {
            "at_once": self.result.at_once,
            "parked": report(self.result.parked).facts(),
            "receipt": report(self.result.receipt).facts(),
        }


class ByRankReport(Report[ByRank]):
    def sheet(self) -> Sheet:
        columns = ("rank", "tensors", "bytes", "seconds", "GB/s", "mover", "still held")
        cells = [tuple(_cell(row[column]) for column in COLUMNS) for row in self.result.rows]
        slowest = self.result.rows[0]
        nbytes = sum(row["nbytes"] for row in self.result.rows)
        title = f"{counted(len(self.result.rows), 'rank')}, {readable_bytes(nbytes)} in total"
        if slowest["seconds"] is not None:
            title += f"; the slowest is rank {slowest['rank']}, {slowest['seconds']:.3g} s"
        return Sheet(title, (), (table("ranks", columns, cells, total=len(cells)),))

    def facts(self) -> dict[str, Any]:
        return {"ranks": list(self.result.rows)}


def _cell(value: Any) -> object:
    return "" if value is None else f"{value:.3g}" if isinstance(value, float) else value
