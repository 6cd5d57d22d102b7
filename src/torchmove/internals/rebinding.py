"""Rebind tensors to other storages: version counters, hooks, gradients and gradient accumulators are handed over.

A view shares the version counter of its base, and `tensor.detach()` that of the tensor; `tensor.data` has its own.

A leaf holds its gradient accumulator by a weak reference: the node lives as long as a graph, or a handle of a hook,
holds it. When a leaf gets a storage on another device, torch makes a new node for it, without the hooks of the old one.
The new node therefore gets a hook that calls those of the old one, whose handles keep working. The dict of the old
node's hooks keeps the new node alive.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import torch
from torch import Tensor, UntypedStorage

from torchmove.internals.graphs import UNTOLD, graph_of, may_have_gradient
from torchmove.internals.guards import Switch, Undo, without_modes
from torchmove.internals.storages import View, dressed, make_view, undressed

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


def by_counter(tensors: Sequence[Tensor]) -> list[list[int]]:
    """The indices of tensors that share a version counter, a list for each counter that several share.

    torch does not tell which tensors share a counter. So each counter is set to a different number: the tensors that
    show the same number share one. All are restored at once.
    """
    counted = [index for index, tensor in enumerate(tensors) if not tensor.is_inference()]
    found: dict[int, list[int]] = {}
    with _Numbered([tensors[index] for index in counted]) as numbered, numbered:
        for index in counted:
            found.setdefault(tensors[index]._version, []).append(index)
    return [indices for indices in found.values() if len(indices) > 1]


class _Numbered(Switch):
    """While open, each version counter of some tensors has a different number."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = tuple(tensors)
        self._before = tuple([tensor._version for tensor in tensors])

    def switch(self) -> None:
        first = max(self._before, default=0) + 1
        _set_versions(self._tensors, tuple(range(first, first + len(self._tensors))))

    def restore(self) -> None:
        _set_versions(self._tensors, self._before)


def version_of(tensor: Tensor) -> int:
    return tensor._version


def set_version_of(tensor: Tensor, like: Tensor) -> None:
    if not like.is_inference():
        _set_versions((tensor,), (like._version,))


def _set_versions(tensors: tuple[Tensor, ...], versions: tuple[int, ...]) -> None:
    torch._C._autograd._unsafe_set_version_counter(tensors, versions)


class Rebinding(NamedTuple):
    """A tensor, the new view that it will become, and whether to swap implementations or to set `.data`."""

    tensor: Tensor
    view: Tensor
    by_swap: bool


def rebinding(tensor: Tensor, view: Tensor, *, moving: Container[int]) -> Rebinding:
    """Decide how to rebind a tensor, given the ids of all tensors that move with it."""
    compatible = torch._has_compatible_shallow_copy_type(tensor, view)
    return Rebinding(tensor, view, not compatible or _keeps_old_base(tensor, moving))


def with_shared_versions(several: Sequence[Rebinding]) -> list[Rebinding]:
    """The same rebindings, changed so that tensors that share a version counter still share it afterwards.

    Setting `.data =` keeps the tensor's counter. A swapped-in implementation brings its own, so it is made from a
    tensor that has the right counter.
    """
    rebindings = list(several)
    if len(rebindings) < 2 or not any(each.by_swap for each in rebindings):
        return rebindings
    for indices in by_counter([each.tensor for each in rebindings]):
        kept = [each.tensor for each in map(rebindings.__getitem__, indices) if not each.by_swap]
        counted = kept[0] if kept else rebindings[indices[0]].view
        for index in indices:
            each = rebindings[index]
            if each.by_swap and each.view is not counted:
                rebindings[index] = each._replace(view=_counted_with(counted, each.view))
    return rebindings


def _counted_with(counted: Tensor, view: Tensor) -> Tensor:
    """A tensor, with the version counter of another tensor."""
    shared = undressed(counted).detach()
    # Most devices do not allow `.data =` between a tensor with the conjugate or negative bit and one without.
    _set_data(shared, undressed(view))
    return dressed(shared, view).detach()


def composite_rebinding(tensor: Tensor, rebuilt: Tensor) -> Rebinding:
    # A compressed sparse tensor accepts `.data =` silently but keeps its old values: composite tensors are always
    # swapped.
    return Rebinding(tensor, rebuilt, by_swap=True)


def _keeps_old_base(tensor: Tensor, moving: Container[int]) -> bool:
    """Whether the base of a view is not rebound with it, and would keep the old storage alive.

    A view holds its base, and mostly nothing else does. A swapped-in implementation has no base. A negated view also
    holds the conjugated view that it was made from.
    """
    return tensor._is_view() and (tensor.is_neg() or id(tensor._base) not in moving)


def rebind(each: Rebinding, undo: Undo) -> None:
    """Make a tensor a view of its new storage, after putting the reverse step on the undo list."""
    if each.by_swap:
        _rebind_by_swap(each, undo)
    else:
        _rebind_data(each, undo)


def rebind_dense(
    tensors: Sequence[Tensor],
    copies: list[Tensor],
    before: Sequence[UntypedStorage],
    views: Callable[[], Iterable[View]],
    undo: Undo,
) -> None:
    """Rebind dense tensors to their copies with `.data =`, all at once. Empties the list of copies.

    `before` and `views` are their present storages and views; only the undo step uses them.
    """
    undo.append(lambda: _set_all(tensors, map(make_view, before, views())))
    copies.reverse()
    # Free each copy right after its memory has its new owner, while it is still in the processor's cache.
    _set_all(tensors, map(list.pop, repeat(copies, len(copies))))


def _set_all(tensors: Sequence[Tensor], views: Iterable[Tensor]) -> None:
    for tensor, view in zip(tensors, views, strict=True):
        tensor.data = view


def can_rebind_dense(tensor: Tensor, copy: Tensor) -> bool:
    """Whether `.data =` works between the devices of these two; the same for all dense tensors on this route."""
    return torch._has_compatible_shallow_copy_type(tensor, copy)


def can_rebind_result(tensor: Tensor, target: torch.device) -> bool:
    """Whether the result of a computation can move to a device.

    A retained gradient refers weakly to the implementation of its tensor, and torch refuses to swap such a one.
    """
    kinds = {tensor.device.type, target.type}
    by_swap = tensor._is_view() or not (len(kinds) == 1 or kinds <= _TAKES_DATA)
    return not (tensor.retains_grad and by_swap)


# torch allows `.data =` between these device types.
_TAKES_DATA = {"cpu", "cuda", "xpu", "mps"}


class Gradients:
    """The gradients of some tensors, to be set again after both have been rebound.

    Autograd holds the implementation of a gradient, not the Python object: they are read before the first swap.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        # Other tensors have none, and warn when `.grad` is read.
        some = filter(may_have_gradient, tensors)
        self._pairs = [(tensor, tensor.grad) for tensor in some if tensor.grad is not None]
        for tensor, gradient in self._pairs:
            # A leaf may accept gradients of another dtype (`grad_dtype`), or of any dtype (None).
            dtype = tensor.grad_dtype if tensor.is_leaf else tensor.dtype
            if tensor.shape != gradient.shape or dtype not in (gradient.dtype, None):
                wrong, right = (f"{each.dtype} {tuple(each.shape)}" for each in (gradient, tensor))
                raise RuntimeError(f"a gradient is {wrong}, its tensor is {right}. Fix: tensor.grad = None")

    def set(self) -> None:
        for tensor, gradient in self._pairs:
            tensor.grad = gradient


def _rebind_data(each: Rebinding, undo: Undo) -> None:
    tensor, before = each.tensor, _data(each.tensor)
    undo.append(lambda: _set_data(tensor, before))
    _set_data(tensor, each.view)


def _data(tensor: Tensor) -> Tensor:
    if tensor.is_inference():
        with torch.inference_mode():
            return tensor.data
    return tensor.data


def _set_data(tensor: Tensor, view: Tensor) -> None:
    # `.data =` also takes over whether the source is an inference tensor, so the modes must agree.
    if view.is_inference():
        with torch.inference_mode():
            tensor.data = view
    else:
        tensor.data = view


def _rebind_by_swap(each: Rebinding, undo: Undo) -> None:
    tensor, other = each.tensor, each.view
    graph = graph_of(tensor)
    if graph in (None, UNTOLD):
        with torch.inference_mode(tensor.is_inference()):
            other.requires_grad_(tensor.requires_grad)
        if graph is None and tensor.grad_dtype is not tensor.dtype:
            other.grad_dtype = tensor.grad_dtype
    set_version_of(other, like=tensor)
    hooks, late_hooks = tensor._backward_hooks, tensor._post_accumulate_grad_hooks
    before = tensor._cdata
    # A second swap undoes the first one, but only if that took place: the implementation that is there now tells,
    # wherever an exception was raised.
    undo.append(lambda: torch._C._swap_tensor_impl(tensor, other) if tensor._cdata != before else None)
    torch._C._swap_tensor_impl(tensor, other)
    # The Python object keeps the dicts of hooks; the new implementation has to register them.
    if hooks is not None:
        tensor._backward_hooks = hooks
    if late_hooks is not None:
        tensor._post_accumulate_grad_hooks = late_hooks
