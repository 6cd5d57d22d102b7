"""Which autograd graphs can still run backward: moving a parameter under such a graph would corrupt its backward.

Backward frees the tensors that the nodes saved. A graph that leads to one freed node is spent: its backward raises. A
loss or an output that is kept after backward holds a spent graph, and does not prevent a move.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor

from torchmove.internals.guards import everything_of

# A graph ends at a parameter in a node of this kind; the node holds the parameter.
_LEAF_NODE = "AccumulateGrad"


UNTOLD = "a graph that torch does not return"


def graph_of(tensor: Tensor) -> Any:
    """Its `grad_fn`. torch does not return that of a view made without autograd whose base was written to with it."""
    try:
        return tensor.grad_fn
    except RuntimeError:
        return UNTOLD


def may_have_gradient(tensor: Tensor) -> bool:
    """Whether reading `.grad` is safe: torch warns for a non-leaf tensor, unless it retains its gradient."""
    graph = graph_of(tensor)
    return graph is None or (graph is not UNTOLD and tensor.retains_grad)


def in_live_graphs(leaves: Sequence[Tensor], *, besides: Iterable[Tensor] = ()) -> set[int]:
    """The ids of those leaves that a graph which can still run leads to.

    Graphs that end in a tensor of `besides` do not count. All leaves require a gradient.
    """
    # Any other holder of a tensor's implementation raises its use count. Most have none, so this is quick.
    suspects = {id(leaf) for leaf in leaves if leaf._use_count() > 1}  # type: ignore[attr-defined]
    return suspects & _leaves_of(_ends_of_graphs({id(tensor) for tensor in besides})) if suspects else set()


def ends_of_live_graphs(leaves: Iterable[Tensor]) -> list[Tensor]:
    """The results of computations whose graphs lead to one of those leaves and can still run."""
    wanted, spent = {id(leaf) for leaf in leaves}, _LeadingTo(_is_freed)
    leading = _LeadingTo(lambda node: type(node).__name__ == _LEAF_NODE and id(node.variable) in wanted)
    ends = ((each, graph_of(each)) for each in everything_of(Tensor))
    with_graphs = [(each, graph) for each, graph in ends if graph not in (None, UNTOLD)]
    return [each for each, graph in with_graphs if not spent.has(graph) and leading.has(graph)]


def with_spent_graphs(results: Iterable[Tensor]) -> set[int]:
    """The ids of those results of computations whose graphs can no longer run backward."""
    spent = _LeadingTo(_is_freed)
    return {id(result) for result in results if spent.has(result.grad_fn)}


def _ends_of_graphs(besides: set[int]) -> list[Any]:
    tensors = (each for each in everything_of(Tensor) if id(each) not in besides)
    return [graph for graph in map(graph_of, tensors) if graph not in (None, UNTOLD)]


def _leaves_of(ends: Iterable[Any]) -> set[int]:
    """The ids of the leaves of all graphs that can still run."""
    spent = _LeadingTo(_is_freed)
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


class _LeadingTo:
    """Which nodes lead to a node of a kind. Each node is checked once, even if many graphs lead to it."""

    def __init__(self, is_one: Callable[[Any], bool]) -> None:
        self._is_one = is_one
        self._known: dict[Any, bool] = {}  # holding a node keeps its Python object, and so its id and hash

    def has(self, end: Any) -> bool:
        # Without recursion: a graph may be deeper than Python's stack. A node is decided once all before it are.
        todo = [(end, False)]
        while todo:
            node, is_second_visit = todo.pop()
            if node is None or (node in self._known and not is_second_visit):
                continue
            before = [each for each, _ in node.next_functions if each is not None]
            if is_second_visit:
                self._known[node] = self._known[node] or any(self._known[each] for each in before)
                continue
            self._known[node] = self._is_one(node)
            todo.append((node, True))
            todo += [(each, False) for each in before]
        return self._known[end]


def _is_freed(node: Any) -> bool:
    """Whether backward has freed what the node saved. Nothing is unpacked: that could run the user's hooks."""
    for name in dir(type(node)):
        if not name.startswith(_RAW):
            continue
        try:
            records = getattr(node, name)
        except RuntimeError:  # torch raises this once a list of records is freed
            return True
        if isinstance(records, (tuple, list)):
            continue
        # An empty record was either freed, or belongs to a tensor that was not needed. Reading the saved tensor raises
        # only for the freed one, and unpacks nothing for either.
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
