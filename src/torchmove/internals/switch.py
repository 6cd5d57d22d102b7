"""Change a process-wide setting for a while, and restore it whatever happens.

Python may raise between any two lines, from a signal handler or from another thread; also between two lines of
`__enter__` or `__exit__`, where none of their own `try` blocks helps. So a switch is entered twice by one statement,
`with Switch() as it, it:`. The first entry only makes sure that an interrupt of the second one is handled.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import TracebackType
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
Self = TypeVar("Self", bound="Switch")


class Switch:
    """A setting to change. `restore` may be called at any time and repeatedly, also when `switch` was interrupted."""

    _is_open = False

    def switch(self) -> None:
        raise NotImplementedError

    def restore(self) -> None:
        raise NotImplementedError

    def __enter__(self: Self) -> Self:
        if self._is_open:
            self.switch()
        self._is_open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.restore()


def under(make: Callable[[], Switch]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """A decorator: the function runs while the setting is changed."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def call(*args: P.args, **options: P.kwargs) -> T:
            with make() as it, it:
                return function(*args, **options)

        return call

    return decorate
