"""Gradient accumulators: the graph nodes that add gradients to leaves, and the hooks on those nodes.

A leaf holds its accumulator by a weak reference: the node lives as long as a graph, or a handle of a hook, holds it.
When a leaf gets a storage on another device, torch makes a new node for it, without the hooks of the old one. The new
node therefore gets a hook that calls those of the old one, whose handles keep working. The dict of the old node's hooks
keeps the new node alive.
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
    """The accumulators of those leaves that a graph or another object holds."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        # A node holds the implementation of its leaf, which raises its use count. Few leaves have one.
        held = [tensor for tensor in tensors if tensor._use_count() > 1]  # type: ignore[attr-defined]
        leaves = [each for each in held if each.requires_grad and graph_of(each) is None and not each.is_inference()]
        self._nodes = [(leaf, _accumulator(leaf)) for leaf in leaves]

    def hand_over(self) -> None:
        """Make the hooks fire for the leaves' present storages. Called again after a rollback, it undoes itself."""
        for leaf, node in self._nodes:
            hooks = [_hooks_of(node, kind) for kind in _KINDS]
            if any(hooks):
                _hand_over(hooks, node, _accumulator(leaf))

    def let_go(self) -> None:
        """Release the memory of the old nodes, which never run again, where a leaf was given a new implementation."""
        for leaf, node in self._nodes:
            if node.variable is not leaf:
                node.variable.data = torch.empty(0, dtype=leaf.dtype, device=node.variable.device)
        self._nodes.clear()


def _accumulator(leaf: Tensor) -> Any:
    with torch.enable_grad(), without_modes():
        return leaf.view_as(leaf).grad_fn.next_functions[0][0]  # type: ignore[union-attr]


_KINDS = ("register_hook", "register_prehook")


def _hooks_of(node: Any, kind: str) -> Hooks:
    """The dict in which a node keeps its hooks of one kind. Only the handle of a hook has a reference to it."""
    handle = getattr(node, kind)(_no_hook)
    hooks: Hooks = handle.hooks_dict_ref()
    for number in [number for number, hook in hooks.items() if hook is _no_hook]:
        del hooks[number]  # also one left by an interrupted call
    return hooks


def _no_hook(*_: object) -> None:
    return None


def _hand_over(all_hooks: Iterable[Hooks], node: Any, now: Any) -> None:
    for kind, hooks in zip(_KINDS, all_hooks, strict=True):
        # Where an earlier move made a node forward to another, the new node forwards to that one directly.
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
    """A hook that calls the hooks of another node. It refers to them weakly: they end with that node."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = weakref.ref(hooks)

    def keep(self, node: Any) -> None:
        hooks = self._hooks()
        if hooks is not None:
            hooks.__dict__[_KEPT] = node

    def __call__(self, gradients: Any, *outputs: Any) -> Any:
        """Call the hooks in order, each with the gradients that the one before it returned.

        A post-hook gets the gradients of the inputs and of the outputs, a pre-hook only those of the outputs.
        """
        given = gradients
        for hook in [*(self._hooks() or {}).values()]:
            result = None if type(hook) is _Forward else hook(gradients, *outputs)
            gradients = gradients if result is None else result
        return None if gradients is given else gradients


_KEPT = "_torchmove_successor"
