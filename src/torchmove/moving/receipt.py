"""The Receipt: the result of a move."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol

import torch
from torch import nn

from torchmove.formatting import listed
from torchmove.planning.plan import Note, Plan
from torchmove.progress import Stage
from torchmove.results import Result
from torchmove.surveying.paths import Path

if TYPE_CHECKING:
    from torchmove.verifying.verify import Verdict


class Held(NamedTuple):
    """A storage on the old device that something outside the state keeps alive."""

    path: Path
    nbytes: int
    by: str


class Leftover(Protocol):
    """Old storages that were not freed."""

    def find_holders(self) -> tuple[Held, ...]: ...


@dataclass(frozen=True, eq=False, repr=False)
class Receipt(Result):
    """What was moved, how fast, what stayed and why, and which old storages are still alive.

    A receipt can be kept: it refers to tensors by id and keeps none of them alive.

    Attributes:
        plan: the plan that was carried out.
        mover: the name of the mover.
        why: why this mover was chosen.
        seconds: how long the move took, without planning.
        held: storages on the old device that something outside the state keeps alive: `path`, `nbytes`, and `by` what.
            Small ones are not searched for, nor is anything when the search would take long: `find_holders` does that.
        verdict: the verification, made before the old copy was freed; None with `verify="off"`.
    """

    plan: Plan
    mover: str
    why: str  # this mover was chosen
    seconds: float
    held: tuple[Held, ...]
    verdict: Verdict | None = None
    stages: tuple[Stage, ...] = ()  # of the move; the plan has the earlier ones
    _leftover: Leftover | None = None

    @property
    def notes(self) -> tuple[Note, ...]:
        """What to know about the move: the notes of its plan."""
        return self.plan.notes

    def find_holders(self) -> tuple[Held, ...]:
        """Search the whole process for what keeps old storages alive, however long that takes.

        Returns:
            As `held`, without storages that have been freed since.

        Examples:
            >>> import torch
            >>> from torchmove.testing import refresh
            >>> model = torch.nn.Linear(2, 3, bias=False)
            >>> saved = model.state_dict()
            >>> [held.by for held in refresh(model).find_holders()]
            ["a tensor of shape (3, 2) under 'weight' in OrderedDict of 1"]
        """
        return self._leftover.find_holders() if self._leftover is not None else ()

    @property
    def device(self) -> torch.device:
        """The target of the move: `tm.move(batch, to=receipt.device)` takes a batch to the model."""
        return self.plan.target

    @property
    def moved_bytes(self) -> int:
        """Number of bytes moved."""
        return self.plan.nbytes

    @property
    def bytes_per_second(self) -> float:
        """The rate over the whole move."""
        return self.moved_bytes / self.seconds if self.seconds else 0.0

    # A receipt that is used as the model. Type checkers report it themselves.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            if "plan" not in vars(self) or not hasattr(nn.Module, name):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            model = self.plan.inventory.roots[0]
            fix = f"tm.move({model}, to={_TARGETS[name]!r})" if name in _TARGETS else f"{model}.{name}(...)"
            raise AttributeError(self._answer(f"has no {name!r}", fix))

        def __getitem__(self, _: object) -> NoReturn:
            roots = ", ".join(self.plan.inventory.roots)
            fix = f"receipt = tm.move({roots}, to={str(self.device)!r})"
            raise TypeError(self._answer("cannot be unpacked or indexed", fix))

        def __call__(self, *_: Any, **__: Any) -> NoReturn:
            raise TypeError(self._answer("cannot be called", f"{self.plan.inventory.roots[0]}(...)"))

    def _answer(self, problem: str, fix: str) -> str:
        moved = listed(self.plan.inventory.roots)
        return f"a Receipt {problem}: tm.move moves the objects themselves, {moved}, and returns a receipt. Fix: {fix}"


_TARGETS = {"to": "auto", "to_empty": "auto", "cpu": "cpu", "cuda": "cuda", "xpu": "xpu"}
