"""Rehearsals of scripts: they run as Python runs them, end after some steps, and leave this process as it was."""

from __future__ import annotations

import json
import os
import sys
import textwrap
import threading
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from test_corpus import no_accelerator

from torchmove import cli
from torchmove.rehearsing.run import Options
from torchmove.rehearsing.scripts import Script, rehearse_script

pytestmark = pytest.mark.filterwarnings("ignore")

START = """
import sys, os, torch
from torch import nn

model = nn.Linear(4, 1).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def train():
    model(torch.ones(2, 4, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with no_accelerator():
        yield


def rehearsed(text: str, *args: str, start: str = START, options: Options | None = None, **limits):
    Path("train.py").write_text(start + textwrap.dedent(text))
    return rehearse_script(Script("train.py", args, **limits), options)


def at_the_command_line(text: str, *given: str, start: str = START):
    Path("train.py").write_text(start + textwrap.dedent(text))
    return CliRunner().invoke(cli.main, ["rehearse", *given])


# ---------------------------------------------------------------- as Python runs it


def test_a_script_sees_what_python_gives_it():
    Path("near.py").write_text("value = 7")
    found = rehearsed(
        """
        import near, __main__
        assert __name__ == "__main__" and __main__.model is model
        assert sys.argv == ["train.py", "--epochs", "1"], sys.argv
        assert os.path.samefile(__file__, "train.py") and os.path.samefile(sys.path[0], ".")
        assert near.value == 7 and torch.cuda.is_available()
        assert torch.accelerator.current_accelerator().type == "cuda"
        train()
        """,
        "--epochs",
        "1",
    )
    assert found.ok, str(found)
    assert str(found).startswith("No device error found: train.py ran to its end with 1 optimizer step on a simulated")


def test_this_process_is_left_as_it_was():
    Path("near.py").write_text("import torch\nmade = torch.ones(3, device='cuda')")
    before = (sys.modules["__main__"], [*sys.argv], [*sys.path], os.getcwd(), {*sys.modules}, torch.get_rng_state())
    found = rehearsed(
        "import near; sys.path.append('x'); os.makedirs('a'); os.chdir('a'); torch.manual_seed(1); train()"
    )
    assert found.ok, str(found)
    after = (sys.modules["__main__"], [*sys.argv], [*sys.path], os.getcwd())
    assert after == before[:4]
    assert "near" not in sys.modules
    assert torch.equal(torch.get_rng_state(), before[5])
    assert sorted(os.listdir()) == ["near.py", "train.py"]


def test_an_error_of_a_script_is_not_confirmed_by_running_it_for_real():
    torch.save("precious", "best.pt")
    source = "torch.save('lost', 'best.pt')\nmodel(torch.ones(1, 5, device='cuda'))"
    Path("train.py").write_text(f"import torch\nfrom torch import nn\nmodel = nn.Linear(4, 4).to('cuda')\n{source}\n")
    options = Options("cuda", confirm_errors=True)
    found = rehearse_script(Script(Path("train.py"), ()), options)
    assert found.ending == "error"
    assert torch.load("best.pt") == "precious"


def test_a_finding_names_the_line_of_the_users_other_file():
    Path("near.py").write_text("import torch\n\ndef loss(x):\n    return (x - torch.zeros(4)).sum()\n")
    found = rehearsed("import near; near.loss(torch.ones(4, device='cuda')); train()")
    (finding,) = found.failing
    assert (Path(finding.file).name, finding.line, finding.kind) == ("near.py", 4, "factory")


# ---------------------------------------------------------------- where it ends


def test_a_script_ends_after_its_steps_cleanly():
    found = rehearsed(
        """
        class Managed:
            def __enter__(self): pass
            def __exit__(self, *_): print("left")
        made = 0
        try:
            with Managed():
                while True:
                    try:
                        train()
                    except Exception:
                        print("swallowed")
                    made += 1
        finally:
            print("made", made)
        print("not reached")
        """,
        steps=3,
    )
    assert found.ok, str(found)
    assert found.extent == "ran for 3 optimizer steps"


def test_what_follows_the_last_step_is_rehearsed_too(capsys):
    found = rehearsed(
        "for step in range(9):\n    train()\n    print('after', step, model.weight + torch.ones(4))", steps=1
    )
    assert [each.line for each in found.failing] == [14]
    assert "after 0" in capsys.readouterr().out


@pytest.mark.parametrize("ending", ["", "sys.exit()", "sys.exit(0)", "raise SystemExit"])
def test_a_script_may_end_by_itself(ending):
    found = rehearsed(f"model(torch.ones(4, device='cuda'))\n{ending}")
    assert (found.ok, found.extent) == (True, "ran to its end")


@pytest.mark.parametrize("ending", ["sys.exit('no data')", "raise ValueError('no data')"])
def test_an_error_of_the_script_is_its_own(ending):
    found = rehearsed(f"train()\n{ending}")
    assert (found.ending, found.stopped_at) == ("error", "train.py:13")
    assert str(found).startswith(
        "Incomplete: stopped at train.py:13 (train.py raised an error that is not a device error)"
    )


def test_the_optimizer_of_a_scaler_counts():
    found = rehearsed(
        """
        scaler = torch.amp.GradScaler("cuda")
        for _ in range(9):
            with torch.autocast("cuda", dtype=torch.float16):
                loss = model(torch.ones(2, 4, device="cuda")).sum()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        """
    )
    assert (found.ok, found.extent) == (True, "ran for 2 optimizer steps")


def test_of_several_optimizers_each_makes_a_step():
    text = """
    other = torch.optim.SGD(nn.Linear(1, 1).to("cuda").parameters(), lr=0.1)
    for step in range(99):
        train()
        if step == {when}:
            other.step()
            print("both")
    """
    assert rehearsed(text.format(when=5)).extent == "ran for 6 optimizer steps"
    assert rehearsed(text.format(when=50)).extent == "ran for 20 optimizer steps"


def test_a_script_that_does_not_step_is_incomplete():
    found = rehearsed("import time\nwhile True:\n    time.sleep(0.01)\n    model.weight + 1", seconds=0.5)
    assert (found.ending, found.stopped_at.partition(":")[0]) == ("limit", "train.py")
    assert "0 of 2 optimizer steps were made in 0.5 seconds" in found.stopped
    assert "--seconds" in found.stopped


def test_the_time_limit_after_the_steps_ends_a_rehearsal_well():
    found = rehearsed("train()\ntrain()\nwhile True:\n    model.weight + 1", seconds=0.5)
    assert (found.ok, found.extent) == (True, "ran for 2 optimizer steps")


def test_a_script_in_another_thread_has_no_time_limit():
    found = []
    thread = threading.Thread(target=lambda: found.append(rehearsed("train()")))
    thread.start()
    thread.join()
    assert found[0].ok


def test_a_script_that_never_uses_the_device_is_incomplete():
    found = rehearsed("torch.ones(2) + 1", start="import torch\n")
    assert (found.ok, found.ending) == (False, "limit")
    assert 'Fix: move the model and each batch in the script: model.to("cuda")' in str(found)
    assert "real values" not in str(found)


# ---------------------------------------------------------------- loaders, values, memory

LOADERS = """
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.ones(40, 4)), batch_size=2)
def passes():
    trained = tested = plain = 0
    for _ in loader:
        train(); trained += 1
    with torch.no_grad():
        for _ in loader: tested += 1
    for _ in loader: plain += 1
    return trained, tested, plain
"""


def test_a_pass_over_a_loader_ends_after_some_steps():
    found = rehearsed(LOADERS + "assert passes() == (2, 2, 20), passes()\nprint(model.weight + torch.ones(4))")
    assert [each.kind for each in found.failing] == ["factory"]


def test_a_pass_over_a_loader_may_be_a_whole_one():
    found = rehearsed(LOADERS + "assert passes() == (20, 20, 20)", whole_loaders=True, steps=50)
    assert (found.ok, found.extent) == (True, "ran to its end with 20 optimizer steps")


def test_a_large_model_has_shapes_and_a_branch_on_its_loss_runs_again_with_values():
    text = """
    model = nn.Sequential(nn.Linear(2100, 2100), nn.Linear(2100, 1)).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(9):
        loss = model(torch.ones(1, 2100, device="cuda")).sum()
        loss.backward()
        optimizer.step()
        {more}
    """
    found = rehearsed(text.format(more="print(loss.item())"))
    assert (found.ok, found.values) == (True, "shapes")
    sizes = {part: size >> 20 for part, size in found.peak.items()}
    assert (sizes["parameters"], sizes["gradients"], sizes["optimizer"]) == (16, 16, 33)
    again = rehearsed(text.format(more="assert loss == loss"))
    assert again.ok
    assert again.values.startswith("real: with shapes only it stopped at train.py:")
    assert found.peak_bytes == again.peak_bytes


# ---------------------------------------------------------------- the command line


def test_output_of_a_script_leaves_stdout_to_the_result():
    ended = at_the_command_line("print('a line')\nos.write(1, b'another')\ntrain()", "train.py", "--json")
    found = json.loads(ended.stdout)
    assert (ended.exit_code, found["subject"], found["ending"]) == (0, "train.py", "finished")


def test_exit_codes_of_a_script():
    assert at_the_command_line("train()", "train.py").exit_code == 0
    assert at_the_command_line("train()\nmodel.weight + torch.ones(4)", "train.py").exit_code == 1
    assert at_the_command_line("raise ValueError('x')", "train.py").exit_code == 4


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["absent.py"], "the file absent.py does not exist"),
        (["train.py", "--epochs", "1"], "options of a script come after --: train.py -- --epochs"),
        (["train.py", "--state", "x"], "--state: only for a function as TARGET"),
        (["train.py", "--moved-by", "to"], "--moved-by: only for a function as TARGET"),
        (["train.py:build", "--steps", "3"], "--steps: only for a script as TARGET"),
        (["train.py:build", "--", "x"], "arguments after the TARGET: only for a script as TARGET"),
        (["train.py", "--steps", "0"], "at least one optimizer step. Fix: steps=2"),
        (["train.py", "--seconds", "0"], "the time limit must be positive"),
        (["train.py", "--to", "cpu"], "a rehearsal simulates an accelerator"),
    ],
)
def test_a_wrong_command_is_refused_with_a_fix(given, said):
    ended = at_the_command_line("", *given)
    assert (ended.exit_code, said in ended.stderr) == (2, True), ended.stderr


def test_a_file_that_is_not_python_is_refused():
    ended = at_the_command_line("x = (", "train.py", start="")
    assert ended.exit_code == 2
    assert ended.stderr == "usage: train.py:1 is not Python: '(' was never closed. Fix: correct it\n"
