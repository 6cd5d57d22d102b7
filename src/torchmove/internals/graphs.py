"""Which autograd graphs can still run backward? Moving a parameter under such a graph would make its backward nonsense.

Backward frees what the nodes saved. A graph that leads to one freed node is spent: its backward raises, whatever else
it leads to. A loss or an output that is kept after backward holds a spent graph, and stands in nobody's way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from torchmove.internals.collector import everything_of

# A graph ends at a parameter in a node of this kind; the node holds the parameter.
_LEAF_NODE = "AccumulateGrad"


UNTOLD = "a graph that torch does not tell"


def graph_of(tensor: Tensor) -> Any:
    """Its `grad_fn`. torch does not tell that of a view made without autograd whose base was written to with it."""
    try:
        return tensor.grad_fn
    except RuntimeError:
        return UNTOLD


def may_have_gradient(tensor: Tensor) -> bool:
    """Can it be asked for its gradient? The result of a computation answers with a warning, unless it retains one."""
    graph = graph_of(tensor)
    return graph is None or (graph is not UNTOLD and tensor.retains_grad)


def in_live_graphs(leaves: Sequence[Tensor], *, besides: Iterable[Tensor] = ()) -> set[int]:
    """The ids of those leaves that a graph which can still run leads to; graphs that end in `besides` do not count.

    All of them require a gradient.
    """
    # Whoever else holds a tensor's implementation is seen in its use count: mostly nobody, and we are done.
    suspects = {id(leaf) for leaf in leaves if leaf._use_count() > 1}  # type: ignore[attr-defined]
    return suspects & _leaves_of(_ends_of_graphs({id(tensor) for tensor in besides})) if suspects else set()


def with_spent_graphs(results: Iterable[Tensor]) -> set[int]:
    """The ids of those results of computations whose graphs cannot run backward any more."""
    spent = _Spent()
    return {id(result) for result in results if spent.has(result.grad_fn)}


def _ends_of_graphs(besides: set[int]) -> list[Any]:
    tensors = (each for each in everything_of(Tensor) if id(each) not in besides)
    return [graph for graph in map(graph_of, tensors) if graph not in (None, UNTOLD)]


def _leaves_of(ends: Iterable[Any]) -> set[int]:
    """The leaves of all graphs that can still run, by their ids."""
    spent = _Spent()
    todo = [end for end in ends if not spent.has(end)]
    leaves: set[int] = set()
    seen: set[Any] = set()
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if type(node).__name__ == _LEAF_NODE:
            leaves.add(id(node.variable))
        todo += [before for before, _ in node.next_functions]
    return leaves


class _Spent:
    """Which nodes lead to one that backward has freed. Each node is asked once, however many graphs lead to it."""

    def __init__(self) -> None:
        self._known: dict[Any, bool] = {}  # holds the nodes: Python's object of one lives as long as somebody has it

    def has(self, end: Any) -> bool:
        # Without recursion: a graph may be deeper than Python's stack. A node is answered for once all before it are.
        todo = [(end, False)]
        while todo:
            node, is_open = todo.pop()
            if node is None or (node in self._known and not is_open):
                continue
            before = [each for each, _ in node.next_functions if each is not None]
            if is_open:
                self._known[node] = self._known[node] or any(self._known[each] for each in before)
                continue
            self._known[node] = _is_freed(node)
            todo.append((node, True))
            todo += [(each, False) for each in before]
        return self._known[end]


def _is_freed(node: Any) -> bool:
    """Has backward freed something that the node saved? Unpacking nothing: that could run code of the user's."""
    for name in dir(type(node)):
        if not name.startswith(_RAW):
            continue
        try:
            records = getattr(node, name)
        except RuntimeError:  # torch's answer once a list of records is gone
            return True
        if isinstance(records, (tuple, list)):
            continue
        # An empty record was freed, or belongs to a tensor that was not needed. Asked for what it saved, only the freed
        # one raises. There is nothing to unpack in either.
        if records.data is None and records.unpack_hook is None and _raises(node, _SAVED + name.removeprefix(_RAW)):
            return True
    return False


def _raises(node: Any, name: str) -> bool:
    try:
        getattr(node, name)
    except RuntimeError:
        return True
    return False


_RAW, _SAVED = "_raw_saved_", "_saved_"
