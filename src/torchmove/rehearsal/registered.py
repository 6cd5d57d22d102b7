"""What is registered with a module, whatever its class makes of `parameters()`, `buffers()` and `modules()`."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn


def modules_in(module: nn.Module) -> Iterator[nn.Module]:
    return (each for _, each in nn.Module.named_modules(module))


def parameters_in(module: nn.Module, *, recurse: bool = True) -> Iterator[nn.Parameter]:
    return (each for _, each in nn.Module.named_parameters(module, recurse=recurse))


def tensors_in(module: nn.Module) -> Iterator[Tensor]:
    """Its parameters and buffers."""
    yield from parameters_in(module)
    yield from (each for _, each in nn.Module.named_buffers(module))
