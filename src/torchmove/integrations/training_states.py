"""The part of the callbacks that knows no library: verify a training state, park it or its optimizer state, log it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch

from torchmove.chain import verify
from torchmove.errors import VerificationError
from torchmove.formatting import counted, readable_bytes, readable_seconds
from torchmove.parking.parked_states import Parked, park, parked

Verification = Literal["raise", "warn", "off"]


class TrainingStateCallback:
    """Verifies a training state when a training starts, and parks it.

    A subclass says what belongs to the state, and calls `_verify_start`, `_park_optimizers` and `_wake_optimizers` when
    its trainer calls it.
    """

    def __init__(
        self, *objects: Any, verify: Verification, park_during: str | None, parks_during: str, keep: Sequence[Any]
    ) -> None:
        if verify not in ("raise", "warn", "off"):
            raise ValueError(f"verify must be 'raise', 'warn' or 'off', not {verify!r}. Fix: verify='raise'")
        if park_during not in (None, parks_during):
            fix = f"Fix: park_during={parks_during!r}"
            raise ValueError(f"park_during must be {parks_during!r} or None, not {park_during!r}. {fix}")
        self._objects, self._verify, self._park_during, self._keep = objects, verify, park_during, tuple(keep)
        self._parked_optimizers: Parked | None = None

    def _state(self) -> tuple[Any, ...]:
        """Everything that `parked` parks: the training state, and the objects that were given."""
        raise NotImplementedError

    def _log(self, line: str) -> None:
        """Log one line with the logger of the library."""
        raise NotImplementedError

    @contextmanager
    def parked(self) -> Iterator[Parked]:
        """Park the whole training state during a `with` block: model, gradients, optimizers and everything attached.

        The device is free for something else, such as another model; the trainer's own model cannot run there.
        Afterwards everything is where it was, bit for bit, also after an exception.

        Returns:
            A context manager, as `tm.parked(...)`.

        Raises:
            RuntimeError: no training has started.
            MoveRefused: as for `tm.parked`.
            MoveFailed: as for `tm.parked`.
            VerificationError: as for `tm.parked`.
        """
        with parked(*self._state(), keep=list(self._keep), progress=False) as state:
            yield state
        self._log(f"torchmove: parked {_receipt_of(state)}")

    def _verify_start(self, *objects: Any, on: torch.device, ignore: Sequence[Any] = ()) -> None:
        """Verify that the objects are on the device, and raise or warn as requested."""
        if self._verify == "off":
            return
        verdict = verify(*objects, *self._objects, on=on, keep=[*self._keep, *ignore])
        if not verdict.ok and self._verify == "raise":
            raise VerificationError(verdict)
        if not verdict.ok:
            warnings.warn(str(verdict), stacklevel=2)
        else:
            self._log(f"torchmove: verified: {counted(verdict.tensors, 'tensor')} on {on}")
        for note in verdict.notes:  # about what was not given
            self._log(f"torchmove: {note}")

    def _park_optimizers(self, optimizers: Sequence[Any]) -> None:
        """Park optimizer state. The parameters stay: a validation runs the model."""
        if self._park_during is None or self._parked_optimizers is not None:
            return
        states = [state for optimizer in optimizers for state in optimizer.state.values()]
        # With the weights in the plan, state that shares memory with one is refused instead of separated from it.
        groups = (group for optimizer in optimizers for group in optimizer.param_groups)
        weights = [each.detach() for group in groups for each in group["params"]]
        if states:
            self._parked_optimizers = park(states, weights, keep=[weights], progress=False)

    def _wake_optimizers(self) -> None:
        """Bring optimizer state back, if it is parked."""
        state = self._parked_optimizers
        if state is None:
            return
        state.wake(progress=False)
        self._parked_optimizers = None
        self._log(f"torchmove: optimizer state parked during {self._park_during}: {_receipt_of(state)}")


def _receipt_of(state: Parked) -> str:
    """A parked and woken state in one line."""
    receipt, back = state.receipt, state.wake()
    if not receipt.plan.moves:
        return "nothing: every tensor is on the CPU or kept"
    size = f"{counted(receipt.plan.tensors, 'tensor')}, {readable_bytes(receipt.plan.nbytes)}"
    freed = "".join(f"; {readable_bytes(nbytes)} freed on {device}" for device, nbytes in state.freed.items())
    return f"{size}, in {readable_seconds(receipt.seconds)}, back in {readable_seconds(back.seconds)}{freed}"
