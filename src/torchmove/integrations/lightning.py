"""A callback for Lightning's `Trainer`, of lightning.pytorch and of pytorch_lightning."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Literal

from torchmove.integrations.training_states import TrainingStateCallback, Verification

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def _callback_classes() -> tuple[type, ...]:
    """The base class of callbacks in each package that the program has imported, else in the first that is installed.

    A trainer takes only callbacks of its own package, and a program may import both.
    """
    packages = [name for name in _PACKAGES if sys.modules.get(name) is not None]
    for name in () if packages else _PACKAGES:
        try:
            import_module(name)
        except ModuleNotFoundError as missing:
            if missing.name not in (name, name.partition(".")[0]):
                raise
        else:
            packages = [name]
            break
    if not packages:
        raise ModuleNotFoundError(
            "torchmove.integrations.lightning needs Lightning, which is not installed. Fix: pip install lightning"
        )
    return tuple(import_module(name).Callback for name in packages)


class TorchmoveCallback(TrainingStateCallback, *_callback_classes()):  # type: ignore[misc]
    """Verifies the training state when a fit starts, and parks it.

    When training starts, model, optimizers, schedulers, gradient scaler, callbacks (such as an EMA) and everything
    attached to them must be on the trainer's device.

    Args:
        *objects: what else belongs to the training state, and is reached neither from the module nor from a callback.
        verify: "raise" a VerificationError if something is on another device, "warn", or "off".
        park_during: "validation" parks optimizer state during each validation. The model stays on its device, because
            it is validated; Lightning itself frees the gradients before.
        keep: what may be on any device and is never parked: objects, or path patterns, as for `tm.move`.

    Examples:
        >>> import lightning
        >>> from torchmove.integrations.lightning import TorchmoveCallback
        >>> callback = TorchmoveCallback(park_during="validation")
        >>> trainer = lightning.Trainer(logger=False, enable_checkpointing=False, callbacks=[callback])
    """

    def __init__(
        self,
        *objects: Any,
        verify: Verification = "raise",
        park_during: Literal["validation"] | None = None,
        keep: Sequence[Any] = (),
    ) -> None:
        super().__init__(*objects, verify=verify, park_during=park_during, parks_during="validation", keep=keep)
        self._trainer: Any = None

    def _state(self) -> tuple[Any, ...]:
        if self._trainer is None:
            raise RuntimeError("no trainer has started. Fix: use callback.parked() during trainer.fit(...)")
        return self._trainer, self._trainer.lightning_module, *self._objects

    def _log(self, line: str) -> None:
        rank_zero_info = import_module(f"{_package_of(self._trainer)}.utilities.rank_zero").rank_zero_info
        rank_zero_info(line)

    # ---------------------------------------------------------------- what the trainer calls

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._trainer = trainer

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        schedulers = (each.scheduler for each in trainer.lr_scheduler_configs)
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        state = (pl_module, *trainer.optimizers, *schedulers, scaler, *trainer.callbacks)
        # The module leads to the trainer, whose loops and loggers keep results wherever they are computed.
        self._verify_start(*state, on=trainer.strategy.root_device, ignore=[trainer])

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.sanity_checking:
            self._park_optimizers(trainer.optimizers)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self._wake_optimizers()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._wake_optimizers()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._wake_optimizers()
        self._trainer = None


def _package_of(trainer: Any) -> str:
    classes = (each.__module__ for each in type(trainer).__mro__)
    return next((name for module in classes for name in _PACKAGES if module.startswith(f"{name}.")), _PACKAGES[0])
