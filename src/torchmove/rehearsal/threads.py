"""The threads that a step starts are on the stage as it is; an error that ends one stops the rehearsal."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from torch.utils._python_dispatch import TorchDispatchMode

from torchmove.rehearsal.disguise import Disguise
from torchmove.rehearsal.stage import Stage

Fail = Callable[[BaseException], None]


@contextmanager
def followed(stage: Stage, fail: Fail) -> Iterator[None]:
    """Threads that others start meanwhile are none of the step's."""
    start, on_stage = threading.Thread.start, {threading.get_ident()}

    def started(thread: threading.Thread) -> None:
        if threading.get_ident() in on_stage:
            play = thread.run

            def run() -> None:
                on_stage.add(threading.get_ident())
                try:
                    with Disguise(stage), _Door(stage):
                        play()
                except BaseException as error:
                    if stage.over:
                        raise
                    fail(error)
                finally:
                    on_stage.discard(threading.get_ident())

            thread.run = run  # type: ignore[method-assign]
        start(thread)

    with patch.object(threading.Thread, "start", started):
        yield


class _Door(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Onto the stage, for another thread: a mode can be entered by one."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.stage = stage

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {})) if self.stage.over else self.stage.run(func, args, kwargs or {})
