"""An undo list: each undo step is added before its change is made; running them in reverse restores everything."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from torchmove.internals.guards import HeldInterrupts

Step = Callable[[], object]
_TRIES = 3


class Undo(list[Step]):
    """Undo steps, each of which can run again after it was interrupted. A step is removed only after it has run.

    `with undo, undo:` runs them all when the block raises. It is entered twice so that an exception during the first
    rollback, at any line, makes the second entry run the remaining steps.

    Attributes:
        failed: what could not be undone, as the message of the first step that failed repeatedly.
        error: the exception that the block raised.
    """

    def __init__(self, *, first: Step | None = None, always: bool = False) -> None:
        """`first`: a step to run before all others. `always`: run the steps even if the block succeeds."""
        super().__init__()
        self.failed = ""
        self.error: BaseException | None = None
        self._first, self._always = first, always
        self._first_error: BaseException | None = None

    def put_back(self) -> None:
        """Run all steps, the last one first. Exceptions raised meanwhile are raised at the end."""
        with HeldInterrupts() as interrupts, interrupts:
            if self and self._first is not None:
                self.append(self._first)
            while self:
                failure = self._failure_of(self[-1])
                self.failed = self.failed or failure
                self.pop()
        if self._first_error is not None:
            raise self._first_error

    def _failure_of(self, step: Step) -> str:
        for _ in range(_TRIES):
            try:
                step()
                return ""
            except BaseException as error:
                self._first_error = error if self._first_error is None else self._first_error
                failure = _text_of(error)
        return failure

    def __enter__(self) -> Undo:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None or self._always:
            self.error = error if self.error is None else self.error
            self.put_back()


def _text_of(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # the exception's own __str__ raises
        return type(error).__name__
