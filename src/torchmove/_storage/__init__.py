"""Storages and windows on them: reading, cutting, rebinding. The only place that touches torch's private names.

A tensor is a window on a storage: shape, stride, offset, dtype, and whether it is read conjugated or negated. A window
can be cut on the copy of a storage, and a tensor made to look through it while it stays the same object. There are two
ways to do that, and torch says which one a pair of devices allows:

- `tensor.data = window` (cpu, cuda, xpu, mps; also between two devices of one kind). Hooks, version and the gradient
  stay with the tensor.
- swapping the implementation under the Python object (everywhere else, and for tensors made of tensors). Hooks and
  version are handed over; the gradient is set again once both it and its tensor are swapped.
"""

from __future__ import annotations

from torchmove._storage.accumulators import Accumulators
from torchmove._storage.binding import (
    Gradients,
    Rebinding,
    can_rebind_dense,
    can_rebind_result,
    rebind,
    rebind_dense,
    rebinding,
    shell_rebinding,
    with_shared_versions,
)
from torchmove._storage.cutting import BITS, apart, copy_alone, cut, filled, is_shared_out, many_like
from torchmove._storage.memory import Place, places_in_memory
from torchmove._storage.modes import makes_fakes, plain_torch, without_modes
from torchmove._storage.reach import bytes_of, load_of, packed, reached
from torchmove._storage.reading import (
    AT_ONCE,
    COPIED_AS_BYTES,
    SUB_BYTE,
    has_storage,
    in_shared_memory,
    look_all,
    look_at_any,
    look_at_wholes,
    multiplied_bytes,
    offset_of,
    window_of,
)
from torchmove._storage.scripted import (
    Baked,
    ScriptedAttributes,
    attributes_of,
    baked_into,
    baked_into_graph,
    is_scripted,
    module_of_method,
    scripted_within,
    set_attribute,
)
from torchmove._storage.watching import Watch, held_elsewhere, is_sole_owner, storage_device, storage_key

__all__ = [
    "AT_ONCE",
    "BITS",
    "COPIED_AS_BYTES",
    "SUB_BYTE",
    "Accumulators",
    "Baked",
    "Gradients",
    "Place",
    "Rebinding",
    "ScriptedAttributes",
    "Watch",
    "apart",
    "attributes_of",
    "baked_into",
    "baked_into_graph",
    "bytes_of",
    "can_rebind_dense",
    "can_rebind_result",
    "copy_alone",
    "cut",
    "filled",
    "has_storage",
    "held_elsewhere",
    "in_shared_memory",
    "is_scripted",
    "is_shared_out",
    "is_sole_owner",
    "load_of",
    "look_all",
    "look_at_any",
    "look_at_wholes",
    "makes_fakes",
    "many_like",
    "module_of_method",
    "multiplied_bytes",
    "offset_of",
    "packed",
    "places_in_memory",
    "plain_torch",
    "reached",
    "rebind",
    "rebind_dense",
    "rebinding",
    "scripted_within",
    "set_attribute",
    "shell_rebinding",
    "storage_device",
    "storage_key",
    "window_of",
    "with_shared_versions",
    "without_modes",
]
