"""What `keep=` names, as the planner uses it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch.optim import Optimizer

from torchmove.surveying.inventory import Inventory
from torchmove.surveying.names import names_of
from torchmove.surveying.paths import Path, matcher
from torchmove.surveying.survey import survey_objects


class Keep:
    """The tensors and holders that `keep=` names: objects, with everything in them, and path patterns."""

    def __init__(self, objects: Inventory, patterns: Sequence[str]) -> None:
        # To keep an optimizer keeps its state, not the parameters that it trains.
        found = [(each.tensor, each.path) for each in objects.tensors]
        found += [(each.tensor, each.path) for each in objects.composites]
        self.tensors = {id(tensor) for tensor, path in found if "param_groups" not in path.names()}
        self.holders = set(objects.holders)
        self.patterns = {pattern: matcher(pattern) for pattern in patterns}
        self.roots = dict(zip(objects.roots, objects.objects, strict=True))

    def has(self, value: Any, paths: Iterable[Path]) -> bool:
        if id(value) in self.tensors or id(value) in self.holders:
            return True
        return bool(self.patterns) and any(fits(path) for path in paths for fits in self.patterns.values())


def keep_of(objects: dict[str, Any], keep: Sequence[Any]) -> Keep:
    if isinstance(keep, str) or not isinstance(keep, (list, tuple, set, frozenset)):
        raise TypeError("keep= needs a list of objects and path patterns. Fix: keep=[ema, 'model.*.table']")
    kept = [_holder(each, objects) for each in keep if not isinstance(each, str)]
    ids = {id(each) for each in kept}
    # A given object that is not kept is not kept either where a kept object holds it.
    besides = [each for each in objects.values() if id(each) not in ids]
    known = {id(value): name for name, value in objects.items()}
    named = {known.get(id(each), name): each for name, each in names_of(kept, None).items()}
    return Keep(survey_objects(named, besides=besides), [each for each in keep if isinstance(each, str)])


def _holder(each: Any, objects: dict[str, Any]) -> Any:
    """The optimizer for `optimizer.state`: its keys are the parameters, which stay out of what an optimizer keeps."""
    optimizers = (one for one in objects.values() if isinstance(one, Optimizer))
    return next((one for one in optimizers if one.state is each), each)
