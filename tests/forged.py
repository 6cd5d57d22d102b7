"""Checkpoint files as nobody saves them: by hand, step by step, to see what is made of them."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from struct import pack
from typing import Any

import pytest
import torch
from torch import nn

from torchmove.errors import CheckpointRefused


@contextmanager
def saved_from(where: Any) -> Iterator[None]:
    """torch.save believes that storages are there: a device, or a function from a storage to one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.serialization, "location_tag", where if callable(where) else lambda storage: where)
        yield


def save(path: Path, value: Any, where: Any = "cuda:0", **options: Any) -> Path:
    with saved_from(where):
        torch.save(value, path, **options)
    return path


def archive(path: Path, records: Mapping[str, bytes], folder: str = "archive/", method: int = 0) -> Path:
    """A zip by Python's own hand."""
    with zipfile.ZipFile(path, "w", method) as file:
        for name, content in records.items():
            file.writestr(f"{folder}{name}", content)
    return path


def records(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as file:
        return {name.split("/", 1)[1]: file.read(name) for name in file.namelist()}


def changed(path: Path, changes: Mapping[str, bytes | None]) -> Path:
    """The same checkpoint with other records; None takes one away."""
    new = {**records(path), **changes}
    return archive(path, {name: content for name, content in new.items() if content is not None})


def refused(work: Any) -> str:
    """The code of a refusal, which is one line and says what to do."""
    with pytest.raises(CheckpointRefused) as caught:
        work()
    (refusal,) = caught.value.refusals
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(refusal.code)
    assert refusal.path
    assert refusal.remedy
    return refusal.code


def training() -> dict[str, Any]:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}


# ---------------------------------------------------------------- pickles


def text(value: str) -> bytes:
    raw = value.encode()
    return pickle.BINUNICODE + pack("<I", len(raw)) + raw


def whole(value: int) -> bytes:
    return pickle.LONG1 + pack("<B", 9) + value.to_bytes(9, "little", signed=True)


def name(full: str) -> bytes:
    module, _, last = full.rpartition(".")
    return pickle.GLOBAL + f"{module}\n{last}\n".encode()


def tuple_of(*items: bytes) -> bytes:
    return pickle.MARK + b"".join(items) + pickle.TUPLE


def call(full: str, *arguments: bytes) -> bytes:
    return name(full) + tuple_of(*arguments) + pickle.REDUCE


def storage(key: str = "0", location: str = "cuda:0", numel: int = 4, kind: str = "torch.FloatStorage") -> bytes:
    return tuple_of(text("storage"), name(kind), text(key), text(location), whole(numel)) + pickle.BINPERSID


def tensor(size: tuple[int, ...] = (4,), stride: tuple[int, ...] = (1,), offset: int = 0, of: bytes = b"") -> bytes:
    sizes, strides = (tuple_of(*map(whole, each)) for each in (size, stride))
    hooks = name("collections.OrderedDict") + pickle.EMPTY_TUPLE + pickle.REDUCE
    rebuild = "torch._utils._rebuild_tensor_v2"
    return call(rebuild, of or storage(), whole(offset), sizes, strides, pickle.NEWFALSE, hooks)


def pickled(*steps: bytes) -> bytes:
    return pickle.PROTO + b"\x02" + b"".join(steps) + pickle.STOP


def torch_file(path: Path, *steps: bytes, **more: bytes) -> Path:
    return archive(path, {"data.pkl": pickled(*steps), "data/0": bytes(16), "version": b"3\n", **more})


# ---------------------------------------------------------------- safetensors


def safetensors(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(pack("<Q", len(raw) if length is None else length) + raw + data)
    return path


def entry(dtype: str = "F32", shape: tuple[int, ...] = (2,), offsets: tuple[int, int] = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def index(folder: Path, weight_map: Any, file: str = "pytorch_model.bin.index.json") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / file).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def linked(folder: Path) -> Path:
    """The same as the Hugging Face cache has it: a snapshot of links, and what they lead to two folders above."""
    blobs, snapshot = folder.parent / "hub" / "blobs", folder.parent / "hub" / "snapshots" / "0f1e2d"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, file in enumerate(sorted(folder.iterdir())):
        file.rename(blobs / f"{number:064x}")
        (snapshot / file.name).symlink_to(f"../../blobs/{number:064x}")
    folder.rmdir()
    return snapshot
