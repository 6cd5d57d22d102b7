"""Something of the process that is switched for a while, and switched back whatever happens.

Python may raise between any two lines: what a signal handler raises, what another thread sends. Between two lines of
`__enter__` or `__exit__` too, and no `try` of theirs covers that. So a switch is opened twice by one statement,
`with Switch() as it, it:`. The outer one only makes sure: what breaks off the inner one meets it.
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
    """`restore` may be called at any time and any number of times, also when `switch` was broken off."""

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
    """A decorator: the function runs while this is switched."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def call(*args: P.args, **options: P.kwargs) -> T:
            with make() as it, it:
                return function(*args, **options)

        return call

    return decorate
