"""Reports of the results of the chain: Plan, Receipt and Verdict."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torchmove.errors import lines_by_reason
from torchmove.formatting import counted, listed, readable_bytes, readable_seconds
from torchmove.moving.receipt import Receipt
from torchmove.planning.plan import MemoryNeed, Move, Note, Plan, Refusal, Stay
from torchmove.progress import Stage, stages_facts
from torchmove.reporting import Report, report
from torchmove.reporting.drawing import DrawnState, drawn, with_moves, with_places
from torchmove.reporting.page import Figure, Page, Point, Points, Sheet, SizeBar, Table, Timeline, first_of, table
from torchmove.verifying.verify import Finding, Verdict


class PlanReport(Report[Plan]):
    def sheet(self) -> Sheet:
        title = f"{self._title()}: {describe_moves(self.result)}"
        lines = (
            *first_of(self.result.rooms),
            *first_of(lines_by_reason(self.result.refusals)),
            *first_of(self.result.notes),
            *self.repointed(),
        )
        moved = (self._row(index, move) for index, move in enumerate(self.result.moves))
        return Sheet(
            title,
            lines,
            (
                table("moves", ("path", "from", "to", "bytes", "tensors"), moved, total=len(self.result.moves)),
                stays_table(self.result.stays),
            ),
        )

    def _title(self) -> str:
        """What would happen, in one line."""
        plan, roots = self.result, listed(self.result.inventory.roots)
        if plan.converts and all(home == target for home, target in plan.moves.ways):
            return f"{roots}: {'cannot' if plan.refusals else 'would'} be converted to {plan.converts}"
        converted = f" as {plan.converts}" if plan.converts else ""
        assumed = plan.assumed_bytes
        there = "" if assumed is None else f" (assumed, with {readable_bytes(assumed)} free)"
        return f"{roots}: {'cannot' if plan.refusals else 'would'} move to {plan.destination}{there}{converted}"

    def repointed(self) -> tuple[str, ...]:
        return first_of(
            [f"{point.value.path}: {point.value.value!s} -> {point.new!s}" for point in self.result.repoints]
        )

    def page(self) -> Page:
        count = len(self.result.refusals)
        figures = (
            Figure("would move", readable_bytes(self.result.nbytes), describe_tensors(self.result)),
            stays_figure(self.result.stays),
            Figure("refusals", str(count), "the move is refused" if count else "", "bad" if count else "good"),
        )
        return Page(
            "Plan",
            self._title(),
            figures=figures,
            points=(
                Points("Refused", tuple(_refusal_point(each) for each in self.result.refusals), "bad"),
                *self.notes(),
            ),
            bars=tuple(map(_room_bar, self.result.rooms)),
            tables=self.page_tables(),
            state=self.drawn(),
        )

    def notes(self) -> tuple[Points, ...]:
        points = (
            Point("", str(point.value.path), f"{point.value.value!s} to {point.new!s}")
            for point in self.result.repoints
        )
        return _note_points(self.result.notes), Points("Remembered devices that change", tuple(points))

    def page_tables(self) -> tuple[Table, ...]:
        rows = [
            (origin, target, len(indices), readable_bytes(sum(self.result.moves.nbytes[index] for index in indices)))
            for (origin, target), indices in self.result.moves.ways.items()
        ]
        moves = table("Moves", ("from", "to", "storages", "size"), rows, total=len(rows))
        return moves, stays_table(self.result.stays, title="Stays", size=readable_bytes)

    def drawn(self) -> DrawnState:
        """The tensors before and after the move."""
        state = with_places(drawn(self.result.inventory), self.result.placement, ("before", "after"), opened=1)
        return with_moves(state, self.result.moves.indices(), self.result.reasons)

    def _nbytes(self, index: int, move: Move) -> int:
        """The bytes of a storage as they arrive."""
        is_converted = self.result.moves.firsts[index] in self.result.moves.conversions
        return self.result.moves.arriving_bytes(index) if is_converted else move.storage.nbytes

    def _row(self, index: int, move: Move) -> tuple[object, ...]:
        first = self.result.inventory.tensors[move.storage.indices[0]]
        return first.path, move.storage.device, move.target, self._nbytes(index, move), len(move.storage.indices)

    def facts(self) -> dict[str, Any]:
        entries = self.result.inventory.tensors
        return {
            "target": str(self.result.target),
            "assumed_bytes": self.result.assumed_bytes,
            "devices": [str(device) for device in self.result.devices or (self.result.target,)],
            "dtype": None if self.result.dtype is None else str(self.result.dtype).removeprefix("torch."),
            "memory_format": str(self.result.memory_format).removeprefix("torch."),
            "ok": self.result.ok,
            "nbytes": self.result.nbytes,
            "moves": [
                {
                    "paths": [str(entries[index].path) for index in move.storage.indices],
                    "from": str(move.storage.device),
                    "to": str(move.target),
                    "nbytes": self._nbytes(index, move),
                }
                for index, move in enumerate(self.result.moves)
            ],
            "stays": stays_facts(self.result.stays),
            "repoints": [
                {"path": str(point.value.path), "from": str(point.value.value), "to": str(point.new)}
                for point in self.result.repoints
            ],
            "refusals": [refusal._asdict() for refusal in self.result.refusals],
            "notes": [note._asdict() for note in self.result.notes],
            "rooms": [{**room._asdict(), "device": str(room.device)} for room in self.result.rooms],
        }


def describe_moves(plan: Plan) -> str:
    return f"{describe_tensors(plan)}, {readable_bytes(plan.nbytes)}"


def describe_tensors(plan: Plan) -> str:
    return f"{counted(plan.tensors, 'tensor')} in {counted(len(plan.moves), 'storage')}"


def stays_figure(stays: Sequence[Stay]) -> Figure:
    return Figure("stays", readable_bytes(sum(stay.nbytes for stay in stays)), counted(len(stays), "tensor"))


def _note_points(notes: Sequence[Note]) -> Points:
    return Points("Notes", tuple(Point(note.code, note.path, note.why) for note in notes))


def _refusal_point(refusal: Refusal) -> Point:
    return Point(refusal.code, refusal.path, refusal.why, refusal.remedy)


def _room_bar(room: MemoryNeed) -> SizeBar:
    parts = [("needed", room.needs_bytes)]
    if room.has_bytes is not None:
        parts.append(("free afterwards", max(0, room.has_bytes - room.needs_bytes)))
    return SizeBar(f"Memory on {room.device}", tuple(parts))


def stays_table(
    stays: Sequence[Stay], *, title: str = "stays", size: Callable[[int], object] = lambda nbytes: nbytes
) -> Table:
    """What stays, one row for each reason."""
    reasons: defaultdict[str, list[Stay]] = defaultdict(list)
    for stay in stays:
        reasons[stay.why].append(stay)
    rows = [(len(same), size(sum(stay.nbytes for stay in same)), why, same[0].path) for why, same in reasons.items()]
    return table(title, ("tensors", "bytes", "reason", "example"), rows, total=len(rows))


def stays_facts(stays: Sequence[Stay]) -> list[dict[str, Any]]:
    return [{"path": str(stay.path), "nbytes": stay.nbytes, "why": stay.why} for stay in stays]


class VerdictReport(Report[Verdict]):
    def is_small(self, page: Page) -> bool:
        return self.result.ok or super().is_small(page)

    def sheet(self) -> Sheet:
        count = f"{counted(self.result.tensors, 'tensor')} checked for {', '.join(self.result.checked)}"
        if self.result.ok:
            title = f"Verified: {count}" if self.result.tensors else "No tensors found: nothing to verify"
            return Sheet(title, first_of(self.result.notes))
        title = f"Verification failed: {counted(len(self.result.findings), 'problem')} ({count})"
        return Sheet(title, (*first_of(lines_by_reason(self.result.findings)), *first_of(self.result.notes)))

    def page(self) -> Page:
        figures = (
            Figure("problems", str(len(self.result.findings)), tone="good" if self.result.ok else "bad"),
            Figure("tensors", f"{self.result.tensors:,}", f"checked for {', '.join(self.result.checked)}"),
        )
        findings = Points("Problems", tuple(map(_finding_point, self.result.findings)), "bad")
        state = drawn(self.result.seen) if self.result.seen is not None else None
        if state is not None and self.result.placement:
            state = with_places(state, self.result.placement, ("is", "should be"), opened=0)
        count = counted(len(self.result.findings), "problem")
        title = (
            f"Verified: {counted(self.result.tensors, 'tensor')}" if self.result.ok else f"Verification failed: {count}"
        )
        return Page("Verdict", title, figures=figures, points=(findings, _note_points(self.result.notes)), state=state)

    def facts(self) -> dict[str, Any]:
        return {
            "ok": self.result.ok,
            "checked": list(self.result.checked),
            "tensors": self.result.tensors,
            "findings": [finding._asdict() for finding in self.result.findings],
            "notes": [note._asdict() for note in self.result.notes],
        }


def _finding_point(finding: Finding) -> Point:
    return Point(finding.code, finding.path, finding.why, finding.remedy)


_MOVERS = {"plain": "plain copy", "staged": "staged copy", "arena": "copy through parked host memory"}


def _why_not_moved(plan: Plan) -> str:
    if plan.stays:
        count = counted(len(plan.inventory.tensors), "tensor")
        return f"nothing moved: {len(plan.stays)} of {count} stay where they are"
    if plan.converts and all(home == plan.target for home in plan.inventory.devices()):
        return f"already on {plan.destination} as {plan.converts}, nothing moved"
    return f"already on {plan.destination}, nothing moved"


def _done(plan: Plan) -> str:
    """What was done, without the numbers."""
    if plan.converts and all(home == target for home, target in plan.moves.ways):
        return f"converted to {plan.converts}"
    return f"moved to {plan.destination}" + (f" as {plan.converts}" if plan.converts else "")


class ReceiptReport(Report[Receipt]):
    def sheet(self) -> Sheet:
        plan, roots = self.result.plan, listed(self.result.plan.inventory.roots)
        if not plan.inventory.tensors:
            title = f"{roots}: no tensors found, " + (
                "only remembered devices changed" if plan.repoints else "nothing moved"
            )
        elif not plan.moves:
            title = f"{roots}: {_why_not_moved(plan)}"
        else:
            took = f"{self.result.seconds:.3g} s ({self._rate()}, {self._mover()})"
            title = f"{roots}: {_done(plan)}: {describe_moves(plan)} in {took}"
        lines = [*PlanReport(plan).repointed(), *first_of(plan.notes)]
        if self.result.verdict is not None:
            lines.append(str(report(self.result.verdict).sheet().title))
        still = table(
            "still held on the old device", ("path", "bytes", "by"), self.result.held, total=len(self.result.held)
        )
        return Sheet(title, tuple(lines), (stays_table(plan.stays), still))

    def page(self) -> Page:
        plan, roots = self.result.plan, listed(self.result.plan.inventory.roots)
        planned = PlanReport(plan)
        held = tuple(Point("", str(path), f"{readable_bytes(size)}: {by}") for path, size, by in self.result.held)
        return Page(
            "Receipt",
            f"{roots}: {_done(plan)}" if plan.moves else f"{roots}: {_why_not_moved(plan)}",
            figures=tuple(self._figures()),
            points=(Points("Still held on the old device", held), *planned.notes()),
            timeline=self._timeline(),
            tables=planned.page_tables(),
            state=planned.drawn(),
        )

    def _figures(self) -> Iterator[Figure]:
        yield Figure("moved", readable_bytes(self.result.moved_bytes), describe_tensors(self.result.plan))
        yield stays_figure(self.result.plan.stays)
        if self.result.plan.moves:
            yield Figure("took", readable_seconds(self.result.seconds), f"{self._rate()}, {self._mover()}")
        held = sum(each.nbytes for each in self.result.held)
        yield Figure("still held on the old device", readable_bytes(held), tone="bad" if held else "good")
        if self.result.verdict is not None:
            found = len(self.result.verdict.findings)
            note = f"checked for {', '.join(self.result.verdict.checked)}"
            yield Figure("verification", counted(found, "problem"), note, "bad" if found else "good")

    def _rate(self) -> str:
        return f"{readable_bytes(int(self.result.bytes_per_second))}/s"

    def _mover(self) -> str:
        return f"{_MOVERS.get(self.result.mover, self.result.mover)}: {self.result.why}"

    def _timeline(self) -> Timeline:
        stages = (*self.result.plan.stages, *self.result.stages)
        return Timeline("Stages", tuple((stage.name, stage.seconds, self._note_of(stage)) for stage in stages))

    def _note_of(self, stage: Stage) -> str:
        if stage.name != "copy" or not stage.seconds:
            return ""
        ways = listed([f"{origin} to {target}" for origin, target in self.result.plan.moves.ways])
        nbytes = self.result.moved_bytes
        return f"{ways}: {readable_bytes(nbytes)}, {readable_bytes(int(nbytes / stage.seconds))}/s"

    def facts(self) -> dict[str, Any]:
        return {
            "mover": self.result.mover,
            "why": self.result.why,
            "seconds": self.result.seconds,
            "bytes_per_second": self.result.bytes_per_second,
            "stages": stages_facts((*self.result.plan.stages, *self.result.stages)),
            "held": [{"path": str(path), "nbytes": nbytes, "by": by} for path, nbytes, by in self.result.held],
            "verdict": report(self.result.verdict).facts() if self.result.verdict is not None else None,
            "plan": report(self.result.plan).facts(),
        }
