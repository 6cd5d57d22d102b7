"""TorchmoveCallback in a `Trainer` of transformers: it verifies, parks around evaluations, and changes no bit."""

from __future__ import annotations

import doctest
import inspect
import logging
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from laws import bits
from lives import library

import torchmove as tm

transformers = library("transformers")
accelerate = library("accelerate")
TorchmoveCallback = import_module("torchmove.integrations.transformers").TorchmoveCallback

DEVICES = [
    pytest.param("twin:0", marks=pytest.mark.twin),
    "cpu",
    pytest.param("cuda:0", marks=pytest.mark.cuda),
]
SMALL = {"n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 40, "n_positions": 16}


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    yield
    forget()


def forget() -> None:
    """accelerate remembers its device for the whole process."""
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()


def samples(count: int) -> list[dict[str, torch.Tensor]]:
    torch.manual_seed(1)
    rows = [torch.randint(1, 40, (8,)) for _ in range(count)]
    return [{"input_ids": row, "labels": row} for row in rows]


def trainer_for(folder: Path, device: str, *callbacks: Any, evaluated: Any = None, **options: Any) -> Any:
    forget()
    torch.manual_seed(0)
    config = transformers.GPT2Config(**SMALL, bos_token_id=0, eos_token_id=0, pad_token_id=0)
    quiet = {"report_to": [], "disable_tqdm": True, "dataloader_pin_memory": False, "log_level": "info"}
    when = {"max_steps": 4, "eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}
    batches = {"per_device_train_batch_size": 2, "per_device_eval_batch_size": 2, "use_cpu": device != "cuda:0"}
    options = {"logging_steps": 1, **quiet, **when, **batches, **options}
    trainer = transformers.Trainer(
        model=transformers.GPT2LMHeadModel(config),
        args=transformers.TrainingArguments(str(folder), **options),
        train_dataset=samples(8),
        eval_dataset=evaluated or samples(4),
        callbacks=list(callbacks),
    )
    if device.startswith("twin"):  # which accelerate does not know
        tm.move(trainer, to=device)
    return trainer


class ShadowEMA(transformers.TrainerCallback):
    """An average as users write it."""

    def __init__(self) -> None:
        self.shadow: dict[str, torch.Tensor] = {}

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **others: Any) -> None:
        for name, each in model.named_parameters():
            self.shadow.setdefault(name, each.detach().clone()).lerp_(each.detach(), 0.1)


class Watch(transformers.TrainerCallback):
    """Records where optimizer state and parameters are at each evaluated batch, and when it ends."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def on_prediction_step(
        self, args: Any, state: Any, control: Any, model: Any = None, optimizer: Any = None, **others: Any
    ) -> None:
        states = (value for each in optimizer.state.values() for name, value in each.items() if name != "step")
        (resting,), (kind,) = ({each.device.type for each in some} for some in (states, model.parameters()))
        self.seen.append((resting, kind))


TIMES = re.compile(r"runtime|per_second|epoch$")


def result_of(trainer: Any) -> dict[str, Any]:
    """The bits of everything after a training, and what it has logged."""
    state = dict(trainer.model.state_dict())
    for number, each in enumerate(trainer.optimizer.state.values()):
        state |= {f"state {number} {name}": value for name, value in each.items()}
    for callback in trainer.callback_handler.callbacks:
        state |= {f"shadow {name}": value for name, value in getattr(callback, "shadow", {}).items()}
    logged = [{key: value for key, value in row.items() if not TIMES.search(key)} for row in trainer.state.log_history]
    return {"log": logged} | {name: bits(value) for name, value in state.items()}


@pytest.mark.parametrize("device", DEVICES)
def test_a_training_with_the_callback_gives_the_same_bits_and_the_same_files(device, tmp_path, twin):
    watch = Watch()
    without = trainer_for(tmp_path / "without", device, ShadowEMA())
    without.train()
    trainer = trainer_for(tmp_path / "with", device, watch, ShadowEMA(), TorchmoveCallback(park_during="evaluation"))
    trainer.train()
    assert result_of(trainer) == result_of(without)
    assert watch.seen == [("cpu", device.partition(":")[0])] * 4
    for name in ("checkpoint-2", "checkpoint-4"):
        ours, theirs = (tmp_path / folder / name / "optimizer.pt" for folder in ("with", "without"))
        assert leaves(torch.load(ours)) == leaves(torch.load(theirs))


def leaves(value: Any) -> Any:
    """What a file holds: of tensors the bits and the device."""
    if isinstance(value, torch.Tensor):
        return bits(value), str(value.device)
    if isinstance(value, dict):
        return {key: leaves(each) for key, each in value.items()}
    return [leaves(each) for each in value] if isinstance(value, (list, tuple)) else value


def test_an_evaluation_at_the_end_of_an_epoch_is_parked_too(tmp_path, twin):
    watch = Watch()
    options = {"eval_strategy": "epoch", "save_strategy": "epoch", "max_steps": -1, "num_train_epochs": 2}
    trainer_for(tmp_path, "twin:0", watch, TorchmoveCallback(park_during="evaluation"), **options).train()
    assert watch.seen == [("cpu", "twin")] * 4


def test_of_several_datasets_the_others_are_parked_from_their_second_batch(tmp_path, twin):
    watch = Watch()
    trainer = trainer_for(
        tmp_path,
        "twin:0",
        watch,
        TorchmoveCallback(park_during="evaluation"),
        evaluated={"first": samples(6), "second": samples(6)},
        max_steps=2,
    )
    trainer.train()
    assert [resting for resting, _ in watch.seen] == ["cpu", "cpu", "cpu", "twin", "cpu", "cpu"]
    assert device_types(trainer) == {"twin"}


def test_without_park_during_nothing_is_parked(tmp_path, twin):
    watch = Watch()
    trainer_for(tmp_path, "twin:0", watch, TorchmoveCallback()).train()
    assert watch.seen == [("twin", "twin")] * 4


def device_types(trainer: Any) -> set[str]:
    states = (value for each in trainer.optimizer.state.values() for name, value in each.items() if name != "step")
    return {each.device.type for each in (*trainer.model.parameters(), *states)}


@pytest.mark.parametrize("call", ["evaluate", "predict"])
def test_what_runs_outside_of_a_training_is_parked_from_its_second_batch(call, tmp_path, twin):
    watch = Watch()
    trainer = trainer_for(tmp_path, "twin:0", watch, TorchmoveCallback(park_during="evaluation"), eval_strategy="no")
    trainer.train()
    getattr(trainer, call)(*([samples(6)] if call == "predict" else []))
    assert [resting for resting, _ in watch.seen] == ["twin", *["cpu"] * (len(watch.seen) - 1)]
    assert len(watch.seen) > 1
    assert device_types(trainer) == {"twin"}


def test_an_evaluation_before_the_first_training_has_nothing_to_park(tmp_path, twin):
    trainer = trainer_for(tmp_path, "twin:0", TorchmoveCallback(park_during="evaluation"))
    assert trainer.evaluate()["eval_loss"] > 0


class Generating(transformers.TrainerCallback):
    """After an evaluation, the whole state is parked on request: for an engine that generates, say."""

    def __init__(self, callback: Any, ema: ShadowEMA) -> None:
        self.callback, self.ema, self.types = callback, ema, set()

    def on_evaluate(self, args: Any, state: Any, control: Any, model: Any = None, **others: Any) -> None:
        with self.callback.parked() as parked:
            assert parked.receipt.plan.tensors
            self.types |= {each.device.type for each in (*model.parameters(), *self.ema.shadow.values())}


def test_the_whole_training_is_parked_on_request(tmp_path, twin):
    without = trainer_for(tmp_path / "without", "twin:0", ShadowEMA())
    without.train()
    ema = ShadowEMA()
    callback = TorchmoveCallback(ema.shadow, park_during="evaluation")
    generating = Generating(callback, ema)
    trainer = trainer_for(tmp_path / "with", "twin:0", ema, generating, callback)
    trainer.train()
    assert generating.types == {"cpu"}
    assert result_of(trainer) == result_of(without)


def with_table(trainer: Any) -> Any:
    trainer.model.transformer.table = torch.ones(4)
    return trainer


def test_what_is_on_another_device_when_training_starts_is_an_error(tmp_path, twin):
    trainer = with_table(trainer_for(tmp_path, "twin:0", TorchmoveCallback()))
    with pytest.raises(tm.VerificationError) as error:
        trainer.train()
    assert [each.code for each in error.value.verdict.findings] == ["V401"]
    assert error.value.verdict.findings[0].path.endswith(".transformer.table")
    tm.move(trainer.model, to="twin:0")
    assert trainer.train().global_step == 4


def test_objects_that_are_given_are_verified(tmp_path, twin):
    ema: dict[str, torch.Tensor] = {}
    trainer = trainer_for(tmp_path, "twin:0", TorchmoveCallback(ema))
    ema["average"] = torch.zeros(3)
    with pytest.raises(tm.VerificationError, match="average"):
        trainer.train()


@pytest.mark.parametrize("options", [{"verify": "off"}, {"keep": ["model.*.table"]}])
def test_what_may_be_elsewhere_is_no_error(options, tmp_path, twin):
    assert with_table(trainer_for(tmp_path, "twin:0", TorchmoveCallback(**options))).train().global_step == 4


def test_a_warning_instead_of_an_error(tmp_path, twin):
    trainer = with_table(trainer_for(tmp_path, "twin:0", TorchmoveCallback(verify="warn")))
    with pytest.warns(UserWarning, match=r"V401 \w+\.transformer\.table"):
        trainer.train()


@pytest.fixture
def logged() -> Iterator[list[str]]:
    """The lines that the callback logs."""
    lines: list[str] = []
    logger, handler = logging.getLogger("transformers.torchmove"), logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    yield lines
    logger.removeHandler(handler)


def test_a_model_on_several_devices_is_not_verified(tmp_path, twin, logged):
    trainer = trainer_for(tmp_path, "cpu", TorchmoveCallback())
    trainer.model.lm_head.table = torch.ones(4, device="twin:0")
    trainer.model.hf_device_map = {"transformer": "cpu", "lm_head": "twin:0"}
    assert trainer.train().global_step == 4
    assert logged == ["torchmove: not verified: hf_device_map places the model on several devices"]


class Interrupted(transformers.TrainerCallback):
    """Fails once, in an evaluation."""

    fails = True

    def on_prediction_step(self, *everything: Any, **others: Any) -> None:
        if self.fails:
            self.fails = False
            raise ArithmeticError


def test_a_training_after_an_evaluation_that_failed_has_its_state_back(tmp_path, twin):
    callback = TorchmoveCallback(park_during="evaluation")
    trainer = trainer_for(tmp_path, "twin:0", Interrupted(), callback)
    with pytest.raises(ArithmeticError):
        trainer.train()
    assert device_types(trainer) == {"twin", "cpu"}
    trainer.train()
    assert device_types(trainer) == {"twin"}


def test_receipts_are_logged_on_one_line_each(tmp_path, twin, logged):
    callback = TorchmoveCallback(park_during="evaluation")
    trainer_for(tmp_path, "twin:0", callback, max_steps=2).train()
    with callback.parked():
        pass
    assert len(logged) == 3
    assert logged[0] == "torchmove: verified: 16 tensors on twin:0"
    assert logged[1].startswith("torchmove: optimizer state parked during evaluation: 48 tensors, ")
    assert logged[2].startswith("torchmove: parked 64 tensors, ")
    assert not [line for line in logged if "\n" in line]


def test_parked_before_any_training_is_an_error():
    with pytest.raises(RuntimeError, match=r"trainer\.train"), TorchmoveCallback().parked():
        pass


@pytest.mark.parametrize("options", [{"verify": "maybe"}, {"park_during": "validation"}])
def test_an_unknown_option_is_an_error(options):
    with pytest.raises(ValueError, match="Fix: "):
        TorchmoveCallback(**options)


def test_the_examples_in_its_docstrings_run():
    found = doctest.testmod(import_module("torchmove.integrations.transformers"))
    assert found.attempted
    assert not found.failed


def test_its_docstring_says_what_it_takes():
    for parameter in inspect.signature(TorchmoveCallback.__init__).parameters:
        assert parameter == "self" or re.search(rf"\n    \*?{parameter}: ", inspect.getdoc(TorchmoveCallback))
