"""Lightning: a module and its trainer go away and come back in the middle of a fit, and nobody can tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from laws import bits
from lives import library
from routes import Route
from torch import nn

import torchmove as tm

lightning = library("lightning")
torchmetrics = library("torchmetrics")
callbacks = library("lightning.pytorch.callbacks")


class Net(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.BatchNorm1d(8), nn.Linear(8, 2))
        self.mean, self.worst = torchmetrics.MeanMetric(), torchmetrics.MaxMetric()
        self.losses: list[torch.Tensor] = []

    def training_step(self, batch: Any) -> torch.Tensor:
        loss = self.net(batch[0]).square().mean()
        self.mean.update(loss.detach())
        self.log("mean", self.mean, on_epoch=True)
        self.log("worst", self.worst(loss.detach()), on_step=True)
        self.losses.append(loss.detach())
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


class Excursion(lightning.Callback):
    """At the end of an epoch the whole training goes away and comes back."""

    def __init__(self, route: Route) -> None:
        self.route, self.seen = route, 0

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.route.there(trainer, pl_module)
        for device in devices_of(trainer, pl_module):
            assert device == self.route.away
        self.seen += 1
        self.route.back(trainer, pl_module)
        for device in devices_of(trainer, pl_module):
            assert device == self.route.home


def devices_of(trainer: Any, net: Net) -> Iterator[torch.device]:
    """Where everything says it is: the tensors, and all that remembers a device."""
    yield from (net.device, net.mean.device, net.worst.device, trainer.strategy.root_device)
    yield from (tensor.device for tensor in (*net.parameters(), *net.buffers(), *net.losses))
    states = (state for optimizer in trainer.optimizers for state in optimizer.state.values())
    yield from (value.device for state in states for key, value in state.items() if key != "step")
    yield from (value.device for value in trainer.callback_metrics.values() if isinstance(value, torch.Tensor))
    for callback in trainer.callbacks:
        average = getattr(callback, "_average_model", None)
        yield from (tensor.device for tensor in average.parameters()) if average is not None else ()


HELPERS: dict[str, Callable[[], list[Any]]] = {
    "alone": list,
    "swa": lambda: [callbacks.StochasticWeightAveraging(1e-3, swa_epoch_start=1)],
    "ema": lambda: [callbacks.EMAWeightAveraging(decay=0.9)],
}


def trainer_for(accelerator: str, *helpers: Any) -> Any:
    return lightning.Trainer(
        accelerator=accelerator,
        devices=1,
        max_epochs=4,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=list(helpers),
    )


def rows() -> Any:
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(12, 4)), batch_size=4)


def fit(route: Route, helpers: str, *, moves: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    net, excursion = Net(), Excursion(route)
    kind = "cpu" if route.home.type == "cpu" else "gpu"
    trainer = trainer_for(kind, *HELPERS[helpers](), *([excursion] if moves else []))
    trainer.fit(net, rows())
    assert (excursion.seen >= 4) == moves  # averaging adds an epoch, for the statistics of batches
    state = net.state_dict() | {f"loss {index}": loss for index, loss in enumerate(net.losses)}
    return {name: bits(value) for name, value in (state | trainer.callback_metrics).items()}


@pytest.mark.parametrize("helpers", HELPERS)
def test_a_fit_continues_after_a_move_away_and_back(helpers, cpu_route):
    assert fit(cpu_route, helpers, moves=True) == fit(cpu_route, helpers, moves=False)


def test_a_trainer_begins_no_fit_on_another_kind_of_device(twin):
    """It says so itself: what it was made for is not a device that it remembers, but a class."""
    net, trainer = Net(), trainer_for("cpu")
    trainer.fit(net, rows())
    tm.move(trainer, net, to="twin:0")
    with pytest.raises(Exception, match="should be CPU"):
        trainer.fit(net, rows())
    tm.move(trainer, net, to="cpu")
    trainer.fit_loop.max_epochs = 5
    trainer.fit(net, rows())


def test_the_module_knows_its_new_device(twin):
    net = Net()
    tm.move(net, to="twin:0")
    assert net.device == torch.device("twin:0")
    assert net.mean.device == torch.device("twin:0")
    tm.move(net, to="cpu")
    assert net.device == torch.device("cpu")


def test_to_tells_only_the_outermost_module_of_its_device(twin):
    """`.to()` of a LightningModule tells the LightningModules in it; that of any module around them does not."""
    around = nn.Sequential(Net())
    around.to("twin:0")
    assert next(around.parameters()).device.type == "twin"
    assert around[0].device.type == "cpu"
    other = nn.Sequential(Net())
    tm.move(other, to="twin:0")
    assert other[0].device.type == "twin"


class Rows(lightning.LightningDataModule):
    def __init__(self) -> None:
        super().__init__()
        self.rows = [(torch.ones(4),) for _ in range(4)]

    def train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(self.rows, batch_size=2)


def test_what_a_data_module_holds_stays(twin):
    model, rows = Net(), Rows()
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", **quiet)
    trainer.fit(model, datamodule=rows)
    receipt = tm.move(trainer, to="twin:0")
    assert {row[0].device.type for row in rows.rows} == {"cpu"}
    assert {parameter.device.type for parameter in model.parameters()} == {"twin"}
    assert any(note.why.startswith("Rows is data") for note in receipt.plan.notes)
