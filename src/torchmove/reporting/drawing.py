"""The state as the page draws it: its tensors in columns, and their paths as a tree.

An optimizer keeps its state by parameter. In the tree that state is under the steps of the parameter's own path:
`optimizer.state[model.layer.weight]['step']` is five levels below the optimizer, not two.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from torchmove.surveying.paths import KEYED, Path

if TYPE_CHECKING:
    from torchmove.surveying.inventory import Inventory


class Tree(NamedTuple):
    """Paths as a tree, in columns. A node's text is its parent's text and its own label, unless `texts` has it. Parents
    come before their children; -1 is the parent of a root."""

    labels: list[str]
    parents: list[int]
    label: list[int]
    texts: dict[int, str]


class DrawnState(NamedTuple):
    """The tensors of a state in columns. A column of integers indexes the list before it."""

    tree: Tree
    node: list[int]
    nbytes: list[int]
    roles: list[str]
    role: list[int]
    devices: list[str]
    device: list[int]
    shared: list[tuple[int, list[int]]]  # bytes of a storage and its tensors, unless one tensor covers it
    also: list[tuple[int, str]]  # a tensor, and another path to it
    dtypes: Sequence[str] = ()
    dtype: Sequence[int] = ()
    shapes: Sequence[str] = ()
    shape: Sequence[int] = ()
    placed: Sequence[int] = ()  # the device after the move, or the expected one
    moves: str = ""  # for each tensor "1" if it moves, else "0"
    reasons: Sequence[str] = ()
    stays: Sequence[tuple[int, int]] = ()  # a tensor, and the reason
    words: tuple[str, str] = ("", "")  # for `device` and `placed`
    opened: int = 0  # which of the two the map shows first


_CPU = torch.device("cpu")


class _Growing:
    """A tree to which paths are added."""

    def __init__(self) -> None:
        self.tree = Tree([], [], [], {})
        self._labels: dict[str, int] = {}
        self._nodes: dict[tuple[int, str], int] = {}
        self._known: dict[tuple[int, int], tuple[Path, int, str]] = {}  # keeps the path: its id stays unique
        self._taken: set[int] = set()

    def leaf(self, path: Path) -> int:
        """A new node for a tensor."""
        before = (-1, "") if path.before is None else self._descend(-1, "", path.before)
        node, closing = self._step(-1, "", *before, path)
        if closing or node in self._taken:
            node = self._add(node, closing)
        self._taken.add(node)
        return node

    def _descend(self, base: int, opening: str, path: Path) -> tuple[int, str]:
        """The node of a path below `base`, and the brackets that the next label has to close."""
        new: list[Path] = []
        known: Path | None = path
        while known is not None and (base, id(known)) not in self._known:
            new.append(known)
            known = known.before
        node, pending = (base, opening) if known is None else self._known[base, id(known)][1:]
        for step in reversed(new):
            node, pending = self._step(base, opening, node, pending, step)
            self._known[base, id(step)] = step, node, pending
        return node, pending

    def _step(self, base: int, opening: str, node: int, pending: str, path: Path) -> tuple[int, str]:
        """The last step of a path, from the node before it."""
        if path.how is KEYED:
            node, pending = self._descend(node, f"{pending}[", path.what)
            return node, f"{pending}]"
        prefix, suffix = path.words()
        if not prefix:
            return self._child(node, pending + suffix), ""
        # The step's text encloses the steps before it, as a call does.
        node = self._child(node, suffix.lstrip("), ").rstrip(")"))
        self.tree.texts[node] = f"{'' if base < 0 else self._text(base)}{opening}{path}"
        return node, ""

    def _child(self, parent: int, label: str) -> int:
        node = self._nodes.get((parent, label))
        if node is None:
            node = self._nodes[parent, label] = self._add(parent, label)
        return node

    def _add(self, parent: int, label: str) -> int:
        tree = self.tree
        tree.parents.append(parent)
        tree.label.append(self._labels.setdefault(label, len(self._labels)))
        if len(self._labels) > len(tree.labels):
            tree.labels.append(label)
        return len(tree.parents) - 1

    def _text(self, node: int) -> str:
        text: list[str] = []
        while node >= 0:
            known = self.tree.texts.get(node)
            text.append(self.tree.labels[self.tree.label[node]] if known is None else known)
            node = -1 if known is not None else self.tree.parents[node]
        return "".join(reversed(text))


def drawn(inventory: Inventory) -> DrawnState:
    """The tensors of an inventory. `with_places` and `with_moves` add a plan."""
    entries, metadata, growing = inventory.tensors, inventory.tensors.metadata, _Growing()
    devices = _devices(metadata.devices)
    node = [growing.leaf(entry.path) for entry in entries]
    roles, role = indexed(entries.roles())
    dtypes, dtype = indexed(metadata.dtypes)
    shapes, shape = indexed(metadata.shapes)
    return DrawnState(
        tree=growing.tree,
        node=node,
        nbytes=metadata.nbytes,
        roles=roles,
        role=role,
        devices=list(map(str, devices)),
        device=_places(devices, metadata.devices),
        dtypes=[str(each).removeprefix("torch.") for each in dtypes],
        dtype=dtype,
        shapes=[str(list(each)) for each in shapes],
        shape=shape,
        shared=list(_shared(inventory)),
        also=list(_also(inventory)),
    )


def with_places(
    state: DrawnState, placement: Sequence[torch.device], words: tuple[str, str], *, opened: int
) -> DrawnState:
    """Add the second device of each tensor, which may be new to the state."""
    known = [*map(torch.device, state.devices)]
    new = [each for each in _devices(placement) if each not in known]
    devices = [*known, *new]
    placed = _places(devices, placement)
    return state._replace(devices=list(map(str, devices)), placed=placed, words=words, opened=opened)


def with_moves(state: DrawnState, moving: Iterable[int], reasons: Mapping[int, str]) -> DrawnState:
    moves = bytearray(b"0" * len(state.node))
    for index in moving:
        moves[index] = ord("1")
    names, why = indexed(reasons.values())
    return state._replace(moves=moves.decode(), reasons=names, stays=list(zip(reasons, why, strict=True)))


def indexed(values: Iterable[Any]) -> tuple[list[Any], list[int]]:
    """The distinct values, and the index of each value among them."""
    numbers: dict[Hashable, int] = {}
    column = [numbers.setdefault(value, len(numbers)) for value in values]
    return list(numbers), column


def _devices(devices: Iterable[torch.device]) -> list[torch.device]:
    """The devices in order, the CPU first, so that its color is the same on every page."""
    return sorted({*devices}, key=lambda device: (device != _CPU, str(device)))


def _places(devices: Sequence[torch.device], each: Iterable[torch.device]) -> list[int]:
    number = {device: index for index, device in enumerate(devices)}
    return [number[device] for device in each]


def _shared(inventory: Inventory) -> Iterable[tuple[int, list[int]]]:
    nbytes = inventory.tensors.metadata.nbytes
    for first, storage in sorted(inventory.storages.special.items()):
        size = nbytes[first] if storage.opaque else storage.nbytes
        if len(storage.indices) > 1 or size != nbytes[first]:
            yield size, list(storage.indices)


def _also(inventory: Inventory) -> Iterable[tuple[int, str]]:
    """Further paths of the tensors, except those in an optimizer's param_groups, which nearly every parameter has."""
    for tensor, paths in inventory.other_paths.items():
        index = inventory.number.get(tensor)
        if index is not None:
            yield from ((index, str(path)) for path in paths if "param_groups" not in path.names())
