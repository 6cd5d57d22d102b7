"""The edits that may mend a finding, by its kind; the one closest to the cause first.

Each is one that changes nothing on the CPU, where `.to()` and `.cpu()` return the tensor itself. Whether it mends the
finding is seen by rehearsing the edited program.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torchmove.rehearsing.evidence import Evidence, Operand, Site
from torchmove.rehearsing.fixing.edits import (
    AddDevice,
    Append,
    Before,
    Drop,
    Edit,
    ForEach,
    Keep,
    Register,
    SetDevice,
)
from torchmove.rehearsing.result import Finding

NOT_EDITED = {
    "error": "not a device error; what the step should compute is yours to decide",
    "dtype": "whether the dtype or the operation should change is yours to decide",
    "optimizer": "the state goes where the model goes when that moves, which is not at this line",
}
_TRAINED_IN_CONTAINER = (
    "a ParameterList or ModuleList would also train and save what is in it, which is yours to decide"
)


class Candidate(NamedTuple):
    """Edits that belong together. `early`: they are at the cause, and are tried before those at the use."""

    edits: tuple[Edit, ...]
    early: bool


def candidates(finding: Finding, evidence: Evidence) -> list[Candidate]:
    if finding.kind in NOT_EDITED or (finding.kind == "container" and evidence.trained):
        return []
    if finding.kind in _ON_THE_DEVICE:
        return [Candidate(each, True) for each in _ON_THE_DEVICE[finding.kind](evidence)]
    return [
        *(Candidate(each, True) for each in _at_the_cause(finding.kind, evidence)),
        *(Candidate(each, False) for each in _at_the_use(evidence)),
        *(Candidate(each, False) for each in _at_the_cause_at_last(finding.kind, evidence)),
    ]


def why_none(finding: Finding, evidence: Evidence) -> str:
    """Why a finding has no candidates."""
    if finding.kind in NOT_EDITED:
        return NOT_EDITED[finding.kind]
    if finding.kind == "container" and evidence.trained:
        return _TRAINED_IN_CONTAINER
    if any(each.method == "pin_memory" for each in evidence.strays):
        return "pin it before it is sent: only memory of the host is pinned"
    if evidence.failed is None:
        return "the expression that fails is not known"
    if not evidence.strays:
        return "which part of the expression is misplaced is not certain"
    return "nothing there tells the right device"


# ---------------------------------------------------------------- misplaced tensors


def _at_the_cause(kind: str, evidence: Evidence) -> Iterator[tuple[Edit, ...]]:
    if evidence.thrown is not None:
        yield (Keep(*evidence.thrown),)
    attribute, made = evidence.attribute, evidence.made
    if attribute is not None and not attribute.trained:
        for file, owner in attribute.classes:
            yield (Register(file, owner, attribute.name),)
    if made is None:
        return
    device = _device(made)
    if kind == "factory" and device:
        yield (AddDevice(made.span, device),)
        yield (Append(made.span, f".to({device})"),)
    for each in made.references if kind in ("hard-coded", "stale-device") else ():
        yield (SetDevice(made.span, each, only_made=True),)


def _at_the_cause_at_last(kind: str, evidence: Evidence) -> Iterator[tuple[Edit, ...]]:
    """Where a tensor was sent to the host by name, and cannot be sent back where it is used."""
    made = evidence.made
    if made is not None and kind in ("hard-coded", "stale-device"):
        yield from ((SetDevice(made.span, each),) for each in made.references)
        yield (Drop(made.span),)


def _at_the_use(evidence: Evidence) -> Iterator[tuple[Edit, ...]]:
    failed = evidence.failed
    device = _device(failed)
    if failed is None or not device or not evidence.strays:
        return
    strays = evidence.strays
    if all(each.variable or each.mover or each.what == "module" for each in strays):
        yield tuple(dict.fromkeys(Before(failed.span, _assigned(each, device)) for each in strays))
    if not any(each.written or each.what == "module" for each in strays):
        yield tuple(_sent(each, device) for each in strays)


def _device(site: Site | None) -> str:
    return site.references[0] if site is not None and site.references else ""


def _assigned(stray: Operand, device: str) -> str:
    """The statement that sends a variable."""
    if stray.mover:
        return f"{stray.mover} = {stray.mover}.to({device})"
    if stray.what == "module":
        return f"{stray.text}.to({device})"
    if stray.what == "list":
        return f"{stray.text} = [each.to({device}) for each in {stray.text}]"
    return f"{stray.variable} = {stray.variable}.to({device})"


def _sent(stray: Operand, device: str) -> Edit:
    if stray.what == "list":
        return ForEach(stray.span, f".to({device})")
    return Append(stray.span, f".to({device})")


# ---------------------------------------------------------------- tensors on the device, and generators


def _fetched(evidence: Evidence) -> Iterator[tuple[Edit, ...]]:
    """For numpy, and for operations that read the CPU."""
    for before in ("", ".detach()"):
        edits = []
        for each in evidence.strays:
            has = each.text.endswith((".detach()", ".data"))
            text = f"{'' if has else before}.cpu()"
            edits.append(ForEach(each.span, text) if each.what == "list" else Append(each.span, text))
        if edits:
            yield tuple(edits)


def _drawn_on_the_cpu(evidence: Evidence) -> Iterator[tuple[Edit, ...]]:
    """A generator of the CPU draws on the CPU, and what it draws is sent."""
    failed, device = evidence.failed, _device(evidence.failed)
    if failed is None or not device:
        return
    send = Append(failed.span, f".to({device})")
    yield (SetDevice(failed.span, '"cpu"'), send)
    made = [each for each in evidence.others if each.what == "call"]
    if evidence.others:
        yield (*(SetDevice(each.span, '"cpu"') for each in made), *_on_the_cpu(evidence, made), send)
        if not any(each.written for each in evidence.others):
            yield (*_on_the_cpu(evidence, []), send)


def _on_the_cpu(evidence: Evidence, made: list[Operand]) -> Iterator[Edit]:
    yield from (Append(each.span, ".cpu()") for each in evidence.others if each not in made)


def _read_on_the_host(evidence: Evidence) -> Iterator[tuple[Edit, ...]]:
    first = next(_fetched(evidence), None)
    if first is not None and not any(each.method == "pin_memory" for each in evidence.strays):
        yield first


_ON_THE_DEVICE = {"numpy": _fetched, "host": _read_on_the_host, "generator": _drawn_on_the_cpu}
