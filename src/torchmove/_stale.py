"""Is the state still the one that was planned for?"""

from __future__ import annotations

from torchmove import _survey
from torchmove._records import Inventory, Refusal

STALE = Refusal(
    "R013",
    "plan",
    "the state has changed since the plan was made: tensors came, went, look at other storages, or are in use",
    "plan again, right before applying",
)


def is_current(planned: Inventory) -> bool:
    """Does a fresh survey find the same tensors, looking at the same storages?"""
    now = _survey.survey(dict(zip(planned.roots, planned.objects, strict=True)))
    if not planned.slots.looks.is_like(now.slots.looks) or planned.blocks.special != now.blocks.special:
        return False
    if _told(planned) != _told(now):
        return False
    made_anew = {*planned.slots.made_anew()}
    pairs = enumerate(zip(planned.slots.tensors, now.slots.tensors, strict=True))
    return all(was is found or index in made_anew for index, (was, found) in pairs)


def _told(inventory: Inventory) -> list[tuple[object, ...]]:
    """What stands in the way (a graph that is alive now, say, and was not then), and which devices are remembered."""
    facts: list[tuple[object, ...]] = [(str(path), fact) for path, _, fact in inventory.told]
    return facts + [(id(value.holder), str(value.path), value.value) for value in inventory.device_values]
