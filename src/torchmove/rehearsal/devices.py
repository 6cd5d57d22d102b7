"""What to say of a tensor that the step itself has put on the wrong device: the line tells how it came to that."""

from __future__ import annotations

import re

import torch

from torchmove.rehearsal.provenance import Line, Provenance
from torchmove.rehearsal.standin import CPU

_REMEMBERED = re.compile(r"(\bdevice\s*=\s*|\.to\()[\w.\[\]\"']*device\b", re.IGNORECASE)
_DECIDED = re.compile(r"(\bdevice\s*=\s*|\.to\()\w*device\b", re.IGNORECASE)  # a variable, and nobody's attribute
_WHERE_THERE_IS_NO_GPU = "a device that was decided where there is no GPU is the CPU"
_DECIDE_AGAIN = "decide the device inside the step, or take the model's: next(model.parameters()).device"


def asked_for(place: torch.device, line: Line) -> Provenance:
    """Of a tensor that was sent or made there."""
    if place == CPU and _DECIDED.search(line.text):
        return Provenance("stale-device", f"it was put on cpu: {_WHERE_THERE_IS_NO_GPU}", _DECIDE_AGAIN, line)
    if _REMEMBERED.search(line.text):
        remedy = "ask a parameter for its device instead of remembering it"
        return Provenance("stale-device", f"it was put on {place}, where somebody remembered to be", remedy, line)
    return Provenance("hard-coded", f"it was put on {place} by name", "use the device of the other tensors", line)


def sent_in_vain(came_from: Provenance | None, line: Line) -> Provenance | None:
    """Of a tensor that was on the CPU and was sent there: unless the line says so, it was meant to go elsewhere."""
    if came_from is None or "cpu" in line.text or came_from.remedy == _DECIDE_AGAIN:
        return came_from
    what = f"{came_from.what}; {line} sends it to cpu: {_WHERE_THERE_IS_NO_GPU}"
    return came_from._replace(what=what, remedy=_DECIDE_AGAIN)
