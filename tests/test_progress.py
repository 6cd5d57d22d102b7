"""The bar of a long move: in a terminal, and only there."""

from __future__ import annotations

import io
import time
from contextlib import suppress

import pytest
import torch
from rich.console import Console

import torchmove as tm
from torchmove import chain as _move
from torchmove import progress as _progress
from torchmove.progress import ProgressBar


def shown(terminal: bool, wanted: bool = True, after: float = -1.0) -> str:
    page = io.StringIO()
    console = Console(file=page, force_terminal=terminal, width=100)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_progress, "_AFTER_SECONDS", after)
        with ProgressBar(1 << 30, "model to cuda:0", wanted=wanted, console=console) as bar:
            for _ in range(2):
                bar.advance(1 << 28)
                time.sleep(0.01)  # a rate needs time
            bar.advance(1)
    return page.getvalue()


def test_a_terminal_sees_bytes_rate_and_time_left():
    page = shown(terminal=True)
    assert "model to cuda:0" in page
    assert "/1.0 GiB" in page
    assert "/s" in page


def test_a_log_a_short_move_and_progress_false_show_no_bar():
    assert shown(terminal=False) == ""
    assert shown(terminal=True, wanted=False) == ""
    assert shown(terminal=True, after=60.0) == ""


@pytest.mark.twin
def test_a_move_tells_the_bar_of_every_byte(monkeypatch):
    told: list[int] = []
    monkeypatch.setattr(_move, "ProgressBar", lambda total, words, *, wanted: Recorded(told, words, wanted))
    receipt = tm.move([torch.ones(10), torch.ones(7)], to="twin:0", progress=False)
    assert sum(told) == receipt.moved_bytes == 68


class Recorded(ProgressBar):
    def __init__(self, told: list[int], words: str, wanted: bool) -> None:
        super().__init__(68, words, wanted=wanted)
        assert words.endswith("to twin:0")
        assert not wanted
        self.told = told

    def advance(self, nbytes: int) -> None:
        self.told.append(nbytes)


def test_a_bar_is_taken_away_when_a_move_fails(monkeypatch):
    monkeypatch.setattr(_progress, "_AFTER_SECONDS", -1.0)
    page = io.StringIO()
    bar = ProgressBar(100, "model", wanted=True, console=Console(file=page, force_terminal=True))
    with suppress(KeyboardInterrupt), bar:
        bar.advance(10)
        raise KeyboardInterrupt
    assert bar._progress is not None
    assert not bar._progress.live.is_started
