"""The command line. A command is a function here, with the line that adds it to the group.

What a command raises ends it with one line: 2 if it was refused, 3 if it went wrong.
"""

from __future__ import annotations

import os
import re
from typing import IO, Any

import click

import torchmove as tm
from torchmove import bench as measuring
from torchmove._errors import MoveRefused

_REFUSALS = (MoveRefused, measuring.CannotMeasure)
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


class Refused(click.ClickException):
    """The line says why, and what to do instead."""

    exit_code = 2
    word = click.style("refused:", fg="yellow")

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"{self.word} {self.message}", file=file, err=True, color=_colour())


class Failed(Refused):
    exit_code = 3
    word = click.style("error:", fg="red")


class Commands(click.Group):
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            if ctx.params["debug"]:
                raise
            if isinstance(error, _REFUSALS):
                raise Refused(_line(error)) from None
            raise Failed(f"{_line(error)}; torchmove --debug {ctx.invoked_subcommand} ... shows where") from None


def size(text: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?", text.lower())
    nbytes = int(float(found[1]) * _UNITS[found[2] or ""]) if found else 0
    if nbytes <= 0:
        raise click.BadParameter(f"{text!r} is not a size: write 500MB, 2GB, 2GiB or a number of bytes")
    return nbytes


@click.group(cls=Commands, epilog="Exit codes: 0 fine, 2 refused, 3 an error. For example: torchmove bench --bytes 2GB")
@click.option("--debug", is_flag=True, help="Show where an error comes from.")
@click.version_option(tm.__version__, prog_name="torchmove")
@click.pass_context
def main(ctx: click.Context, debug: bool) -> None:
    """Change the device of a PyTorch training state: all of it or none of it."""
    del debug  # read where a command has failed
    ctx.color = _colour()


@main.command(epilog="For example: torchmove bench --device cuda:1 --bytes 2GB --json > here.json")
@click.option("--device", help="Where to move to. By default the machine's accelerator.")
@click.option("--bytes", "nbytes", type=size, help="How large a state. By default what takes about a minute.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def bench(device: str | None, nbytes: int | None, as_json: bool) -> None:
    """How fast does a training state move on this machine?

    Takes a transformer with AdamW in mid-training to the device and back: by Module.to and a loop over the optimizer's
    state, by tm.move, and by tm.move(verify="bytes"); on CUDA beside copies of pinned memory, the most that the link
    can do. The ways take turns. A state takes at most a quarter of the free memory.
    """
    measured = measuring.measure(device, nbytes, tell=lambda line: click.echo(f"{line} ...", err=True))
    click.echo(measured.to_json() if as_json else str(measured))


def _line(error: Exception) -> str:
    if isinstance(error, MoveRefused):
        return "; ".join(map(str, error.refusals))
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0] if isinstance(error, tm.TorchmoveError) else f"{type(error).__name__}: {lines[0]}"


def _colour() -> bool | None:
    """None: where it is a terminal. See no-color.org."""
    return False if os.environ.get("NO_COLOR") else None
