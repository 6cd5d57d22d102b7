"""Saving and loading in a step. No file is written: what the step saves to a path is kept in memory to be loaded again.

torch.save opens its file before it pickles, so that a failure on a stand-in would leave a broken file.
"""

from __future__ import annotations

import importlib
import io
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor, nn, serialization

from torchmove.internals.guards import Undo
from torchmove.internals.simulation import LOADING, OPENING, SAVING, file_systems, pytree, zip_writer_of
from torchmove.rehearsing import file_overlay
from torchmove.rehearsing.captured import tensors_in
from torchmove.rehearsing.concurrency import ThreadTracking
from torchmove.rehearsing.device import CannotGoOn, SimulatedDevice, outside_simulation
from torchmove.rehearsing.origins import loaded_on_cpu
from torchmove.rehearsing.replacement import put_in_place
from torchmove.rehearsing.tensors import CPU, StandIn, place_of

_WHY = "saving waits for the device and copies values to the CPU; a rehearsal does not write the file"


@contextmanager
def files(company: ThreadTracking, undo: Undo) -> Iterator[None]:
    """Patch torch.save, torch.load and file functions of `os` for the step; other threads write real files."""
    own = _Files(company, undo)
    with ExitStack() as patches:
        # Internal functions of torch.save: code that imported `save` itself calls them too.
        for names, over in ((OPENING, own.opening), (SAVING, own.saving), (LOADING, own.loading)):
            for name in names:
                patches.enter_context(patch.object(serialization, name, over(getattr(serialization, name))))
        for place, (name, over) in product(file_systems, _file_functions(own).items()):
            if hasattr(place, name):
                patches.enter_context(patch.object(place, name, over(getattr(place, name))))
        safetensors = _safetensors()
        for name in ("_flatten", "_flatten_as_ptr", "serialize_file"):
            if hasattr(safetensors, name):
                patches.enter_context(patch.object(safetensors, name, own.skipping(getattr(safetensors, name))))
        yield


def _file_functions(own: _Files) -> dict[str, Callable[..., Callable[..., Any]]]:
    removing, renaming = own.removing, own.renaming
    return {"stat": own.asked, "remove": removing, "unlink": removing, "rename": renaming, "replace": renaming}


class _Files:
    def __init__(self, company: ThreadTracking, undo: Undo) -> None:
        self.company, self.undo = company, undo
        self.written: dict[str, bytes | None] = {}  # by path; None if the values are unknown

    @property
    def stage(self) -> SimulatedDevice:
        return self.company.stage

    def opening(self, open_now: Callable[..., AbstractContextManager[Any]]) -> Callable[..., Any]:
        def opened(file: Any, *mode: str) -> Any:
            if mode != ("rb",):
                return _Later(file, lambda: open_now(file, *mode))
            path = _path_of(file)
            if path in self.written and self.company.is_on_stage():
                if self.written[path] is None:
                    raise CannotGoOn(f"this line reads {os.path.basename(path)}, which the step saved without values")
                return open_now(io.BytesIO(self.written[path] or b""), *mode)
            if file_overlay.is_active() and path and os.path.isfile(path) and not os.path.getsize(path):
                raise CannotGoOn(f"this reads {os.path.basename(path)}, which the script has saved")
            return open_now(file, *mode)

        return opened

    def saving(self, save: Callable[..., None]) -> Callable[..., None]:
        def saved(what: Any, file: Any, pickle: Any, *options: Any) -> None:
            if not self.company.is_on_stage() and not _has_stand_ins(what, pickle):
                save(what, file.opened if isinstance(file, _Later) else file, pickle, *options)
                return
            if not torch.is_storage(what):
                self.stage.note(f"torch.save: {_WHY}")
            target = file.file if isinstance(file, _Later) else file
            content = self._content(save, what, pickle, options)
            path = _path_of(target)
            if path:
                self._keep(path, content)
            elif hasattr(target, "write"):
                if content is None:
                    raise CannotGoOn("this line saves values, which shape-only mode does not compute")
                target.write(content)

        return saved

    def _keep(self, path: str, content: bytes | None) -> None:
        if file_overlay.is_active():
            with open(path, "wb") as file:  # an empty one, if the values are unknown
                file.write(content or b"")
        else:
            self.written[path] = content
        self.stage.not_written.add(os.path.basename(path))

    def _content(self, save: Callable[..., None], what: Any, pickle: Any, options: tuple[Any, ...]) -> bytes | None:
        """The content of the file; None if some values are unknown."""
        buffer = io.BytesIO()
        tag = serialization.location_tag

        def tagged(storage: Any) -> str:
            place = self.stage.saved.get(storage.data_ptr())  # set for the memory behind stand-ins
            return tag(storage) if place is None else str(place)

        try:
            with outside_simulation(), patch.object(serialization, "location_tag", tagged):
                if save.__name__ == "_legacy_save":
                    save(what, buffer, pickle, *options)
                else:
                    with zip_writer_of(buffer) as opened:
                        save(what, opened, pickle, *options)
        except CannotGoOn:
            return None
        finally:
            self.stage.saved.clear()
        return buffer.getvalue()

    def loading(self, load: Callable[..., Any]) -> Callable[..., Any]:
        def loaded(file: Any, map_location: Any, *given: Any, **options: Any) -> Any:
            if not self.company.is_on_stage():
                return load(file, map_location, *given, **options)
            places: dict[int, torch.device] = {}

            def stay(storage: Any, tag: str) -> Any:
                with patch.object(torch.UntypedStorage, self.stage.home.type, _sent_to(self.stage.home)):
                    mapped = _mapped(map_location, storage, tag)
                places[storage.data_ptr()] = place_of(torch.device(mapped))
                return storage

            with outside_simulation():
                what = load(file, stay, *given, **options)
            return pytree.tree_map(lambda each: self._placed(each, places), what)

        return loaded

    def _placed(self, each: Any, places: dict[int, torch.device]) -> Any:
        if isinstance(each, nn.Module):
            for inside in [*tensors_in(each)]:
                if not isinstance(inside, StandIn):
                    put_in_place(inside, self._stand_in(inside, places), self.undo)
        return self._stand_in(each, places) if isinstance(each, Tensor) and not isinstance(each, StandIn) else each

    def _stand_in(self, tensor: Tensor, places: dict[int, torch.device]) -> StandIn:
        with outside_simulation():
            place = places.get(tensor.untyped_storage().data_ptr(), CPU)
        return self.stage.stand_in(tensor, place, loaded_on_cpu(self.stage.home) if place is CPU else None)

    def asked(self, ask: Callable[..., Any]) -> Callable[..., Any]:
        """`os.stat`, which reports files that the step saved as existing."""

        def answered(path: Any, *given: Any, **options: Any) -> Any:
            saved = _path_of(path) if self.written and self.company.is_on_stage() else ""
            return _status(len(self.written[saved] or b"?")) if saved in self.written else ask(path, *given, **options)

        return answered

    def removing(self, remove: Callable[..., None]) -> Callable[..., None]:
        def removed(path: Any, *given: Any, **options: Any) -> None:
            if not (self.written and self.company.is_on_stage() and _path_of(path) in self.written):
                remove(path, *given, **options)
            self.written.pop(_path_of(path), None)  # a file from before the step stays in place

        return removed

    def renaming(self, rename: Callable[..., None]) -> Callable[..., None]:
        def renamed(source: Any, target: Any, **options: Any) -> None:
            saved = _path_of(source) if self.written and self.company.is_on_stage() else ""
            if saved in self.written:
                self._keep(_path_of(target), self.written.pop(saved))
            else:
                rename(source, target, **options)

        return renamed

    def skipping(self, write: Callable[..., Any]) -> Callable[..., Any]:
        """Skip functions of safetensors that read tensors by address."""

        def skipped(what: Any, *given: Any, **options: Any) -> Any:
            if not self.company.is_on_stage():
                return write(what, *given, **options)
            if write.__name__ == "serialize_file":
                self.stage.note(f"safetensors: {_WHY}")
                path = _path_of(given[0] if given else options.get("filename"))
                self._keep(path, None)
                return None
            return {}

        return skipped


class _Later:
    """A file that is opened on first use."""

    def __init__(self, file: Any, open_now: Callable[[], AbstractContextManager[Any]]) -> None:
        self.file, self._open_now, self._closing = file, open_now, ExitStack()

    @cached_property
    def opened(self) -> Any:
        return self._closing.enter_context(self._open_now())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.opened, name)

    def __enter__(self) -> _Later:
        return self

    def __exit__(self, *error: Any) -> None:
        self._closing.__exit__(*error)


def _status(size: int) -> os.stat_result:
    """The status of a regular file."""
    return os.stat_result((0o100644, 0, 0, 1, 0, 0, size, 0, 0, 0))


def _safetensors() -> Any:
    """safetensors.torch if installed, imported here because the step may be the first to import it."""
    try:
        return importlib.import_module("safetensors.torch")
    except ImportError:
        return None


def _path_of(file: Any) -> str:
    """The real path of a path or an open file; "" if it has none, such as a member of an archive, whatever its name."""
    if not isinstance(file, (str, os.PathLike)):
        try:
            file.fileno()
        except (AttributeError, OSError, ValueError):
            return ""
        file = getattr(file, "name", None)
    return os.path.realpath(file) if isinstance(file, (str, os.PathLike)) else ""


class _SentStorage(NamedTuple):
    device: torch.device


def _sent_to(home: torch.device) -> Callable[..., _SentStorage]:
    """A replacement for `storage.cuda(0)` in a `map_location` function: the real one needs the device."""

    def sent(_: Any, device: Any = None, *__: Any, **___: Any) -> _SentStorage:
        if device is None or isinstance(device, int):
            return _SentStorage(torch.device(home.type, device or 0))
        return _SentStorage(torch.device(device))

    return sent


def _mapped(map_location: Any, storage: Any, tag: str) -> Any:
    """The device that torch.load takes from `map_location` for a storage."""
    if map_location is None:
        return tag
    if isinstance(map_location, dict):
        return map_location.get(tag, tag)
    if isinstance(map_location, (str, torch.device)):
        return map_location
    found = map_location(storage, tag)
    return tag if found is None else found.device


def _has_stand_ins(what: Any, pickle: Any) -> bool:
    found = False

    class Looking(pickle.Pickler):  # type: ignore[misc]
        def persistent_id(self, each: Any) -> str | None:
            nonlocal found
            found = found or isinstance(each, StandIn)
            return "not looked into" if isinstance(each, Tensor) or torch.is_storage(each) else None

    Looking(io.BytesIO()).dump(what)
    return found
