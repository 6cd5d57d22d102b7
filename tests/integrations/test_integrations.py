"""The callbacks, as far as they need no library: who imports them, what a missing library is answered with, and what
all of them do. tests/ecosystem runs them in the trainers."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from laws import bits
from torch import nn

import torchmove as tm
from torchmove.integrations import training_states
from torchmove.integrations.training_states import TrainingStateCallback
from torchmove.planning.plan import Note

LIBRARIES = {
    "lightning": (("lightning", "pytorch_lightning"), "pip install lightning"),
    "transformers": (("transformers",), "pip install transformers[torch]"),
}


def ran(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


def test_importing_torchmove_imports_no_integration():
    program = "import sys, torchmove as tm; [getattr(tm, name) for name in tm.__all__]; print(*sys.modules)"
    loaded = ran(program).stdout.split()
    assert "torchmove.chain" in loaded
    assert not [name for name in loaded if name.startswith("torchmove.integrations")]
    assert not {"lightning", "pytorch_lightning", "transformers"} & {*loaded}


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_missing_library_is_answered_with_the_line_that_installs_it(name):
    blocked, line = LIBRARIES[name]
    program = f"import sys; sys.modules.update(dict.fromkeys({blocked}))\nimport torchmove.integrations.{name}"
    answer = ran(program).stderr.splitlines()[-1]
    assert answer.startswith("ModuleNotFoundError: ")
    assert answer.endswith(f"which is not installed. Fix: {line}")


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_library_that_cannot_be_imported_for_another_reason_says_so_itself(name, tmp_path):
    """An import in it fails: to install it again would not help."""
    for package in LIBRARIES[name][0]:
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("import a_module_that_nobody_has")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nimport torchmove.integrations.{name}"
    assert ran(program).stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'a_module_that_nobody_has'"


class Loop(TrainingStateCallback):
    """A training loop that is its own callback."""

    def __init__(self, device: str, *objects: Any, keep: Any = (), park_during: str | None = "validation") -> None:
        super().__init__(*objects, verify="raise", park_during=park_during, parks_during="validation", keep=keep)
        torch.manual_seed(0)
        self.lines: list[str] = []
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.input = torch.ones(3, 4).to(device)
        self.step()

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(self.input).square().sum().backward()
        self.optimizer.step()

    def _state(self) -> tuple[Any, ...]:
        return self.model, self.optimizer, *self._objects

    def _log(self, line: str) -> None:
        self.lines.append(line)

    def tensors(self) -> list[torch.Tensor]:
        """Optimizer state, without the steps that AdamW keeps on the CPU."""
        states = self.optimizer.state.values()
        return [value for state in states for name, value in state.items() if name != "step"]

    def gradients(self) -> list[torch.Tensor]:
        return [each.grad for each in self.model.parameters()]


def test_optimizer_state_is_parked_and_parameters_and_gradients_stay(twin):
    loop = Loop("twin:0")
    before, held = bits_of(loop), twin.bytes_in_use()
    loop._park_optimizers([loop.optimizer])
    assert {each.device.type for each in loop.tensors()} == {"cpu"}
    assert {each.device.type for each in (*loop.model.parameters(), *loop.gradients())} == {"twin"}
    assert twin.bytes_in_use() == held - sum(each.nbytes for each in loop.tensors())
    loop.model(loop.input)
    loop._wake_optimizers()
    assert {each.device.type for each in loop.tensors()} == {"twin"}
    assert bits_of(loop) == before
    loop.step()
    other = Loop("twin:0")
    other.step()
    assert bits_of(loop) == bits_of(other)


def bits_of(loop: Loop) -> list[bytes]:
    return [bits(each) for each in (*loop.tensors(), *loop.model.parameters(), *loop.gradients())]


def test_parking_twice_is_parking_once(twin):
    loop = Loop("twin:0")
    for call in (loop._park_optimizers, loop._park_optimizers):
        call([loop.optimizer])
    loop._wake_optimizers()
    assert {each.device.type for each in loop.tensors()} == {"twin"}
    loop._wake_optimizers()
    assert len(loop.lines) == 1


def test_a_wake_that_fails_can_be_repeated(twin):
    loop = Loop("twin:0")
    loop._park_optimizers([loop.optimizer])
    twin.limit_bytes(twin.bytes_in_use("twin:0"), "twin:0")
    with pytest.raises(tm.MoveRefused, match="R042"):
        loop._wake_optimizers()
    twin.limit_bytes(-1)
    assert {each.device.type for each in loop.tensors()} == {"cpu"}
    loop._wake_optimizers()
    assert {each.device.type for each in loop.tensors()} == {"twin"}


def test_optimizer_state_that_shares_memory_with_a_weight_is_not_separated_from_it(twin):
    loop = Loop("twin:0")
    loop.optimizer.state[loop.model[0].weight]["slow"] = loop.model[0].weight.detach()
    with pytest.raises(tm.MoveRefused, match="R041"):
        loop._park_optimizers([loop.optimizer])
    assert {each.device.type for each in loop.tensors()} == {"twin"}


def test_everything_is_parked_around_a_block_except_what_is_kept(twin):
    loop = Loop("twin:0", extra := {"average": torch.ones(2).to("twin:0")}, keep=["model[1].*"])
    before = bits_of(loop)

    def fail() -> None:
        with loop.parked():
            assert [each.device.type for each in loop.model.parameters()] == ["cpu", "cpu", "twin", "twin"]
            assert extra["average"].device.type == "cpu"
            assert {each["step"].device.type for each in loop.optimizer.state.values()} == {"cpu"}
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        fail()
    assert {each.device.type for each in (*loop.tensors(), *loop.model.parameters(), *extra.values())} == {"twin"}
    assert bits_of(loop) == before


def test_on_the_cpu_the_receipt_says_that_nothing_was_parked():
    loop = Loop("cpu")
    with loop.parked():
        pass
    assert loop.lines == ["torchmove: parked nothing: every tensor is on the CPU or kept"]


def test_without_park_during_no_optimizer_is_parked(twin):
    loop = Loop("twin:0", park_during=None)
    loop._park_optimizers([loop.optimizer])
    assert {each.device.type for each in loop.tensors()} == {"twin"}


def test_notes_about_what_was_not_given_are_logged(monkeypatch):
    note = Note("N070", "optimizer", "was not given")
    verdict = replace(tm.verify(nn.Linear(1, 1), on="cpu"), notes=(note,))
    monkeypatch.setattr(training_states, "verify", lambda *objects, **options: verdict)
    loop = Loop("cpu")
    loop._verify_start(loop.model, on=torch.device("cpu"))
    assert loop.lines == ["torchmove: verified: 2 tensors on cpu", f"torchmove: {note}"]
