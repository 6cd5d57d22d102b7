"""Rehearse a training step on a device that need not be there: every place that would fail, in one run.

provenance  where a tensor came from, and where in the user's code we are
standin     a tensor with a shape and a place
places      which operations may take tensors from more than one device
memory      what the step takes on the device
stage       every operation, checked and done with what is behind
disguise    "cuda" in the user's code, and torch.cuda
scene       stand-ins in the place of tensors, and afterwards all as it was
kinds       what a tensor is to the user
result      the Rehearsal
run         all of it together
"""

from __future__ import annotations

from torchmove.rehearsal.result import Finding, Rehearsal
from torchmove.rehearsal.run import rehearse

__all__ = ["Finding", "Rehearsal", "rehearse"]
