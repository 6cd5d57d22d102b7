"""Small blocks travel in bundles: one behind the other in a slot, over the link together, then a storage for each.

What takes time here is each tensor, not the link. So everything is done for many at once, in calls that let go of
Python's lock, and several bundles are on their way side by side. Those of one shape are one matter for torch: neither
to put them together nor to take them apart does each have to be looked at on its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import repeat
from typing import NamedTuple

import torch
from torch import Tensor

from torchmove._storage import apart, copy_alone, filled, is_shared_out, many_like
from torchmove.staging.traffic import Cancelled, Road, Slot, Traffic

_MOST = 8192  # tensors in a bundle
_AT_ONCE = 8  # bundles; more are in each other's way

Arrived = Callable[[Sequence[int], Sequence[Tensor]], None]


class Bundle(NamedTuple):
    """Contiguous tensors of one dtype, in groups of one shape; `keys` tell them apart."""

    groups: list[list[Tensor]]
    keys: list[int]
    nbytes: int
    rooms: Sequence[list[Tensor]] = ()  # for the copies of each group, on a device

    def with_rooms(self, device: torch.device) -> Bundle:
        return self._replace(rooms=[many_like(group[0], len(group), device) for group in self.groups])

    @property
    def dtype(self) -> torch.dtype:
        return self.groups[0][0].dtype

    def gather(self, out: Tensor) -> None:
        for group, part in zip(self.groups, self.parts(out), strict=True):
            if is_shared_out(part[0]):
                for tensor, row in zip(group, part, strict=True):
                    copy_alone(tensor, row)
            elif part.dim() > 1:
                torch.cat(group, out=part.flatten(0, 1))
            else:
                torch.stack(group, out=part)

    def spread(self, slab: Tensor) -> list[Tensor]:
        """Copies like the tensors, each with a storage of its own, from a slab into which such were gathered."""
        parts = self.parts(slab)
        if not self.rooms:
            return apart(parts)
        return [copy for rooms, part in zip(self.rooms, parts, strict=True) for copy in filled(rooms, part)]

    def parts(self, slab: Tensor) -> list[Tensor]:
        """The place of each group in a flat tensor, a row for each of its tensors."""
        parts = slab.split([len(group) * group[0].numel() for group in self.groups])  # type: ignore[no-untyped-call]
        return [part.view(len(group), *group[0].shape) for part, group in zip(parts, self.groups, strict=True)]


Kind = tuple[torch.dtype, Sequence[int]]  # and shape


def bundled(tensors: Sequence[Tensor], kinds: Iterable[Kind], keys: Sequence[int], most_bytes: int) -> Iterator[Bundle]:
    """As many in a bundle as fit, those of one kind together."""
    alike: defaultdict[Kind, list[int]] = defaultdict(list)
    for at, kind in enumerate(kinds):
        alike[kind].append(at)
    by_dtype: defaultdict[torch.dtype, list[list[int]]] = defaultdict(list)
    for (dtype, _), places in alike.items():
        by_dtype[dtype].append(places)
    for groups in by_dtype.values():
        bundle = Bundle([], [], 0)
        for places in groups:
            size, start = tensors[places[0]].nbytes, 0
            while start < len(places):
                stop = start + min(_MOST - len(bundle.keys), (most_bytes - bundle.nbytes) // size)
                if stop > start or not bundle.keys:
                    some = places[start : max(stop, start + 1)]
                    start += len(some)
                    bundle.groups.append([tensors[at] for at in some])
                    bundle.keys.extend([keys[at] for at in some])
                    bundle = bundle._replace(nbytes=bundle.nbytes + size * len(some))
                else:
                    yield bundle
                    bundle = Bundle([], [], 0)
        yield bundle


class Bundles(Traffic[Bundle]):
    """Bundles on their way, each by a worker and through a slot of its own; `arrived` is told the keys and the copies.

    Memory for the copies is asked for by the caller, as it is for large blocks: however many ask for it, they are
    served one after the other. Meanwhile the bundles are put together. The given stream is the caller's: memory of
    another one would be of no use to it later.
    """

    def __init__(self, road: Road, bundles: Iterable[Bundle], arrived: Arrived) -> None:
        super().__init__(road._replace(slots=road.slots[:_AT_ONCE]))
        self.bundles, self.arrived = bundles, arrived

    def to_device(self) -> None:
        # No generator: it would close over this object, and an error in it keep that.
        asked = iter(self.asked.get, None)
        self.run(self.ask_and_share, map(Bundle.with_rooms, asked, repeat(self.stream.device)))

    def to_host(self) -> None:
        self.run(partial(self.share, self.down), self.bundles)

    def ask_and_share(self) -> None:
        for bundle in self.bundles:
            if self.cancelled:
                raise Cancelled
            self.asked.put(bundle)
        self.asked.put(None)
        self.share(self.up)

    def share(self, carry: Callable[[Bundle, Slot], None]) -> None:
        while (bundle := self.handed.get()) is not None:
            if not self.free:
                self.receive()
            if self.cancelled:
                raise Cancelled
            slot = self.free.pop()
            self.give(partial(carry, bundle, slot), bundle, slot)
        while self.at_work:
            self.receive()

    def receive(self) -> None:
        bundle, slot = self.take()
        self.free.append(slot)
        self.advance(bundle.nbytes)

    def up(self, bundle: Bundle, slot: Slot) -> None:
        slot.event.synchronize()  # what it held last has crossed the link
        with torch.cuda.device(self.stream.device), torch.cuda.stream(self.stream):
            host = slot.bytes[: bundle.nbytes].view(bundle.dtype)
            bundle.gather(host)
            slab = host.to(self.stream.device, non_blocking=True)
            slot.event.record(self.stream)
            self.arrived(bundle.keys, bundle.spread(slab))

    def down(self, bundle: Bundle, slot: Slot) -> None:
        with torch.cuda.device(self.stream.device), torch.cuda.stream(self.stream):
            host = slot.bytes[: bundle.nbytes].view(bundle.dtype)
            slab = torch.empty_like(host, device=self.stream.device)
            bundle.gather(slab)
            host.copy_(slab, non_blocking=True)
            slot.event.record(self.stream)
            slot.event.synchronize()
            self.arrived(bundle.keys, bundle.spread(host))
