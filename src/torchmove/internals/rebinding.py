"""Version counters, by which autograd notices in-place writes.

Views share the counter of their base, and so do tensors that were detached from one another; `tensor.data` has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from itertools import repeat
from typing import NamedTuple

import torch
from torch import Tensor, UntypedStorage

from torchmove.internals.graphs import UNTOLD, graph_of, may_have_gradient
from torchmove.internals.metadata import View
from torchmove.internals.switch import Switch
from torchmove.internals.undo import Undo
from torchmove.internals.views import dressed, make_view, undressed


def by_counter(tensors: Sequence[Tensor]) -> list[list[int]]:
    """The indices of tensors that share a version counter, a list for each counter that several share.

    Torch does not say whose counter a tensor has. So each is set to a number that no other has, and those that show it
    too share it; all are set back at once.
    """
    counted = [index for index, tensor in enumerate(tensors) if not tensor.is_inference()]
    found: dict[int, list[int]] = {}
    with _Numbered([tensors[index] for index in counted]) as numbered, numbered:
        for index in counted:
            found.setdefault(tensors[index]._version, []).append(index)
    return [indices for indices in found.values() if len(indices) > 1]


class _Numbered(Switch):
    """While open, each version counter of some tensors shows a number of its own."""

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
    """A tensor, the window it shall look through, and the way there."""

    tensor: Tensor
    window: Tensor
    by_swap: bool


def rebinding(tensor: Tensor, window: Tensor, *, moving: Container[int]) -> Rebinding:
    """How to rebind a tensor, given the ids of all tensors that move with it."""
    compatible = torch._has_compatible_shallow_copy_type(tensor, window)
    return Rebinding(tensor, window, not compatible or _is_loose_view(tensor, moving))


def with_shared_versions(several: Sequence[Rebinding]) -> list[Rebinding]:
    """The same rebindings of tensors that share a storage; those that share a version counter share it afterwards too.

    Where `.data =` is set, the counter stays with the tensor. An implementation that is swapped in brings its own, and
    so is made from one that has the right counter.
    """
    rebindings = list(several)
    if not any(each.by_swap for each in rebindings):
        return rebindings
    for indices in by_counter([each.tensor for each in rebindings]):
        kept = [each.tensor for each in map(rebindings.__getitem__, indices) if not each.by_swap]
        counted = kept[0] if kept else rebindings[indices[0]].window
        for index in indices:
            each = rebindings[index]
            if each.by_swap and each.window is not counted:
                rebindings[index] = each._replace(window=_counted_with(counted, each.window))
    return rebindings


def _counted_with(counted: Tensor, window: Tensor) -> Tensor:
    """The window, with the version counter of another tensor."""
    shared = undressed(counted).detach()
    # Between tensors that are read conjugated or negated and others, most devices do not allow `.data =`.
    _set_data(shared, undressed(window))
    return dressed(shared, window).detach()


def composite_rebinding(tensor: Tensor, rebuilt: Tensor) -> Rebinding:
    # A compressed sparse tensor takes `.data =` without a word and keeps its old values: shells are always swapped.
    return Rebinding(tensor, rebuilt, by_swap=True)


def _is_loose_view(tensor: Tensor, moving: Container[int]) -> bool:
    """A view holds its base. If that is not rebound too (mostly nobody has it), it would hold the old storage for ever;
    a new implementation is a view of nothing. A negated view holds the conjugated one that it came through besides."""
    return tensor._is_view() and (tensor.is_neg() or id(tensor._base) not in moving)


def rebind(each: Rebinding, undo: Undo) -> None:
    """Make a tensor look through its new window, with the way back on the undo list."""
    if each.by_swap:
        _rebind_by_swap(each, undo)
    else:
        _rebind_data(each, undo)


def rebind_dense(
    tensors: Sequence[Tensor],
    copies: list[Tensor],
    before: Sequence[UntypedStorage],
    windows: Callable[[], Iterable[View]],
    undo: Undo,
) -> None:
    """Make dense tensors look at their copies by `.data =`, all at once. Uses the copies up.

    `before` and `windows` are the storages that they look at now, and how; only the way back asks for those.
    """
    undo.append(lambda: _set_all(tensors, map(make_view, before, windows())))
    copies.reverse()
    # Each copy goes as soon as its memory has a new owner: later it would have to be fetched again, to be let go of.
    _set_all(tensors, map(list.pop, repeat(copies, len(copies))))


def _set_all(tensors: Sequence[Tensor], windows: Iterable[Tensor]) -> None:
    for tensor, window in zip(tensors, windows, strict=True):
        tensor.data = window


def can_rebind_dense(tensor: Tensor, copy: Tensor) -> bool:
    """One answer for all dense tensors that go the same way."""
    return torch._has_compatible_shallow_copy_type(tensor, copy)


def can_rebind_result(tensor: Tensor, target: torch.device) -> bool:
    """Can the result of a computation go to a device? The gradient it retains holds its implementation by a weak
    reference, and such a one cannot be swapped."""
    kinds = {tensor.device.type, target.type}
    by_swap = tensor._is_view() or not (len(kinds) == 1 or kinds <= _TAKES_DATA)
    return not (tensor.retains_grad and by_swap)


# Between these kinds of devices torch allows `.data =`.
_TAKES_DATA = {"cpu", "cuda", "xpu", "mps"}


class Gradients:
    """The gradients of some tensors, to be set again after the two have been rebound.

    Autograd holds the implementation of a gradient, not its object: they are read before the first swap.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        # Others have none, and warn when they are asked for it.
        some = filter(may_have_gradient, tensors)
        self._pairs = [(tensor, tensor.grad) for tensor in some if tensor.grad is not None]
        for tensor, gradient in self._pairs:
            # A leaf may take gradients of another dtype (`grad_dtype`), or of any (None).
            dtype = tensor.grad_dtype if tensor.is_leaf else tensor.dtype
            if tensor.shape != gradient.shape or dtype not in (gradient.dtype, None):
                theirs, ours = (f"{each.dtype} {tuple(each.shape)}" for each in (gradient, tensor))
                raise RuntimeError(f"a gradient of {theirs} does not fit its tensor of {ours}: set it to None first")

    def set(self) -> None:
        for tensor, gradient in self._pairs:
            tensor.grad = gradient


def _rebind_data(each: Rebinding, undo: Undo) -> None:
    tensor, before = each.tensor, _data(each.tensor)
    undo.append(lambda: _set_data(tensor, before))
    _set_data(tensor, each.window)


def _data(tensor: Tensor) -> Tensor:
    if tensor.is_inference():
        with torch.inference_mode():
            return tensor.data
    return tensor.data


def _set_data(tensor: Tensor, window: Tensor) -> None:
    # `.data =` takes over whether the window is an inference tensor, so the two must agree.
    if window.is_inference():
        with torch.inference_mode():
            tensor.data = window
    else:
        tensor.data = window


def _rebind_by_swap(each: Rebinding, undo: Undo) -> None:
    tensor, other = each.tensor, each.window
    graph = graph_of(tensor)
    if graph in (None, UNTOLD):
        with torch.inference_mode(tensor.is_inference()):
            other.requires_grad_(tensor.requires_grad)
        if graph is None and tensor.grad_dtype is not tensor.dtype:
            other.grad_dtype = tensor.grad_dtype
    set_version_of(other, like=tensor)
    hooks, late_hooks = tensor._backward_hooks, tensor._post_accumulate_grad_hooks
    before = tensor._cdata
    # A second swap undoes the first, and only then: whatever is raised, before or after, is told by what is there now.
    undo.append(lambda: torch._C._swap_tensor_impl(tensor, other) if tensor._cdata != before else None)
    torch._C._swap_tensor_impl(tensor, other)
    # The dicts of hooks stay with the object; the new implementation has to be told of them.
    if hooks is not None:
        tensor._backward_hooks = hooks
    if late_hooks is not None:
        tensor._post_accumulate_grad_hooks = late_hooks
