"""From what a pickle says to the tensors in it: every one by its path, each holder entered once."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from torchmove import _devices, _paths
from torchmove._paths import Path
from torchmove.checkpoints.contents import Entry, Kept, Mention, OptimizerState
from torchmove.checkpoints.reading import Reading
from torchmove.checkpoints.refusing import Unfit
from torchmove.checkpoints.values import PLAIN, Device, Part, Stored, Tensor, Window, inside
from torchmove.checkpoints.windows import nbytes, shown_bytes

# No pickler of Python's goes deeper by itself, and nobody reads longer paths.
_DEEPEST = 1_000
_LONGEST = 4_096


class Found(NamedTuple):
    entries: list[Entry]
    storages: list[Kept]
    optimizers: list[OptimizerState]
    mentions: list[Mention]

    def extend(self, more: Found) -> None:
        self.entries.extend(more.entries)
        self.storages.extend(more.storages)
        self.optimizers.extend(more.optimizers)
        self.mentions.extend(more.mentions)


def walk(reading: Reading, file: str, begin: int = 0) -> Found:
    """All that there is in one file. Its storages are counted from `begin` on."""
    numbers = {key: begin + index for index, key in enumerate(reading.storages)}
    found = Found([], [], [], [])
    windows: defaultdict[str, list[Window]] = defaultdict(list)
    for path, value in _values(reading.value):
        window = _window(value)
        if window is not None:
            stored = value if isinstance(value, Stored) else value.storage
            found.entries.append(_entry(path, window, numbers[stored.key] if stored else None))
            windows[stored.key if stored else ""].append(window)
        if isinstance(value, dict) and _is_optimizer(value):
            found.optimizers.append(_optimizer(path, value))
        if (device := _device(path, value)) is not None:
            found.mentions.append(Mention(path, device))
    for stored in reading.storages.values():
        shown = shown_bytes(windows[stored.key])
        found.storages.append(Kept(file, stored.key, stored.device, stored.nbytes, shown))
    return found


def _values(value: Any) -> Iterator[tuple[Path, Any]]:
    """Every value but numbers with its path, in order; a tensor by each of its paths. Holders are entered once."""
    path = _paths.root("")
    yield path, value
    seen = {id(value)}
    entered = [(path, 0, inside(value))]  # not lists of what is inside: one holder may have millions
    while entered:
        path, length, parts = entered[-1]
        part = next(parts, None)
        if part is None:
            entered.pop()
        elif isinstance(part.value, str):
            yield _step(path, part), part.value
        elif not isinstance(part.value, PLAIN):
            known, length, step = id(part.value) in seen, _long(length, part), _step(path, part)
            if len(entered) > _DEEPEST or length > _LONGEST:
                raise Unfit("R067", f"it is nested {len(entered)} deep, with a path of {length} characters")
            if not known or isinstance(part.value, (Tensor, Stored, Device)):
                yield step, part.value
            if not known:
                seen.add(id(part.value))
                entered.append((step, length, inside(part.value)))


def _step(path: Path, part: Part) -> Path:
    if part.how is _paths.KEYED:
        return Path(path, _paths.KEYED, Path(path, _paths.KEY, part.what))
    return Path(path, part.how, part.what)


def _long(length: int, part: Part) -> int:
    return length + 2 + len(part.what) if isinstance(part.what, str) else length + 8


def _window(value: Any) -> Window | None:
    if isinstance(value, Stored):
        return Window(value.dtype, 0, (value.nbytes // value.dtype.itemsize,), (1,))
    return value.window if isinstance(value, Tensor) else None


def _entry(path: Path, window: Window, storage: int | None) -> Entry:
    dtype = str(window.dtype).removeprefix("torch.")
    return Entry(path, dtype, window.size, window.stride, window.offset, nbytes(window), storage)


def _device(path: Path, value: Any) -> str | None:
    if isinstance(value, Device):
        return value.text
    within = None if path.before is None else path.before.what
    named = _devices.remembered(path.what, str(value), within) if isinstance(value, str) else None
    return None if named is None else str(value)


def _is_optimizer(value: dict[Any, Any]) -> bool:
    groups = value.get("param_groups")
    return (
        isinstance(value.get("state"), dict)
        and isinstance(groups, list)
        and all(isinstance(group, dict) and isinstance(group.get("params"), (list, tuple)) for group in groups)
    )


def _optimizer(path: Path, value: Mapping[str, Any]) -> OptimizerState:
    parameters = sum(len(group["params"]) for group in value["param_groups"])
    kinds: Counter[str] = Counter()
    states = [state for state in value["state"].values() if isinstance(state, dict)]
    for state in _once(states):
        kinds.update(dict.fromkeys(map(str, state), 0))
        for tensor, kind in _once_each(state):
            kinds[kind] += nbytes(tensor.window) if tensor.window else 0
    return OptimizerState(path, parameters, dict(kinds))


def _once_each(state: Mapping[Any, Any]) -> Iterator[tuple[Tensor, str]]:
    """The tensors of one parameter's state, those in lists too, each with its kind."""
    kinds = {id(each): str(kind) for kind, each in state.items()}
    for each in _once(state.values()):
        tensors = each if isinstance(each, (list, tuple)) else (each,)
        yield from ((tensor, kinds[id(each)]) for tensor in tensors if isinstance(tensor, Tensor))


def _once(values: Iterable[Any]) -> Iterable[Any]:
    # A pickle can name one and the same thing a million times.
    return {id(value): value for value in values}.values()
