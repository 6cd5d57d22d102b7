"""torch.save in a rehearsal: the step goes on, and no file is touched.

torch.save opens its file before it looks at what to save: with stand-ins in it, it would leave a torn file behind.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cached_property
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, serialization

from torchmove.rehearsal.standin import StandIn
from torchmove.rehearsal.threads import Company

_WHY = "torch.save waits for the device and brings values to the CPU; a rehearsal does not write the file"


@contextmanager
def nothing_saved(company: Company) -> Iterator[None]:
    """What others save meanwhile is saved, unless it is on the stage."""

    def instead_of(save: Callable[..., None]) -> Callable[..., None]:
        def saved(what: Any, file: Any, pickle: Any, *options: Any) -> None:
            if company.is_on_stage() or _has_stand_ins(what, pickle):
                company.stage.note(_WHY)
            else:
                save(what, file.opened if isinstance(file, _Later) else file, pickle, *options)

        return saved

    with ExitStack() as patches:
        # Whoever has bound torch.save before calls these by their names all the same.
        for name in ("_open_zipfile_writer", "_open_file_like"):
            patches.enter_context(patch.object(serialization, name, _later(getattr(serialization, name))))
        for name in ("_save", "_legacy_save"):
            patches.enter_context(patch.object(serialization, name, instead_of(getattr(serialization, name))))
        yield


class _Later:
    """A file that is opened when it is first written to."""

    def __init__(self, open_now: Callable[[], AbstractContextManager[Any]]) -> None:
        self._open_now, self._closing = open_now, ExitStack()

    @cached_property
    def opened(self) -> Any:
        return self._closing.enter_context(self._open_now())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.opened, name)

    def __enter__(self) -> _Later:
        return self

    def __exit__(self, *error: Any) -> None:
        self._closing.__exit__(*error)


def _later(open_now: Callable[..., AbstractContextManager[Any]]) -> Callable[..., AbstractContextManager[Any]]:
    return lambda file, mode=None: (
        open_now(file, mode) if mode == "rb" else _Later(lambda: open_now(file, *([mode] if mode else [])))
    )


def _has_stand_ins(what: Any, pickle: Any) -> bool:
    found = False

    class Looking(pickle.Pickler):  # type: ignore[misc]
        def persistent_id(self, each: Any) -> str | None:
            nonlocal found
            found = found or isinstance(each, StandIn)
            return "not looked into" if isinstance(each, Tensor) or torch.is_storage(each) else None

    Looking(io.BytesIO()).dump(what)
    return found
