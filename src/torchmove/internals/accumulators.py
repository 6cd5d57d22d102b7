"""Gradient accumulators: the nodes in which every graph over a leaf ends, and the hooks on them.

A leaf knows its accumulator only weakly: it lives as long as a graph, or whoever put hooks on it. Torch gives a leaf
another one when it looks at another kind of memory, and would forget the hooks. So the new one forwards to the hooks of
the old one, whose removal and additions keep working, and lives as long as that: their dict keeps it.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from torchmove.internals.graphs import graph_of
from torchmove.internals.modes import without_modes

Hooks = OrderedDict[int, Callable[..., Any]]


class Accumulators:
    """Those of some leaves that somebody holds, as they are now."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        # A node holds the implementation of its leaf, which is seen in the use count: mostly nobody does.
        held = [tensor for tensor in tensors if tensor._use_count() > 1]  # type: ignore[attr-defined]
        leaves = [each for each in held if each.requires_grad and graph_of(each) is None and not each.is_inference()]
        self._nodes = [(leaf, _accumulator(leaf)) for leaf in leaves]

    def hand_over(self) -> None:
        """Make the hooks fire for what the leaves look at now. Once they look back, the same takes it back."""
        for leaf, node in self._nodes:
            hooks = [_hooks_of(node, kind) for kind in _KINDS]
            if any(hooks):
                _hand_over(hooks, node, _accumulator(leaf))

    def let_go(self) -> None:
        """The old nodes run no more. One whose leaf has another implementation now would keep the old memory."""
        for leaf, node in self._nodes:
            if node.variable is not leaf:
                node.variable.data = torch.empty(0, dtype=leaf.dtype, device=node.variable.device)
        self._nodes.clear()


def _accumulator(leaf: Tensor) -> Any:
    with torch.enable_grad(), without_modes():
        return leaf.view_as(leaf).grad_fn.next_functions[0][0]  # type: ignore[union-attr]


_KINDS = ("register_hook", "register_prehook")


def _hooks_of(node: Any, kind: str) -> Hooks:
    """The dict in which a node keeps its hooks of a kind. Only the handle of a hook knows it."""
    handle = getattr(node, kind)(_nothing)
    hooks: Hooks = handle.hooks_dict_ref()
    for number in [number for number, hook in hooks.items() if hook is _nothing]:
        del hooks[number]  # one that was left when this was broken off, too
    return hooks


def _nothing(*_: object) -> None:
    return None


def _hand_over(several: Iterable[Hooks], node: Any, now: Any) -> None:
    for kind, hooks in zip(_KINDS, several, strict=True):
        # What a node forwards to since an earlier move is forwarded by its successor directly.
        forwards = [hook for hook in hooks.values() if type(hook) is _Forward]
        if now is node:
            hooks.__dict__.pop(_KEPT, None)
        else:
            forwards.append(_Forward(hooks))
        for forward in forwards:
            forward.keep(now)
            if now is not node:
                getattr(now, kind)(forward)


class _Forward:
    """A hook that calls the hooks of another node. They are that node's: with it they go."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = weakref.ref(hooks)

    def keep(self, node: Any) -> None:
        hooks = self._hooks()
        if hooks is not None:
            hooks.__dict__[_KEPT] = node

    def __call__(self, gradients: Any, *outputs: Any) -> Any:
        """Behind the node hooks get the gradients of its inputs and outputs, before it those of its outputs. What one
        returns takes the place of the first."""
        given = gradients
        for hook in [*(self._hooks() or {}).values()]:
            result = None if type(hook) is _Forward else hook(gradients, *outputs)
            gradients = gradients if result is None else result
        return None if gradients is given else gradients


_KEPT = "_torchmove_successor"
