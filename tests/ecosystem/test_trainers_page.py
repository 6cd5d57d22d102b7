"""docs/trainers.md, which needs the libraries that it is about."""

from __future__ import annotations

import pytest
from lives import library
from pages import ROOT, Player

accelerate, _, transformers = map(library, ("accelerate", "lightning", "transformers"))


@pytest.mark.filterwarnings("ignore")
def test_the_page_about_trainers_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(transformers.PrinterCallback, "on_log", lambda *everything, **others: None)
    Player(ROOT / "docs" / "trainers.md", tmp_path, "cpu").play()
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()
