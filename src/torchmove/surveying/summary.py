"""The Summary: an inventory by module, with parameters, bytes by kind, devices and dtypes.

A tensor counts in the module that holds it. Gradients and optimizer state count in the module of their parameter. Bytes
that several tensors share count once, in the module of the first one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from torch import nn

from torchmove.internals.storages import Metadata
from torchmove.results import Result
from torchmove.surveying.paths import KEYED, Path, matcher

if TYPE_CHECKING:
    from torchmove.surveying.inventory import Inventory, StateTensor

Sort = Literal["bytes", "path", "parameters"]


class ModuleSummary(NamedTuple):
    """A module, or another given object, with everything below it: number of elements, and bytes by kind of tensor."""

    path: Path
    type: str
    depth: int
    tensors: int
    parameters: int
    trainable: int
    parameter_bytes: int
    buffer_bytes: int
    gradient_bytes: int
    state_bytes: int
    other_bytes: int
    devices: tuple[str, ...]
    dtypes: tuple[str, ...]

    @property
    def nbytes(self) -> int:
        return self.parameter_bytes + self.buffer_bytes + self.gradient_bytes + self.state_bytes + self.other_bytes


class CountedOnce(NamedTuple):
    """A path whose bytes count at another path: of the same tensor, or of the first tensor on the same storage."""

    path: Path
    counted_at: Path


@dataclass(frozen=True, eq=False, repr=False)
class Summary(Result):
    """A state by module: parameters, bytes by kind, devices and dtypes.

    Attributes:
        modules: a row for each module down to the depth, parents first: `path`, `type`, `depth`, `parameters` and
            `trainable` (numbers of elements), `parameter_bytes`, `buffer_bytes`, `gradient_bytes`, `state_bytes`,
            `other_bytes`, `nbytes`, `devices`, `dtypes`. A row includes everything below it. The first rows have depth
            0: the given objects.
        counted_once: further paths of tensors and shared storages, each with the path at which its bytes count.
    """

    roots: tuple[str, ...]
    depth: int
    pattern: str  # "" for all tensors
    modules: tuple[ModuleSummary, ...]
    counted_once: tuple[CountedOnce, ...]

    @property
    def parameters(self) -> int:
        """The number of elements of all parameters."""
        return sum(row.parameters for row in self.modules if not row.depth)

    @property
    def trainable(self) -> int:
        """The number of elements of the parameters that require gradients."""
        return sum(row.trainable for row in self.modules if not row.depth)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors. Shared bytes count once."""
        return sum(row.nbytes for row in self.modules if not row.depth)


_KINDS = {"parameter": 0, "buffer": 1, "gradient": 2, "state": 3}
_OTHER = 4


@dataclass
class _Node:
    """A module in the tree, with what is counted in it and below it."""

    path: Path
    type: str
    parent: _Node | None
    children: list[_Node] = field(default_factory=list)
    has_tensors: bool = False
    tensors: int = 0
    parameters: int = 0
    trainable: int = 0
    nbytes: list[int] = field(default_factory=lambda: [0] * 5)
    devices: dict[str, None] = field(default_factory=dict)
    dtypes: dict[str, None] = field(default_factory=dict)

    def row(self, depth: int) -> ModuleSummary:
        parameters, buffers, gradients, state, other = self.nbytes
        return ModuleSummary(
            path=self.path,
            type=self.type,
            depth=depth,
            tensors=self.tensors,
            parameters=self.parameters,
            trainable=self.trainable,
            parameter_bytes=parameters,
            buffer_bytes=buffers,
            gradient_bytes=gradients,
            state_bytes=state,
            other_bytes=other,
            devices=tuple(self.devices),
            dtypes=tuple(self.dtypes),
        )

    def rows(self, depth: int, most: int, order: Callable[[_Node], Any] | None) -> Iterator[ModuleSummary]:
        yield self.row(depth)
        if depth < most:
            children = [child for child in self.children if child.has_tensors]
            for child in sorted(children, key=order) if order else children:
                yield from child.rows(depth + 1, most, order)


class _Tree:
    """The modules of an inventory. One that is archived does not know them: there, every step of a path is one."""

    def __init__(self, inventory: Inventory) -> None:
        self._types = {str(path): type(each).__name__ for each, path in inventory.holders.values()}
        modules = [str(path) for each, path in inventory.holders.values() if isinstance(each, nn.Module)]
        self._modules = {*modules, *inventory.roots} if inventory.holders else None
        self._nodes: dict[str, _Node] = {}
        self._known: dict[int, tuple[Path, _Node]] = {}  # keeps the path: its id stays unique
        for _, path in inventory.holders.values():  # in the order of the traversal
            if self._is_module(path):
                self.node(path)

    def _is_module(self, path: Path) -> bool:
        return path.before is None or self._modules is None or str(path) in self._modules

    def node(self, path: Path) -> _Node:
        """The node of the module at this path, or of the innermost module around it."""
        if id(path) in self._known:
            return self._known[id(path)][1]
        if path.before is not None and not self._is_module(path):
            node = self.node(path.before)
        else:
            node = self._nodes.get(str(path)) or self._added(path)
        self._known[id(path)] = path, node
        return node

    def _added(self, path: Path) -> _Node:
        parent = None if path.before is None else self.node(path.before)
        node = self._nodes[str(path)] = _Node(path, self._types.get(str(path), ""), parent)
        if parent is not None:
            parent.children.append(node)
        return node

    def roots(self) -> list[_Node]:
        return [node for node in self._nodes.values() if node.parent is None]


def summarize(inventory: Inventory, depth: int, sort: Sort | None, pattern: str) -> Summary:
    if type(depth) is not int or depth < 0:
        raise ValueError(f"depth must be 0 or more, not {depth!r}")
    tree, order, fits = _Tree(inventory), order_of(sort), matcher(pattern) if pattern else None
    counted_once: list[CountedOnce] = []
    shares = dict(_shared_bytes(inventory))
    for index, entry in enumerate(inventory.tensors):
        path = entry.path
        place = _counted_at(entry, path, inventory.roots)
        if fits is None or fits(path) or fits(place):
            nbytes, first = shares.get(index, (entry.nbytes, index))
            _count(
                tree.node(place if place.before is None else place.before),
                inventory.tensors.metadata,
                index,
                entry.role,
                nbytes,
            )
            if nbytes < entry.nbytes and first != index:
                counted_once.append(CountedOnce(path, inventory.tensors[first].path))
            for other in inventory.aliases(entry):
                tree.node(other if other.before is None else other.before).has_tensors = True
                counted_once.append(CountedOnce(other, path))
    rows = _rows_of(tree, depth, order)
    return Summary(inventory.roots, depth, pattern, tuple(rows), tuple(counted_once))


def _rows_of(tree: _Tree, depth: int, order: Callable[[Any], Any] | None) -> Iterator[ModuleSummary]:
    for node in reversed([*_below(tree.roots())]):
        if node.parent is not None:
            _add(node, node.parent)
    roots = [node for node in tree.roots() if node.has_tensors]
    for node in sorted(roots, key=order) if order else roots:
        yield from node.rows(0, depth, order)


def _below(nodes: list[_Node]) -> Iterator[_Node]:
    """The nodes and all below them, parents first."""
    todo = [*nodes]
    while todo:
        node = todo.pop()
        yield node
        todo.extend(node.children)


def _add(node: _Node, parent: _Node) -> None:
    parent.has_tensors |= node.has_tensors
    parent.tensors += node.tensors
    parent.parameters += node.parameters
    parent.trainable += node.trainable
    parent.nbytes = [mine + more for mine, more in zip(parent.nbytes, node.nbytes, strict=True)]
    parent.devices |= node.devices
    parent.dtypes |= node.dtypes


def _count(node: _Node, metadata: Metadata, index: int, role: str, nbytes: int) -> None:
    dtype = metadata.dtypes[index]
    node.has_tensors = True
    node.tensors += 1
    node.nbytes[_KINDS.get(role, _OTHER)] += nbytes
    node.devices[str(metadata.devices[index])] = None
    node.dtypes[str(dtype).removeprefix("torch.")] = None
    if role == "parameter":
        whole = nbytes and nbytes >= metadata.nbytes[index]  # an uninitialized parameter has no bytes
        elements = math.prod(metadata.shapes[index]) if whole else nbytes // dtype.itemsize
        node.parameters += elements
        node.trainable += elements if metadata.requires_grads[index] else 0


def _counted_at(entry: StateTensor, path: Path, roots: tuple[str, ...]) -> Path:
    """The path of the parameter to which a gradient or optimizer state belongs, else the tensor's own path."""
    if entry.role == "gradient" and path.before is not None:
        return path.before
    step: Path | None = path if entry.role == "state" else None
    while step is not None and step.how is not KEYED:
        step = step.before
    return step.what if step is not None and next(step.what.steps()).what in roots else path


def _shared_bytes(inventory: Inventory) -> Iterator[tuple[int, tuple[int, int]]]:
    """Of each tensor on a storage with several: the bytes to count, which sum to those of the storage, and the first
    tensor on it."""
    sizes = inventory.tensors.metadata.nbytes
    for storage in inventory.storages.special.values():
        first, *others = storage.indices
        left = inventory.bytes_on(storage)
        shares = {first: min(left, sizes[first])}
        left -= shares[first]
        for index in others:
            shares[index] = min(left, sizes[index])
            left -= shares[index]
        shares[first] += left
        yield from ((index, (share, first)) for index, share in shares.items())


def order_of(sort: Sort | None) -> Callable[[Any], Any] | None:
    """The key for `sorted` of rows with a path, bytes and parameters; None: as found."""
    orders: dict[str | None, Callable[[Any], Any] | None] = {
        None: None,
        "bytes": lambda row: -_total(row.nbytes),
        "parameters": lambda row: -row.parameters,
        "path": lambda row: natural(str(row.path)),
    }
    if sort not in orders:
        raise ValueError(f"sort must be 'bytes', 'path' or 'parameters', not {sort!r}")
    return orders[sort]


def _total(nbytes: int | list[int]) -> int:
    return nbytes if isinstance(nbytes, int) else sum(nbytes)


def natural(text: str) -> list[tuple[int, str]]:
    """A key that sorts `blocks[2]` before `blocks[10]`."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", text)]
