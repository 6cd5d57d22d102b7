"""Types that are not part of a state: they are not searched, with a note where tensors may be expected."""

from __future__ import annotations

import io
import logging
import threading
import types
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from torchmove.internals.storages import storage_device
from torchmove.surveying.paths import Child, Diagnostic, Reader


def silent(_: Any) -> tuple[Child, ...]:
    return ()


def read_data(holder: Any) -> Iterator[Diagnostic]:
    yield Diagnostic("N031", why_data(holder))


def why_data(holder: Any) -> str:
    return f"{type(holder).__name__} is data, not state: it is not searched, and its tensors stay"


def read_generator(holder: torch.Generator) -> Iterator[Diagnostic]:
    yield Diagnostic(
        "N032", f"a torch.Generator cannot move: it stays on {holder.device}; make a new one on the target"
    )


def read_storage(holder: Any) -> Iterator[Diagnostic]:
    storage = "storage" if type(holder) is torch.UntypedStorage else "storage.untyped()"
    yield Diagnostic(
        "R047",
        f"a bare storage on {storage_device(holder)}: only tensors can be rebound to a copy",
        f"hold a tensor instead: torch.empty(0, dtype=torch.uint8, device=storage.device).set_({storage}); or keep= it",
    )


# Classes that deliver batches, but do not inherit from torch's.
_DATA = (
    "torch.utils.data.dataloader:_BaseDataLoaderIter",  # iter(loader), with the batches it has fetched ahead
    "torchdata.stateful_dataloader.stateful_dataloader:StatefulDataLoader",
    *(
        f"{package}.{name}"
        for package in ("lightning.pytorch", "pytorch_lightning")
        for name in (
            "core.datamodule:LightningDataModule",
            "utilities.combined_loader:CombinedLoader",
            "loops.fetchers:_DataFetcher",
        )
    ),
    "datasets.arrow_dataset:Dataset",
    "datasets.iterable_dataset:IterableDataset",
)

TABLE: dict[type | str, Reader] = {
    **dict.fromkeys(_DATA, read_data),
    torch.UntypedStorage: read_storage,
    torch.TypedStorage: read_storage,
    Dataset: read_data,
    DataLoader: read_data,
    Sampler: read_data,
    torch.Generator: read_generator,
    types.ModuleType: silent,
    type: silent,
    weakref.ref: silent,
    weakref.ProxyType: silent,
    weakref.CallableProxyType: silent,
    weakref.WeakKeyDictionary: silent,
    weakref.WeakValueDictionary: silent,
    weakref.WeakSet: silent,
    threading.Thread: silent,
    threading.local: silent,
    io.IOBase: silent,
    logging.Logger: silent,
    types.GeneratorType: silent,
    types.CoroutineType: silent,
    types.FrameType: silent,
    types.TracebackType: silent,
    types.CodeType: silent,
    "numpy:ndarray": silent,
    "torch.fx.graph:Graph": silent,
    "torch:Stream": silent,
    "torch:Event": silent,
    "torchmove.results:Result": silent,  # a receipt, or the handle of a parked state, stored in the state
    "torch.distributed.device_mesh:DeviceMesh": silent,
    # FSDP's own records: the reader of the module finds the shards.
    "torch.distributed.fsdp._fully_shard._fsdp_state:FSDPState": silent,
    "torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPParamGroup": silent,
    "torch.distributed.fsdp._fully_shard._fsdp_param:FSDPParam": silent,
    "torch.distributed.distributed_c10d:ProcessGroup": silent,
}
