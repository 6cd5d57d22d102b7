"""Containers: their items, and the attributes of those that are of a subclass."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from torchmove.internals.stored import ATOMS, attributes
from torchmove.surveying.paths import ATTRIBUTE, ITEM, KEY, KEYED, MEMBER, Child, Inner, Reader, make_child

_WITHOUT_ATTRIBUTES = {dict, OrderedDict, defaultdict, list, tuple, set, frozenset, deque}


def read_dict(holder: dict[Any, Any]) -> Iterator[Child]:
    for index, (key, value) in enumerate(dict.items(holder)):
        if type(key) in ATOMS:
            yield make_child((ITEM, key, value, None, None))
        elif issubclass(type(key), Tensor):
            yield Child(MEMBER, index, key)
            yield Child(KEYED, key, value)
        else:
            yield Child(KEY if type(key) is torch.device else MEMBER, index, key)
            yield Child(ITEM, key, value)
    yield from _attached_to(holder)


def read_sequence(holder: Any) -> Iterator[Child]:
    iterate = list.__iter__ if issubclass(type(holder), list) else deque.__iter__
    for index, value in enumerate(iterate(holder)):
        if type(value) not in ATOMS:
            yield make_child((ITEM, index, value, None, None))
    yield from _attached_to(holder)


def read_tuple(holder: tuple[Any, ...]) -> Iterator[Child]:
    names = type(holder).__dict__.get("_fields", ())
    for index, value in enumerate(tuple.__iter__(holder)):
        if type(value) not in ATOMS:
            yield Child(ATTRIBUTE, names[index], value) if names else Child(ITEM, index, value)
    yield from _attached_to(holder)


def read_set(holder: Any) -> Iterator[Child]:
    iterate = set.__iter__ if issubclass(type(holder), set) else frozenset.__iter__
    for index, value in enumerate(iterate(holder)):
        if type(value) not in ATOMS:
            yield Child(MEMBER, index, value)
    yield from _attached_to(holder)


def read_proxy(holder: MappingProxyType[Any, Any]) -> Iterator[Child]:
    for key, value in holder.items():
        yield Child(ITEM, key, value)


def read_inner(holder: Inner) -> Any:
    return holder.children


def _attached_to(holder: Any) -> Iterator[Child]:
    if type(holder) not in _WITHOUT_ATTRIBUTES:
        for name, value in attributes(holder):
            yield Child(ATTRIBUTE, name, value)


TABLE: dict[type | str, Reader] = {
    dict: read_dict,
    list: read_sequence,
    deque: read_sequence,
    tuple: read_tuple,
    set: read_set,
    frozenset: read_set,
    MappingProxyType: read_proxy,
    Inner: read_inner,
}


def read_object(holder: Any) -> Iterator[Child]:
    for name, value in attributes(holder):
        yield Child(ATTRIBUTE, name, value)
