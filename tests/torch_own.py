"""Torch's own lists of modules and optimizers, as cases that start and go on in the same way on every device."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import inspect
import itertools
import sys
import types
import unittest
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from laws import bits
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import SGD, Adam, Muon, Optimizer
from torch.utils._pytree import keystr, tree_leaves, tree_leaves_with_path, tree_map

CPU = torch.device("cpu")

# By name and with a reason: modules that are moved like all others, but whose steps on CUDA are not compared.
ADDED_IN_ANY_ORDER = "torch sums nll_loss2d with atomic adds: the last bits differ from one run to the next"
NEVER_THE_SAME_ON_CUDA = {"nn.NLLLoss": ADDED_IN_ANY_ORDER, "nn.CrossEntropyLoss": ADDED_IN_ANY_ORDER}
NO_BACKWARD_IN_EVAL_ON_CUDA = {"nn.RNN", "nn.LSTM", "nn.GRU"}  # cuDNN: "can only be called in training mode"


def _lists() -> tuple[list[Any], list[Any]]:
    if "expecttest" not in sys.modules and importlib.util.find_spec("expecttest") is None:
        # Torch's test case derives from this package's; its lists need no more of it.
        stand_in: Any = types.ModuleType("expecttest")
        stand_in.__spec__ = importlib.machinery.ModuleSpec("expecttest", None)
        stand_in.TestCase, stand_in.ACCEPT = type("TestCase", (unittest.TestCase,), {}), False
        sys.modules["expecttest"] = stand_in
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a numpy that is newer than torch's lists
        from torch.testing._internal.common_modules import module_db
        from torch.testing._internal.common_optimizers import optim_db

    return module_db, optim_db


MODULES, OPTIMIZERS = _lists()


def seed(device: torch.device, number: int) -> None:
    """Seed the CPU and the device. torch.manual_seed would keep a traceback for every accelerator that is not there."""
    torch.default_generator.manual_seed(number)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed_all(number)


def own(tree: Any, device: Any) -> Any:
    """The tree with copies of its tensors: what happens to them does not happen to those they come from."""
    return tree_map(
        lambda leaf: torch.empty_like(leaf, device=device).copy_(leaf) if isinstance(leaf, Tensor) else leaf, tree
    )


def _tensors_in(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


@dataclass
class Training:
    """A module and the optimizer that trains it, if it has anything to train."""

    module: nn.Module
    optimizer: Optimizer | None

    @property
    def objects(self) -> tuple[Any, ...]:
        return (self.module,) if self.optimizer is None else (self.module, self.optimizer)

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor, by where it is."""
        return {keystr(path): leaf for path, leaf in tree_leaves_with_path(self.tree()) if isinstance(leaf, Tensor)}

    def values(self) -> dict[str, Any]:
        """All that a step can change, to be compared: tensors by their bits, the rest as it is."""
        leaves = tree_leaves_with_path(self.tree())
        return {keystr(path): bits(leaf) if isinstance(leaf, Tensor) else leaf for path, leaf in leaves}

    def placement(self) -> dict[tuple[str, Any], set[tuple[torch.device, torch.dtype]]]:
        """Where it keeps what, and as what. A list is one entry: how long it is depends on the values."""
        return {
            (name, key): {(tensor.device, tensor.dtype) for tensor in _tensors_in(value)}
            for name, holder in self.tree().items()
            for key, value in holder.items()
        }

    def tree(self) -> dict[str, dict[Any, Any]]:
        parameters = dict(self.module.named_parameters(remove_duplicate=False))
        tree: dict[str, dict[Any, Any]] = {
            "parameters": parameters,
            "buffers": dict(self.module.named_buffers(remove_duplicate=False)),
            "gradients": {name: each.grad for name, each in parameters.items()},
        }
        return tree | self.optimizer_tree(parameters) if self.optimizer is not None else tree

    def optimizer_tree(self, parameters: dict[str, Tensor]) -> dict[str, dict[Any, Any]]:
        """Groups and states. That the optimizer holds the module's very parameters is how it finds their names."""
        assert self.optimizer is not None
        name_of = {id(parameter): name for name, parameter in parameters.items()}
        groups = {
            f"group {index}": {**group, "params": [name_of[id(each)] for each in group["params"]]}
            for index, group in enumerate(self.optimizer.param_groups)
        }
        states = {f"state of {name_of[id(each)]}": state for each, state in self.optimizer.state.items()}
        return groups | states

    @torch.no_grad()
    def take_values_of(self, other: Training) -> None:
        """Become equal to another training by nothing but copies. What is here stays on the device where it is."""
        mine, theirs = self.tree(), other.tree()
        for name, tensor in (mine["parameters"] | mine["buffers"]).items():
            tensor.copy_((theirs["parameters"] | theirs["buffers"])[name])
        for name, parameter in mine["parameters"].items():
            parameter.grad = own(theirs["gradients"][name], parameter.device)
            state = mine.get(f"state of {name}", {})
            for key, value in theirs.get(f"state of {name}", {}).items():
                here = _tensors_in(state[key])
                state[key] = own(value, here[0].device if here else None)


# ---------------------------------------------------------------- modules


@dataclass
class ModuleCase:
    """One of the samples that torch has for a module."""

    info: Any
    training: bool
    sample: Any

    def __repr__(self) -> str:
        how = self.sample.constructor_input
        return f"{self.info.name}(*{how.args}, **{how.kwargs}) {self.sample.desc}"

    def repeats_on(self, device: torch.device) -> bool:
        if device.type != "cuda":
            return True
        possible = self.training or self.info.name not in NO_BACKWARD_IN_EVAL_ON_CUDA
        return possible and self.info.name not in NEVER_THE_SAME_ON_CUDA

    def start(self, device: torch.device) -> Training:
        """Make the module, bring it to the device by torch's own means, and take a first step there."""
        module = self.made()
        if any(map(is_lazy, module.parameters())):  # Module.to would make ordinary empty parameters of these
            with torch.no_grad():
                self.outputs(module, CPU)
        module.to(device)
        floats = [each for each in module.parameters() if each.is_floating_point()]
        training = Training(module, SGD(floats, lr=0.01, momentum=0.9) if floats else None)
        self.step(training, device, 0)
        return training

    def made(self) -> nn.Module:
        args, kwargs = own((self.sample.constructor_input.args, self.sample.constructor_input.kwargs), CPU)
        seed(CPU, 0)
        module: nn.Module = self.info.module_cls(*args, **kwargs)
        return module.train(self.training)

    def step(self, training: Training, device: torch.device, number: int) -> list[bytes]:
        """Forward, and where there is something to train, backward and an update. Returns the bits of the outputs."""
        seed(device, number)
        training.module.zero_grad()
        outputs = self.outputs(training.module, device)
        if training.optimizer is not None:
            torch.stack([output.sum() for output in outputs]).sum().backward()
            training.optimizer.step()
        return [bits(output) for output in outputs]

    def outputs(self, module: nn.Module, device: torch.device) -> list[Tensor]:
        args, kwargs = own((self.sample.forward_input.args, self.sample.forward_input.kwargs), device)
        return [each for each in _tensors_in(module(*args, **kwargs)) if each.is_floating_point()]


def module_cases(info: Any, training: bool) -> Iterator[ModuleCase]:
    seed(CPU, 0)
    options = {"device": "cpu", "dtype": torch.float32, "requires_grad": False, "training": training}
    for sample in info.module_inputs_func(info, **options):
        for given in (sample.constructor_input, sample.forward_input):
            given.args, given.kwargs = tree_map(_single, (given.args, given.kwargs))
        yield ModuleCase(info, training, sample)


def _single(leaf: Any) -> Any:
    """Some samples have doubles among their inputs, whatever was asked for."""
    return leaf.float() if isinstance(leaf, Tensor) and leaf.dtype is torch.double else leaf


# ---------------------------------------------------------------- optimizers

FLAGS = ("foreach", "fused", "capturable", "differentiable")
REFUSED_TOGETHER = ({"foreach", "fused"}, {"foreach", "differentiable"}, {"fused", "differentiable"})
FIRST_STEPS = 3


@dataclass
class OptimizerCase:
    """An optimizer with one of the configurations that torch lists, and some flags."""

    info: Any
    options: dict[str, Any]

    def repeats_on(self, device: torch.device) -> bool:
        """Does it run there? What is capturable does not on the CPU, except on its fused way."""
        return device.type != "cpu" or not self.options.get("capturable") or bool(self.options.get("fused"))

    def start(self, device: torch.device) -> Training:
        """Make the parameters and the optimizer on the device, and take the first steps there."""
        draw = torch.Generator().manual_seed(0)
        # A differentiable optimizer refuses to update in place what autograd watches.
        watched = not self.options.get("differentiable")
        parameters = [nn.Parameter(torch.rand(shape, generator=draw).to(device), watched) for shape in self.shapes()]
        # Where a learning rate lies is the user's choice; this is where torchmove puts one.
        on_device = self.options.get("capturable") or self.options.get("fused")
        options = own(self.options, device if on_device else CPU)
        training = Training(nn.ParameterList(parameters), self.info.optim_cls(parameters, **options))
        for number in range(FIRST_STEPS):
            self.step(training, device, number)
        return training

    def shapes(self) -> list[tuple[int, ...]]:
        only_matrices = self.info.optim_cls is Muon or self.info.only_supports_sparse_grads
        return [(6, 3), (2, 5)] if only_matrices else [(4, 3), (5,), ()]

    def step(self, training: Training, device: torch.device, number: int) -> None:
        """An update with gradients that depend on nothing but the number of the step."""
        draw = torch.Generator().manual_seed(number)
        for parameter in training.module.parameters():
            parameter.grad = self.gradient(parameter.shape, draw).to(device)
        assert training.optimizer is not None
        training.optimizer.step(_closure(training.module) if self.info.step_requires_closure else None)

    def gradient(self, shape: torch.Size, draw: torch.Generator) -> Tensor:
        if not self.info.only_supports_sparse_grads:
            return torch.rand(shape, generator=draw) - 0.5
        rows = torch.randint(shape[0], (1, 4), generator=draw)
        values = torch.rand(4, *shape[1:], generator=draw) - 0.5
        return torch.sparse_coo_tensor(rows, values, shape, check_invariants=True)


def _closure(module: nn.Module) -> Callable[[], Tensor]:
    def loss_and_gradients() -> Tensor:
        module.zero_grad()
        loss = torch.stack([(each.exp() + each.pow(4)).sum() for each in module.parameters()]).sum()
        loss.backward()
        return loss

    return loss_and_gradients


def flag_sets(info: Any, device_type: str) -> Iterator[dict[str, bool]]:
    """The flags that torch lets one set together, with foreach also off: unset, it is on where that is quicker."""
    known = [flag for flag in FLAGS if flag in inspect.signature(info.optim_cls).parameters]
    for values in itertools.product(*((None, False, True) if flag == "foreach" else (None, True) for flag in known)):
        flags = {flag: value for flag, value in zip(known, values, strict=True) if value is not None}
        chosen = {flag for flag, value in flags.items() if value}
        has_kernel = "fused" not in chosen or device_type in info.supports_fused_on
        if has_kernel and not any(pair <= chosen for pair in REFUSED_TOGETHER):
            yield flags


def optimizer_cases(info: Any, flags: dict[str, bool]) -> Iterator[OptimizerCase]:
    # Asked for an accelerator, torch lists what it lists for the CPU, and what it tries on that kind alone.
    listed = [each.kwargs for kind in ("cuda", "mps") for each in info.optim_inputs_func(device=kind)]
    for options in {repr(options): options for options in listed}.values():
        case = OptimizerCase(info, {**options, **flags})
        if not _refused_by_adam(case):
            yield case


def _refused_by_adam(case: OptimizerCase) -> bool:
    """On its foreach way Adam takes a tensor for a learning rate only if it is capturable."""
    options = case.options
    has_tensor = issubclass(case.info.optim_cls, Adam) and isinstance(options.get("lr"), Tensor)
    return has_tensor and bool(options.get("foreach")) and not options.get("capturable")
