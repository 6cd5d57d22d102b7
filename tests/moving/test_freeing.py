"""Large old copies in host memory are given back behind the caller's back, and counted before the next move."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
import torch
from torch import nn

import torchmove as tm
from torchmove import chain as _move
from torchmove.moving import leftovers as _freeing
from torchmove.testing import refresh


def test_large_old_memory_is_given_back_and_nothing_else_is_touched(monkeypatch):
    monkeypatch.setattr(_freeing, "_BACKGROUND_BYTES", 1)
    model = nn.Sequential(nn.Linear(1000, 1000), nn.Linear(1000, 1000), nn.Linear(3, 3))
    kept = model[1].weight.data  # somebody else looks at this one
    expected = [parameter.detach().clone() for parameter in model.parameters()]
    receipt = refresh(model)
    _freeing.wait_for_freeing()
    assert [str(held.path) for held in receipt.held] == ["model[1].weight"]
    assert torch.equal(kept, expected[2])
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), expected, strict=True))


def lent_by_numpy(folder):
    array = np.ones(1 << 20, dtype=np.float32)
    return torch.from_numpy(array), array.sum


def lent_by_a_file(folder):
    file = folder / "numbers"
    file.write_bytes(np.ones(1 << 20, dtype=np.float32).tobytes())
    tensor = torch.from_file(str(file), shared=True, size=1 << 20)
    return tensor, lambda: np.fromfile(file, dtype=np.float32).sum()


def shared_memory(folder):
    tensor = torch.ones(1 << 20).share_memory_()
    other = tensor[:]
    return tensor, other.sum


def seen_by_another(folder):
    tensor = torch.ones(1 << 20)
    other = tensor[5:]
    return tensor, lambda: other.sum() + 5


def held_as_a_storage(folder):
    tensor = torch.ones(1 << 20)
    storage = tensor.untyped_storage()
    return tensor, lambda: torch.empty(0).set_(storage).sum()


@pytest.mark.parametrize("lend", [lent_by_numpy, lent_by_a_file, shared_memory, seen_by_another, held_as_a_storage])
def test_memory_of_others_keeps_its_bytes(lend, monkeypatch, tmp_path):
    monkeypatch.setattr(_freeing, "_BACKGROUND_BYTES", 1)
    tensor, total = lend(tmp_path)
    refresh([tensor])
    _freeing.wait_for_freeing()
    assert total() == 1 << 20


def test_who_holds_a_storage_alone_is_told():
    tensor = torch.ones(1000)
    storage = tensor.untyped_storage()
    assert [held.nbytes for held in refresh([tensor]).held] == [storage.nbytes()]
    del storage
    assert refresh([tensor]).held == ()


def test_who_holds_what_is_told_in_the_order_of_the_state():
    state = [torch.ones(1) for _ in range(2500)]
    held = [state[index].data for index in (7, 1700, 2400)]
    assert [each.path.what for each in refresh(state).held] == [7, 1700, 2400]
    assert len(held) == 3


def test_whoever_moves_while_memory_is_given_back_does_not_wait_for_itself(monkeypatch):
    """The collector may run somebody's code in that thread."""
    monkeypatch.setattr(_freeing, "_BACKGROUND_BYTES", 1)
    ended = []
    monkeypatch.setattr(_freeing, "_empty", lambda large: ended.append(tm.move(nn.Linear(1, 1), to="cpu")))
    refresh([torch.ones(1 << 20)])
    _freeing.wait_for_freeing()
    assert len(ended) == 1


def test_a_later_move_waits_until_it_is_done(monkeypatch):
    order = []
    monkeypatch.setattr(_freeing, "_thread", threading.Thread(target=lambda: order.append("given back")))
    _freeing._thread.start()
    real = _move.plan_for
    monkeypatch.setattr(_move, "plan_for", lambda *given, **options: order.append("planned") or real(*given, **options))
    tm.move(nn.Linear(2, 2), to="cpu")
    assert order == ["given back", "planned"]


def test_little_is_given_back_at_once(monkeypatch):
    monkeypatch.setattr(_freeing, "_thread", None)
    old = [torch.ones(3).untyped_storage()]
    _freeing.free_in_background(old)
    assert old == []
    assert _freeing._thread is None


AT_ONCE = "refresh(state)"
AT_EXIT = "atexit.register(refresh, state)"


@pytest.mark.slow
@pytest.mark.parametrize("last", [AT_ONCE, AT_EXIT])
def test_a_program_may_end_right_after_a_move(last):
    program = """
        import atexit
        import torch
        from torchmove.testing import refresh

        state = [torch.ones(1 << 21) for _ in range(60)]
        """
    command = [sys.executable, "-c", textwrap.dedent(program) + last]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_memory_is_given_back_where_no_thread_can_be_started(monkeypatch):
    monkeypatch.setattr(_freeing, "_BACKGROUND_BYTES", 1)
    monkeypatch.setattr(_freeing, "_thread", None)

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    state = [torch.ones(1 << 20)]
    monkeypatch.setattr(threading.Thread, "start", refuse)
    refresh(state)
    assert _freeing._thread is None
    assert float(state[0].sum()) == 1 << 20
