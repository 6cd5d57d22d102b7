"""The command line.

commands  the commands, from survey to completion
targets   the TARGET argument, `train.py:build`: the objects that a user's function returns
rehearsed_targets  the rehearsal of a TARGET
fixing    --fix: rehearse edited programs, each in a process of its own
output    stdout, reserved for results: as text, JSON or an HTML page; errors; exit codes

Commands import torch when they run, so that help and completion are fast.
"""

from __future__ import annotations

import click

import torchmove
from torchmove.cli.commands import COMMANDS
from torchmove.cli.output import Commands, color, say

_EPILOG = """
\b
Examples:
  torchmove plan train.py:build --to cuda
  torchmove rehearse train.py:build --to cuda

\b
Exit codes:
  0  no problem found
  1  problems found
  2  the command is mistyped
  3  error
  4  incomplete: the rehearsal did not reach the end of the step
  5  refused, with the reason and the remedy
  130  Ctrl-C
  141  the reader of a pipe closed it
"""


@click.group(
    cls=Commands,
    invoke_without_command=True,
    subcommand_metavar="COMMAND [ARGS]...",
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.version_option(torchmove.__version__, prog_name="torchmove")
@click.pass_context
def main(ctx: click.Context, debug: bool) -> None:
    """Move a PyTorch training state to another device: all of it or none of it."""
    del debug  # read by Commands.invoke
    ctx.color = color()
    if ctx.invoked_subcommand is None:
        say(ctx.get_help())


for _command in COMMANDS:
    main.add_command(_command)
