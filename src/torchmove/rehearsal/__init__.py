"""Rehearse a training step on a device that need not be there: every place that would fail, in one run.

run           all of it together
given         which objects are states, and which are data
decisions     devices that were decided before, on a machine without the device
scene         stand-ins in the place of tensors, and afterwards all as it was
standin       a tensor with a shape and a place
stage         every operation, checked and done with what is behind
behind        what is behind: bytes, or shapes alone
places        which operations may take tensors from more than one device
disguise      "cuda" in the user's code
runtime       torch.cuda and torch.accelerator
precision     autocast and gradient scalers
guesses       numbers that shapes alone do not give
memory        what the step takes on the device
provenance    where a tensor came from, and where in the user's code we are
origins       what to say of a tensor on the wrong device
plain         the step without the simulation
result        the Rehearsal
"""

from __future__ import annotations

from torchmove.rehearsal.result import Finding, Rehearsal
from torchmove.rehearsal.run import rehearse

__all__ = ["Finding", "Rehearsal", "rehearse"]
