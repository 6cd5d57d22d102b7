"""The commands inspect and relocate, for checkpoint files."""

from __future__ import annotations

from pathlib import Path

import click

from torchmove.cli.output import Answer, as_json, devices_like, reporting, tell

_FILE = click.argument("file", type=click.Path(exists=True, path_type=Path))


@click.command(epilog="Example: torchmove inspect checkpoint.pt --json")
@_FILE
@reporting
def inspect(file: Path, answer: Answer) -> None:
    """List the tensors of a checkpoint.

    Shows the devices they were saved from, shared storages, and optimizer state.

    FILE is a .pt, .pth, .bin or .safetensors file, or the folder or index of a sharded checkpoint. No tensor data is
    loaded and no pickled code is run; whatever torch's weights-only loading refuses is refused here.
    """
    from torchmove.checkpoints.file_kinds import files_of
    from torchmove.checkpoints.inspecting import inspect as inspected
    from torchmove.checkpoints.untrusted import naming

    with naming(file):
        inputs = files_of(file)
    answer.check(inputs)
    answer.tell(inspected(file), inputs)


@click.command(epilog="Example: torchmove relocate checkpoint.pt --to cpu -o checkpoint-cpu.pt")
@_FILE
@click.option(
    "--to",
    metavar="DEVICE",
    default="cpu",
    show_default=True,
    shell_complete=devices_like,
    help="The device that the result loads on.",
)
@click.option("-o", "--out", required=True, type=click.Path(), help="The file to write, or the folder if FILE is one.")
@click.option("--overwrite", is_flag=True, help="Replace OUT if it is a regular file; folders are never replaced.")
@as_json
def relocate(file: Path, to: str, out: str, overwrite: bool, as_json: bool) -> None:
    """Rewrite a checkpoint for another device.

    The result loads on a machine without the device that the checkpoint was saved from. Only the names of devices
    change; the bytes of the tensors are copied unchanged and verified. OUT appears complete or not at all, and FILE is
    not modified.
    """
    from torchmove.checkpoints.relocating import relocate as relocated

    tell(relocated(file, to=to, out=out, overwrite=overwrite), as_json=as_json)


COMMANDS = (inspect, relocate)
