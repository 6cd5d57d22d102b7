"""TorchmoveCallback in fits of Lightning: it verifies at the start, parks around validations, and changes no bit."""

from __future__ import annotations

import doctest
import inspect
import logging
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from laws import bits
from lives import library
from torch import nn

import torchmove as tm

lightning = library("lightning")
callbacks = library("lightning.pytorch.callbacks")
strategies = library("lightning.pytorch.strategies")
accelerators = library("lightning.pytorch.accelerators")
TorchmoveCallback = import_module("torchmove.integrations.lightning").TorchmoveCallback

DEVICES = [
    pytest.param("twin:0", marks=pytest.mark.twin),
    "cpu",
    pytest.param("cuda:0", marks=pytest.mark.cuda),
]


class Net(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.BatchNorm1d(8), nn.Linear(8, 2))
        self.losses: list[torch.Tensor] = []

    def training_step(self, batch: Any) -> torch.Tensor:
        loss = self.net(batch[0]).square().mean()
        self.losses.append(loss.detach())
        return loss

    def validation_step(self, batch: Any) -> None:
        loss = self.net(batch[0]).square().mean()
        self.log("val_loss", loss)
        self.losses.append(loss.detach())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


class Manual(Net):
    """Two optimizers, stepped by hand: one clips, the other steps after every second batch."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, index: int) -> None:  # type: ignore[override]
        first, second = self.optimizers()
        loss = self.net(batch[0]).square().mean()
        self.manual_backward(loss)
        self.clip_gradients(first, gradient_clip_val=0.5)
        first.step()
        first.zero_grad()
        if index % 2:
            second.step()
            second.zero_grad()
        self.losses.append(loss.detach())

    def configure_optimizers(self) -> Any:
        head = torch.optim.SGD(self.net[3].parameters(), lr=1e-2, momentum=0.9)
        return torch.optim.Adam(self.net[0].parameters(), lr=1e-2), head


class ShadowEMA(lightning.Callback):
    """An average as users write it: copies in a dict, of which no module knows."""

    shadow: dict[str, torch.Tensor]

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        self.shadow = {name: each.detach().clone() for name, each in pl_module.named_parameters()}

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *others: Any) -> None:
        for name, each in pl_module.named_parameters():
            self.shadow[name].lerp_(each.detach(), 0.1)


class Watch(lightning.Callback):
    """Records where optimizer state and parameters are while the validation runs."""

    def __init__(self) -> None:
        self.seen: list[tuple[set[str], set[str]]] = []

    def on_validation_batch_start(self, trainer: Any, pl_module: Any, *others: Any) -> None:
        states = (state for each in trainer.optimizers for state in each.state.values())
        resting = [value for state in states for name, value in state.items() if name != "step"]
        assert not [each for each in pl_module.parameters() if each.grad is not None]  # Lightning frees them
        kinds = ({each.device.type for each in some} for some in (resting, [*pl_module.parameters()]))
        if not trainer.sanity_checking:
            self.seen.append(tuple(kinds))


class SimulatedAccelerator(accelerators.CPUAccelerator):
    def setup_device(self, device: torch.device) -> None:
        """Nothing to set up."""


def trainer_for(device: str, *helpers: Any, **options: Any) -> Any:
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
    strategy = {"accelerator": device.partition(":")[0], "devices": 1}
    if device.startswith("twin"):
        one = strategies.SingleDeviceStrategy(torch.device(device), accelerator=SimulatedAccelerator())
        strategy = {"strategy": one}
    options = {"max_epochs": 3, "enable_checkpointing": False, **strategy, **quiet, **options}
    return lightning.Trainer(callbacks=list(helpers), **options)


def rows() -> Any:
    torch.manual_seed(1)
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(12, 4)), batch_size=4)


HELPERS: dict[str, Callable[[], list[Any]]] = {
    "alone": list,
    "shadow ema": lambda: [ShadowEMA()],
    "weight averaging": lambda: [callbacks.EMAWeightAveraging(decay=0.9)],
    "early stopping": lambda: [callbacks.EarlyStopping("val_loss", patience=9)],
}


def fitted(device: str, net: type[Net], *helpers: Any, **options: Any) -> dict[str, bytes]:
    """The bits of everything after a fit: weights, losses, averages, optimizer state."""
    torch.manual_seed(0)
    model, trainer = net(), trainer_for(device, *helpers, val_check_interval=1, **options)
    trainer.fit(model, rows(), rows())
    state = model.state_dict() | {f"loss {index}": loss for index, loss in enumerate(model.losses)}
    for helper in helpers:
        average = getattr(helper, "_average_model", None)
        state |= average.state_dict() if average is not None else {}
        state |= {f"shadow {name}": value for name, value in getattr(helper, "shadow", {}).items()}
    for index, optimizer in enumerate(trainer.optimizers):
        for number, each in enumerate(optimizer.state.values()):
            state |= {f"state {index} {number} {name}": value for name, value in each.items()}
    return {name: bits(value) for name, value in state.items()}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("helpers", HELPERS)
@pytest.mark.parametrize("net", [Net, Manual])
def test_a_fit_with_the_callback_gives_the_same_bits(net, helpers, device, twin):
    watch, callback = Watch(), TorchmoveCallback(park_during="validation")
    without = fitted(device, net, *HELPERS[helpers]())
    assert fitted(device, net, callback, watch, *HELPERS[helpers]()) == without
    assert watch.seen
    assert {tuple(map(tuple, each)) for each in watch.seen} == {(("cpu",), (device.partition(":")[0],))}


def test_without_park_during_nothing_is_parked(twin):
    watch = Watch()
    fitted("twin:0", Net, TorchmoveCallback(), watch)
    assert {tuple(map(tuple, each)) for each in watch.seen} == {(("twin",), ("twin",))}


class Excursion(lightning.Callback):
    """At the end of an epoch, the whole training is parked on request."""

    def __init__(self, callback: Any) -> None:
        self.callback, self.types = callback, set()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        with self.callback.parked() as parked:
            assert parked.receipt.plan.tensors
            states = (state for each in trainer.optimizers for state in each.state.values())
            every = [*pl_module.parameters(), *pl_module.losses, *(value for each in states for value in each.values())]
            self.types |= {each.device.type for each in every}
            for helper in trainer.callbacks:
                self.types |= {each.device.type for each in getattr(helper, "shadow", {}).values()}
        assert trainer.strategy.root_device == next(pl_module.parameters()).device


@pytest.mark.parametrize("helpers", HELPERS)
def test_the_whole_training_is_parked_on_request(helpers, twin):
    callback = TorchmoveCallback(park_during="validation")
    excursion = Excursion(callback)
    without = fitted("twin:0", Net, *HELPERS[helpers]())
    assert fitted("twin:0", Net, callback, excursion, *HELPERS[helpers]()) == without
    assert excursion.types == {"cpu"}


class ParksAgain(Watch):
    """In the middle of a validation, with optimizer state parked already, all the rest is parked for a while."""

    callback: Any

    def on_validation_batch_end(self, trainer: Any, pl_module: Any, *others: Any) -> None:
        with self.callback.parked():
            assert {each.device.type for each in pl_module.parameters()} == {"cpu"}


def test_what_is_parked_during_a_validation_can_be_parked_around_a_block_in_it(twin):
    watch = ParksAgain()
    watch.callback = TorchmoveCallback(park_during="validation")
    without = fitted("twin:0", Net, ShadowEMA(), num_sanity_val_steps=0)
    assert fitted("twin:0", Net, watch.callback, watch, ShadowEMA(), num_sanity_val_steps=0) == without


def test_a_checkpoint_of_a_training_with_the_callback_is_the_same(tmp_path, twin):
    """Written after a validation and by it; it does not mention the callback, and a fit without it continues."""
    files = []
    for helpers in ([], [TorchmoveCallback(park_during="validation")]):
        folder = tmp_path / str(len(helpers))
        saving = callbacks.ModelCheckpoint(
            folder, monitor="val_loss", save_top_k=-1, filename="{step}", save_on_train_epoch_end=False
        )
        fitted("twin:0", Net, *helpers, saving, enable_checkpointing=True)
        files.append({path.name: torch.load(path, weights_only=False) for path in sorted(folder.iterdir())})
    without, parked = files
    assert [*without] == [*parked]
    assert len(parked) > 3
    for name, saved in parked.items():
        assert not [key for key in saved["callbacks"] if "Torchmove" in key]
        for part in ("state_dict", "optimizer_states", "lr_schedulers"):
            assert leaves(saved[part]) == leaves(without[name][part])
    assert resumed(tmp_path / "1" / name) == resumed(tmp_path / "0" / name)


def resumed(checkpoint: Path) -> dict[str, bytes]:
    net = Net()
    trainer_for("twin:0", max_epochs=5).fit(net, rows(), ckpt_path=checkpoint)
    assert net.losses
    return {name: bits(value) for name, value in net.state_dict().items()}


def leaves(value: Any) -> Any:
    """What a checkpoint holds: of tensors the bits and the device."""
    if isinstance(value, torch.Tensor):
        return bits(value), str(value.device)
    if isinstance(value, dict):
        return {key: leaves(each) for key, each in value.items()}
    return [leaves(each) for each in value] if isinstance(value, (list, tuple)) else value


class Left(Net):
    """A tensor in a plain attribute, which stays on the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.ones(4)


class LateEMA(ShadowEMA):
    """Copies the weights before the trainer moves them."""

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self.shadow = {name: each.detach().clone() for name, each in pl_module.named_parameters()}

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """They stay there."""

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *others: Any) -> None:
        """They are not needed."""


@pytest.mark.parametrize(
    ("net", "helpers", "paths"),
    [
        (Left, [], {"table"}),
        (Net, [LateEMA], {f"shadow['net.{name}']" for name, _ in Net().net.named_parameters()}),
    ],
)
def test_what_is_on_another_device_when_training_starts_is_an_error(net, helpers, paths, twin):
    trainer = trainer_for("twin:0", *[make() for make in helpers], TorchmoveCallback())
    with pytest.raises(tm.VerificationError) as error:
        trainer.fit(net(), rows())
    findings = error.value.verdict.findings
    assert {(finding.code, finding.path.partition(".")[2]) for finding in findings} == {
        ("V401", path) for path in paths
    }


def test_the_remedy_of_the_error_can_be_followed(twin):
    net = Left()
    net.on_fit_start = lambda: tm.move(net, to="twin:0", keep=[net.trainer])
    trainer_for("twin:0", TorchmoveCallback(), max_steps=1).fit(net, rows())
    assert net.table.device.type == "twin"


@pytest.mark.parametrize("options", [{"verify": "off"}, {"keep": ["*.table"]}])
def test_what_may_be_elsewhere_is_no_error(options, twin, recwarn):
    trainer_for("twin:0", TorchmoveCallback(**options), max_steps=1).fit(Left(), rows())
    assert not [each for each in recwarn if "V401" in str(each.message)]


def test_a_warning_instead_of_an_error(twin):
    with pytest.warns(UserWarning, match=r"V401 \w+\.table"):
        trainer_for("twin:0", TorchmoveCallback(verify="warn"), max_steps=1).fit(Left(), rows())


def test_objects_that_are_given_are_verified_and_parked(twin):
    ema = {"weights": torch.zeros(3)}
    with pytest.raises(tm.VerificationError, match="weights"):
        trainer_for("twin:0", TorchmoveCallback(ema)).fit(Net(), rows())
    tm.move(ema, to="twin:0")
    callback = TorchmoveCallback(ema)
    excursion = Excursion(callback)
    callback_of = trainer_for("twin:0", callback, excursion, max_epochs=1)
    seen = []
    excursion.on_train_epoch_end = lambda *_: seen.append(where_parked(callback, ema["weights"]))
    callback_of.fit(Net(), rows())
    assert seen == ["cpu"]
    assert ema["weights"].device.type == "twin"


def where_parked(callback: Any, tensor: torch.Tensor) -> str:
    with callback.parked():
        return tensor.device.type


class Fails(Net):
    def validation_step(self, batch: Any) -> None:
        if self.trainer.sanity_checking:
            return
        assert {value.device.type for value in self.optimizers().state[self.net[0].weight].values()} == {"cpu"}
        raise ArithmeticError


def test_an_exception_in_a_validation_wakes_the_optimizers(twin):
    class After(lightning.Callback):
        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            states = (state for each in trainer.optimizers for state in each.state.values())
            types.extend(value.device.type for state in states for name, value in state.items() if name != "step")

    types: list[str] = []
    with pytest.raises(ArithmeticError):
        trainer_for("twin:0", TorchmoveCallback(park_during="validation"), After()).fit(Fails(), rows(), rows())
    assert types == ["twin"] * 12


def test_receipts_are_logged_on_one_line_each(twin, caplog):
    logger = "lightning.pytorch.utilities.rank_zero"
    with caplog.at_level("INFO", logger):
        logging.getLogger("lightning.pytorch").propagate = True
        callback = TorchmoveCallback(park_during="validation")
        trainer_for("twin:0", callback, Excursion(callback), max_epochs=1).fit(Net(), rows(), rows())
    lines = [each.getMessage() for each in caplog.records if each.getMessage().startswith("torchmove:")]
    assert len(lines) == 3
    assert lines[0].endswith("tensors on twin:0")
    assert lines[0].startswith("torchmove: verified: ")
    assert "parked during validation: 12 tensors, " in lines[1]
    assert "back in" in lines[2]
    assert not [line for line in lines if "\n" in line]


def test_parked_outside_of_a_fit_is_an_error():
    with pytest.raises(RuntimeError, match=r"during trainer\.fit"), TorchmoveCallback().parked():
        pass


@pytest.mark.parametrize("options", [{"verify": "maybe"}, {"park_during": "evaluation"}])
def test_an_unknown_option_is_an_error(options):
    with pytest.raises(ValueError, match="Fix: "):
        TorchmoveCallback(**options)


PROGRAM = """
import warnings
warnings.simplefilter("ignore")
import torch
{first}
{second}

class Net({package}.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(4, 2)
    def training_step(self, batch):
        return self.net(batch).square().mean()
    validation_step = training_step
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())

callback = TorchmoveCallback(park_during="validation")
assert isinstance(callback, {package}.Callback)
quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
trainer = {package}.Trainer(accelerator="cpu", max_epochs=1, callbacks=callback, **quiet)
trainer.fit(Net(), torch.utils.data.DataLoader(torch.randn(8, 4)), torch.utils.data.DataLoader(torch.randn(4, 4)))
"""


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_the_callback_is_one_of_the_package_that_the_program_uses(package):
    library(package)
    ours = "from torchmove.integrations.lightning import TorchmoveCallback"
    program = PROGRAM.format(first=f"import {package}", second=ours, package=package)
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    lines = [line for line in ran.stderr.splitlines() if line.startswith("torchmove:")]
    assert lines[0] == "torchmove: verified: 2 tensors on cpu"


def test_the_examples_in_its_docstrings_run():
    found = doctest.testmod(import_module("torchmove.integrations.lightning"))
    assert found.attempted
    assert not found.failed


def test_its_docstring_says_what_it_takes():
    for parameter in inspect.signature(TorchmoveCallback.__init__).parameters:
        assert parameter == "self" or re.search(rf"\n    \*?{parameter}: ", inspect.getdoc(TorchmoveCallback))
