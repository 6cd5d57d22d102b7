"""Is an autograd graph alive over these parameters? Then moving them would make its backward nonsense.

A graph that has run backward is spent: a loss that is still in scope keeps its nodes, but they have let go of what they
saved and will never run again. Only a graph that still can run stands in the way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from torchmove._everything import everything_of

# A graph ends at a parameter in a node of this kind; the node holds the parameter.
_LEAF_NODE = "AccumulateGrad"


def in_live_graphs(leaves: Sequence[Tensor], *, besides: Iterable[Tensor] = ()) -> set[int]:
    """The ids of those leaves that a graph which can still run leads to; graphs that end in `besides` do not count.

    All of them require a gradient.
    """
    # Whoever else holds a tensor's implementation is seen in its use count: mostly nobody, and we are done.
    suspects = {id(leaf) for leaf in leaves if leaf._use_count() > 1}  # type: ignore[attr-defined]
    return suspects & _reached_from(_ends_of_graphs({id(tensor) for tensor in besides})) if suspects else set()


def _ends_of_graphs(besides: set[int]) -> list[Any]:
    tensors = (each for each in everything_of(Tensor) if id(each) not in besides)
    return [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]


def _reached_from(ends: Iterable[Any]) -> set[int]:
    reached: set[int] = set()
    seen: set[Any] = set()
    for end in ends:
        leaves, can_run = _walk(end, seen)
        if can_run:
            reached |= leaves
    return reached


def _walk(end: Any, seen: set[Any]) -> tuple[set[int], bool]:
    leaves: set[int] = set()
    saved: list[bool] = []
    todo = [end]
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if type(node).__name__ == _LEAF_NODE:
            leaves.add(id(node.variable))
        saved += _what_is_saved(node)
        todo += [before for before, _ in node.next_functions]
    # A graph that never saved anything (only sums, say) can run again and again.
    return leaves, any(saved) or not saved


def _what_is_saved(node: Any) -> list[bool]:
    """For each thing the node saved: does it still have it? Reads the raw records: unpacking could run user code."""
    names = [name for name in dir(type(node)) if name.startswith("_raw_saved_")]
    records: list[Any] = []
    for name in names:
        try:
            value = getattr(node, name)
        except RuntimeError:  # torch's answer once a custom function's records are gone
            return [False]
        records += value if isinstance(value, (tuple, list)) else [value]
    return [record.data is not None or record.unpack_hook is not None for record in records]
