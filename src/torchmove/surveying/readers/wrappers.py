"""Wrappers that hold on to where their tensors are: moving what is inside would break them, so they are refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchmove.surveying.children import Diagnostic, Reader


def _refused(code: str, why: str, remedy: str) -> Reader:
    def read(_: Any) -> Iterator[Diagnostic]:
        yield Diagnostic(code, why, remedy)

    return read


_DISTRIBUTED_REMEDY = "model = wrapper.module; move it and its optimizer; wrap it again"

TABLE: dict[type | str, Reader] = {
    "torch.nn.parallel.distributed:DistributedDataParallel": _refused(
        "R020", "DistributedDataParallel: its buckets stay behind and the ranks train apart", _DISTRIBUTED_REMEDY
    ),
    "torch.nn.parallel.data_parallel:DataParallel": _refused(
        "R020", "DataParallel: its replicas are bound to its devices", _DISTRIBUTED_REMEDY
    ),
    "torch.distributed.fsdp.fully_sharded_data_parallel:FullyShardedDataParallel": _refused(
        "R021", "FSDP shards: FSDP remembers where they were and computes with the old ones", "shard with fully_shard"
    ),
    "torch.export.exported_program:ExportedProgram": _refused(
        "R023",
        "an exported program: devices are baked into its graph",
        "torch.export.passes.move_to_device_pass(program, device)",
    ),
    "torch.cuda.graphs:CUDAGraph": _refused(
        "R025",
        "a captured CUDA graph replays on the old addresses",
        "delete it, move, and capture again",
    ),
    "torch:ScriptObject": _refused(
        "R026",
        "packed parameters: their bytes are out of reach",
        "move the float model and quantise it on the target",
    ),
}
