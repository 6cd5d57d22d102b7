"""An undo list: each step back is on it before the step is taken; run backwards, it leaves all as it was."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from torchmove.internals.interrupts import HeldInterrupts

Step = Callable[[], object]
_TRIES = 3


class Undo(list[Step]):
    """Steps that can be taken again, also after one was broken off. Each is off the list only once it has been taken.

    `with undo, undo:` takes them all when the block raises. Twice: what is raised within the inner roll-back, whatever
    it is and at whatever line, meets the outer one, which takes the steps that are left.

    Attributes:
        failed: what could not be undone, in the words of the first step that failed again and again.
        error: what the block raised.
    """

    def __init__(self, *, first: Step | None = None, always: bool = False) -> None:
        """`first`: the step to take before all others. `always`: take the steps however the block ends."""
        super().__init__()
        self.failed = ""
        self.error: BaseException | None = None
        self._first, self._always = first, always
        self._met: BaseException | None = None

    def put_back(self) -> None:
        """Take all steps, the last one first. What is raised meanwhile is raised when they have been taken."""
        with HeldInterrupts() as interrupts, interrupts:
            if self and self._first is not None:
                self.append(self._first)
            while self:
                failure = self._failure_of(self[-1])
                self.failed = self.failed or failure
                self.pop()
        if self._met is not None:
            raise self._met

    def _failure_of(self, step: Step) -> str:
        for _ in range(_TRIES):
            try:
                step()
                return ""
            except BaseException as error:
                self._met = error if self._met is None else self._met
                failure = _words(error)
        return failure

    def __enter__(self) -> Undo:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None or self._always:
            self.error = error if self.error is None else self.error
            self.put_back()


def _words(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # an exception of somebody's own that cannot say what it is
        return type(error).__name__
