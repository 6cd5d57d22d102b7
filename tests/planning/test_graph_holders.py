"""A refusal for a live graph (R033) names what holds the graph, and the line that deletes it."""

from __future__ import annotations

import builtins
import os
import subprocess
import sys
from collections import deque
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import torchmove as tm

pytestmark = pytest.mark.twin


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))


def loss_of(model: nn.Module) -> torch.Tensor:
    return model(torch.ones(1, 3)).square().sum()


def refused(model: Any, call: Any = tm.move, **options: Any) -> str:
    with pytest.raises(tm.MoveRefused) as error:
        call(model, **(options or {"to": "twin:0"}))
    (_, line) = str(error.value).splitlines()
    assert line.startswith(
        "  R033 at 4 paths (model[0].weight ... and 3 more): a forward pass has used it and its graph"
    )
    return line


def test_a_variable_is_named_and_deleting_it_lets_the_state_move():
    model = network()
    loss = loss_of(model)
    with pytest.raises(tm.MoveRefused) as error:
        tm.move(model, to="twin:0")
    assert (
        str(error.value)
        .splitlines()[1]
        .endswith("can still run backward, held by loss. Fix: del loss, or call backward() first")
    )
    del loss
    assert tm.move(model, to="twin:0").device == torch.device("twin:0")


def test_every_variable_is_named():
    model = network()
    out = model(torch.ones(1, 3))
    loss = out.sum()
    with pytest.raises(tm.MoveRefused, match=r"held by out, loss\. Fix: del out, loss, or"):
        tm.move(model, to="twin:0")
    assert loss is not out


class Kept:
    def __init__(self, loss: torch.Tensor) -> None:
        self.loss = loss


class Pair(NamedTuple):
    loss: torch.Tensor
    step: int


@pytest.mark.parametrize(
    ("keep", "name", "remedy"),
    [
        (Kept, "kept.loss", "del kept.loss"),
        (lambda loss: {"loss": loss}, "kept['loss']", "del kept['loss']"),
        (lambda loss: [1, loss], "kept[1]", "kept.clear()"),
        (lambda loss: deque([loss]), "kept[0]", "kept.clear()"),
        (lambda loss: (loss, 1), "kept[0]", "del kept"),
        (lambda loss: Pair(loss, 1), "kept.loss", "del kept"),
        (lambda loss: {"all": [(loss, 1)]}, "kept['all'][0][0]", "del kept['all'][0]"),
        (lambda loss: lambda: loss, "kept.__closure__[0].cell_contents", "del kept"),
    ],
)
def test_what_holds_it_is_named(keep, name, remedy):
    model = network()
    loss = loss_of(model)
    kept = keep(loss)
    del loss
    with pytest.raises(tm.MoveRefused) as error:
        tm.move(model, to="twin:0")
    assert kept
    assert f"held by {name}. Fix: {remedy}, or call backward() first" in str(error.value)


def test_many_in_one_list_are_one_name():
    model = network()
    losses = [loss_of(model) for _ in range(5)]
    with pytest.raises(tm.MoveRefused, match=r"held by losses \(5 tensors\)\. Fix: losses\.clear\(\), or"):
        tm.move(model, to="twin:0")
    assert losses


def test_a_variable_of_a_function_that_called_is_named_with_it():
    def send(model: nn.Module) -> str:
        return refused(model)

    def train() -> str:
        model = network()
        loss = loss_of(model)
        return send(model) if loss.requires_grad else ""

    assert "held by loss in train(). Fix: del loss in train(), or" in train()


def test_the_results_of_a_notebook_are_named():
    model = network()
    loss = loss_of(model)
    space = {"tm": tm, "model": model, "Out": {8: loss}, "_8": loss, "_": loss}
    del loss
    with pytest.raises(tm.MoveRefused) as error:
        exec("tm.move(model, to='twin:0')", space)
    assert "held by _8, _, Out[8]. Fix: get_ipython().displayhook.flush(); get_ipython().user" in str(error.value)


NOTEBOOK = """
from twin import install
install()
import torch
import torchmove as tm
from IPython.core.interactiveshell import InteractiveShell

def notebook():
    shell = InteractiveShell()
    shell.user_ns.update(model=torch.nn.Linear(3, 3), torch=torch, tm=tm)
    shell.run_cell("model(torch.ones(1, 3)).sum()", store_history=True)
    shell.run_cell("try: tm.move(model, to='twin:0')\\nexcept tm.MoveRefused as error: text = str(error)")
    fix = shell.user_ns["text"].partition("Fix: ")[2].partition("; del ")[0].partition(", or call backward")[0]
    assert fix.startswith("get_ipython().displayhook.flush()"), fix
    shell.run_cell(fix, store_history=True)
    shell.run_cell("receipt = tm.move(model, to='twin:0')")
    assert shell.user_ns["receipt"].verdict

notebook()
"""


def test_the_fix_for_a_notebook_lets_the_state_move():
    pytest.importorskip("IPython")
    paths = os.pathsep.join(sys.path)
    subprocess.run([sys.executable, "-c", NOTEBOOK], check=True, env={**os.environ, "PYTHONPATH": paths})


def test_the_last_result_of_a_shell_is_named(monkeypatch):
    model = network()
    monkeypatch.setattr(builtins, "_", loss_of(model), raising=False)
    with pytest.raises(tm.MoveRefused, match=r"held by _ in the shell\. Fix: import builtins; del builtins\._, or"):
        tm.move(model, to="twin:0")


def test_a_graph_of_another_model_and_a_spent_one_are_not_named():
    model, other = network(), network()
    spent, others = loss_of(model), loss_of(other)
    spent.backward()
    loss = loss_of(model)
    with pytest.raises(tm.MoveRefused, match=r"held by loss\. Fix: del loss, or"):
        tm.move(model, to="twin:0")
    assert [spent, others, loss]


def test_what_no_variable_leads_to_gets_the_general_fix():
    model = network()
    cycle: list[Any] = [loss_of(model)]
    cycle.append(cycle)
    del cycle
    with pytest.raises(
        tm.MoveRefused, match=r"delete the loss and the outputs \(del loss\), or call backward\(\) first"
    ):
        tm.move(model, to="twin:0")


def test_a_plan_and_a_park_name_it_too():
    model = network()
    tm.move(model, to="twin:0")
    loss = model(torch.ones(1, 3, device="twin:0")).sum()
    for refusal in tm.plan(model, to="cpu").refusals:
        assert refusal.remedy == "del loss, or call backward() first"
    with pytest.raises(tm.MoveRefused, match="held by loss"):
        tm.park(model)
    assert loss.requires_grad
