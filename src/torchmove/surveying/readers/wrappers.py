"""Wrappers that keep references to their tensors' old memory or device: a move would break them, so it is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchmove.surveying.paths import Diagnostic, Reader


def _refused(code: str, why: str, remedy: str) -> Reader:
    def read(_: Any) -> Iterator[Diagnostic]:
        yield Diagnostic(code, why, remedy)

    return read


_DISTRIBUTED_REMEDY = "model = model.module; tm.move(model, optimizer, to=...); wrap it again"

TABLE: dict[type | str, Reader] = {
    "torch.nn.parallel.distributed:DistributedDataParallel": _refused(
        "R020",
        "DistributedDataParallel: its gradient buckets would stay behind, and the ranks would diverge",
        _DISTRIBUTED_REMEDY,
    ),
    "torch.nn.parallel.data_parallel:DataParallel": _refused(
        "R020", "DataParallel: its replicas would stay on the old devices", _DISTRIBUTED_REMEDY
    ),
    "torch.distributed.fsdp.fully_sharded_data_parallel:FullyShardedDataParallel": _refused(
        "R021",
        "the old FSDP keeps references to its shards, and would compute with the old ones",
        "shard with fully_shard",
    ),
    "torch.export.exported_program:ExportedProgram": _refused(
        "R023",
        "an exported program: its graph contains devices as constants",
        "torch.export.passes.move_to_device_pass(program, device)",
    ),
    "torch.cuda.graphs:CUDAGraph": _refused(
        "R025",
        "a captured CUDA graph replays on the old memory addresses",
        "delete it, move, and capture again",
    ),
    "torch:ScriptObject": _refused(
        "R026",
        "packed quantized parameters: torch gives no access to their bytes",
        "move the float model and quantize it on the target",
    ),
}
