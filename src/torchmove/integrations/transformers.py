"""A callback for the `Trainer` of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from torchmove.integrations.training_states import TrainingStateCallback, Verification

try:
    from transformers import TrainerCallback
    from transformers.utils import logging
except ModuleNotFoundError as missing:
    if missing.name != "transformers":
        raise
    raise ModuleNotFoundError(
        "torchmove.integrations.transformers needs transformers, which is not installed. "
        "Fix: pip install transformers[torch]"
    ) from None

_logger = logging.get_logger("transformers.torchmove")  # has the level that TrainingArguments(log_level=...) sets


class TorchmoveCallback(TrainingStateCallback, TrainerCallback):  # type: ignore[misc]
    """Verifies the training state when a training starts, and parks it.

    When training starts, model, optimizer, scheduler, gradient scaler and everything attached to them must be on the
    trainer's device. Give what else belongs to the state, such as an EMA: a `Trainer` does not tell its callbacks.

    Args:
        *objects: what else belongs to the training state.
        verify: "raise" a VerificationError if something is on another device, "warn", or "off".
        park_during: "evaluation" parks optimizer state during each evaluation. The model stays on its device, because
            it is evaluated; the trainer itself frees the gradients before.
        keep: what may be on any device and is never parked: objects, or path patterns, as for `tm.move`.

    Examples:
        >>> from torchmove.integrations.transformers import TorchmoveCallback
        >>> callback = TorchmoveCallback(park_during="evaluation")   # Trainer(..., callbacks=[callback])
    """

    def __init__(
        self,
        *objects: Any,
        verify: Verification = "raise",
        park_during: Literal["evaluation"] | None = None,
        keep: Sequence[Any] = (),
    ) -> None:
        super().__init__(*objects, verify=verify, park_during=park_during, parks_during="evaluation", keep=keep)
        self._training: tuple[Any, ...] = ()

    def _state(self) -> tuple[Any, ...]:
        if not self._training:
            raise RuntimeError("no training has started. Fix: use callback.parked() during or after trainer.train()")
        return *self._training, *self._objects

    def _log(self, line: str) -> None:
        _logger.info(line)

    # ---------------------------------------------------------------- what the trainer calls

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, optimizer: Any = None, **others: Any
    ) -> None:
        self._wake_optimizers()
        self._training = tuple(each for each in (model, optimizer, others.get("lr_scheduler")) if each is not None)
        if len({*map(str, (getattr(model, "hf_device_map", None) or {}).values())}) > 1:
            self._log("torchmove: not verified: hf_device_map places the model on several devices")
        else:
            self._verify_start(*self._training, on=args.device)

    # No event comes before an evaluation. One that is part of the training is announced at the end of a step or epoch;
    # of any other, the first sign is its first batch.

    def on_step_end(self, args: Any, state: Any, control: Any, optimizer: Any = None, **others: Any) -> None:
        if control.should_evaluate:
            self._park_optimizers([optimizer])

    on_epoch_end = on_step_end

    def on_prediction_step(self, args: Any, state: Any, control: Any, optimizer: Any = None, **others: Any) -> None:
        if optimizer is not None:
            self._park_optimizers([optimizer])

    def on_evaluate(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self._wake_optimizers()

    on_predict = on_evaluate
    on_step_begin = on_save = on_train_end = on_evaluate  # if an evaluation was announced and did not happen
