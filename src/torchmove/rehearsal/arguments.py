"""What an operation is given and returns: values, and lists, tuples and dicts of them. No more: that is quicker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


def mapped(change: Callable[[Any], Any], given: Any) -> Any:
    kind = type(given)
    if kind is tuple:
        return tuple([mapped(change, each) for each in given])
    if kind is list:
        return [mapped(change, each) for each in given]
    if kind is dict:
        return {key: mapped(change, each) for key, each in given.items()}
    return change(given)


def leaves(given: Any) -> Iterator[Any]:
    kind = type(given)
    if kind is tuple or kind is list:
        for each in given:
            yield from leaves(each)
    elif kind is dict:
        for each in given.values():
            yield from leaves(each)
    else:
        yield given
