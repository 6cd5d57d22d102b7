"""The commands devices, bench, demo and completion."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from importlib import resources
from pathlib import Path
from textwrap import indent

import click
from click.shell_completion import get_completion_class

from torchmove.cli.output import FINDINGS, FINE, as_json, devices_like, say, tell

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def size(text: str) -> int:
    """The number of bytes of a size such as `2GB`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?", text.lower())
    nbytes = int(float(found[1]) * _UNITS[found[2] or ""]) if found else 0
    if nbytes <= 0:
        raise click.BadParameter(f"{text!r} is not a size. Fix: --bytes 500MB, 2GB, 2GiB or a number of bytes")
    return nbytes


@click.command(epilog="Example: torchmove devices --json")
@as_json
def devices(as_json: bool) -> None:
    """List this machine's devices.

    Shows their memory, free and used, their link to the host, and peer access between them.
    """
    from torchmove.machine import devices as found

    tell(found(), as_json=as_json)


@click.command(epilog="Example: torchmove bench --device cuda:1 --bytes 2GB --json > here.json")
@click.option(
    "--device", shell_complete=devices_like, help="The device to move to. Default: the machine's accelerator."
)
@click.option("--bytes", "nbytes", type=size, help="Size of the state. Default: one that takes about a minute.")
@as_json
def bench(device: str | None, nbytes: int | None, as_json: bool) -> None:
    """Measure how fast a training state moves on this machine.

    Moves a transformer and its AdamW optimizer to the device and back, in turns: with Module.to and a loop over
    optimizer.state, with tm.move, and with tm.move(verify="bytes"). On CUDA it also copies pinned memory, which shows
    the limit of the link. The state takes at most a quarter of the free memory.
    """
    from torchmove import bench as measuring

    measured = measuring.measure(device, nbytes, tell=lambda line: click.echo(f"{line} ...", err=True))
    tell(measured, as_json=as_json)


_STEPS = (
    ("List every tensor of the training state:", "torchmove survey train.py:build"),
    (
        "Rehearse a step on a simulated GPU, after model.to('cuda'):",
        "torchmove rehearse train.py:build --moved-by to",
    ),
    ("Rehearse it after tm.move(model, optimizer, to='cuda'):", "torchmove rehearse train.py:build"),
    ("Move the state on this machine and train on:", "python train.py"),
)


@click.command(epilog="Example: torchmove demo")
@click.pass_context
def demo(ctx: click.Context) -> None:
    """Run a one-minute demo of what Module.to misses. Needs no accelerator."""
    program = resources.files("torchmove.demo").joinpath("train.py").read_text(encoding="utf-8")
    say(f"train.py:\n\n{indent(program, '    ')}")
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            Path("train.py").write_text(program, encoding="utf-8")
            for words, line in _STEPS:
                say(click.style(f"{words}\n\n$ {line}\n", bold=True))
                _run(ctx, *line.split())
                say("")
        finally:
            os.chdir(here)


def _run(ctx: click.Context, command: str, *arguments: str) -> None:
    if command == "python":
        printed = subprocess.run([sys.executable, *arguments], stdout=subprocess.PIPE, text=True, check=True).stdout
        say(printed.rstrip())
    else:
        code = ctx.find_root().command.main([*arguments], prog_name=command, standalone_mode=False, parent=ctx)
        if code not in (FINE, FINDINGS, None):
            ctx.exit(code)


@click.command(epilog="Example: torchmove completion bash >> ~/.bashrc")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the shell completion script."""
    found = get_completion_class(shell)
    assert found is not None
    say(found(ctx.find_root().command, {}, "torchmove", "_TORCHMOVE_COMPLETE").source())


COMMANDS = (devices, bench, demo, completion)
