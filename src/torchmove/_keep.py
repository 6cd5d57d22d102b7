"""What the user wants to stay, as a plan understands it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.optim import Optimizer

from torchmove import _plan, _survey
from torchmove._names import names_of


def keep_of(objects: dict[str, Any], keep: Sequence[Any]) -> _plan.Keep:
    if isinstance(keep, str) or not isinstance(keep, (list, tuple, set, frozenset)):
        raise TypeError("keep takes a list of objects and patterns: keep=[ema, 'model.*.table']")
    kept = [_holder(each, objects) for each in keep if not isinstance(each, str)]
    ids = {id(each) for each in kept}
    # A given object that is not kept belongs to itself, also where a kept one holds it.
    besides = [each for each in objects.values() if id(each) not in ids]
    known = {id(value): name for name, value in objects.items()}
    named = {known.get(id(each), name): each for name, each in names_of(kept, None).items()}
    return _plan.Keep(_survey.survey(named, besides=besides), [each for each in keep if isinstance(each, str)])


def _holder(each: Any, objects: dict[str, Any]) -> Any:
    """An optimizer for its state, whose keys are the parameters: an optimizer that is kept keeps that, and not them."""
    optimizers = (one for one in objects.values() if isinstance(one, Optimizer))
    return next((one for one in optimizers if one.state is each), each)
