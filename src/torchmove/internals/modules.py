"""Private names of `nn.Module`: `_apply`, which `Module.to` calls, and private attributes of torch's own modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn.utils import parametrize, prune

APPLY = "_apply"


def apply_of(kind: type[nn.Module]) -> Callable[..., Any]:
    """The `_apply` method of a module class."""
    return kind._apply


def call_apply(module: nn.Module, function: Callable[[Tensor], Tensor]) -> None:
    module._apply(function)  # type: ignore[no-untyped-call]


def flat_weights(module: nn.RNNBase) -> list[Tensor]:
    """The weights of a recurrent module, as its forward takes them."""
    return [each for each in module._flat_weights if each is not None]


def is_caching() -> bool:
    """Whether `with parametrize.cached():` is active."""
    return bool(parametrize._cache_enabled)


def pruned_name(hook: prune.BasePruningMethod) -> str:
    """The attribute that a pruning method computes before each forward."""
    return str(hook._tensor_name)


def children_of(module: nn.Module) -> dict[str, nn.Module | None]:
    """The modules registered with a module, including the same module under several names."""
    return module._modules


def registered_in(module: nn.Module) -> dict[str, Tensor | None]:
    """The parameters and buffers registered with a module itself."""
    return {**module._parameters, **module._buffers}
