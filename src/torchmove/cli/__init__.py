"""The command line. One file for each kind of command; a command is a function there, with the line that names it.

targets   what `train.py:build` means: the objects that a function of the user's returns
output    a noun as text, as JSON, as a page; and the exit codes
answers   stdout, for these alone
states    survey, plan, rehearse
files     inspect, relocate
machine   devices, bench, demo, completion

torch is imported by what needs it, when it is run: help and completion answer at once.
"""

from __future__ import annotations

import click

import torchmove
from torchmove.cli import files, machine, states
from torchmove.cli.answers import colour, say
from torchmove.cli.output import Commands

_EPILOG = """
\b
For example:
  torchmove plan train.py:build --to cuda
  torchmove rehearse train.py:build --to cuda

\b
Exit codes:
  0  no problem found
  1  problems found
  2  refused: cannot be done, with the reason and the remedy
  3  an error
  4  incomplete: a rehearsal did not reach the end of its step
  130  Ctrl-C
"""


@click.group(
    cls=Commands,
    invoke_without_command=True,
    subcommand_metavar="COMMAND [ARGS]...",
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option("--debug", is_flag=True, help="Show where an error comes from.")
@click.version_option(torchmove.__version__, prog_name="torchmove")
@click.pass_context
def main(ctx: click.Context, debug: bool) -> None:
    """Change the device of a PyTorch training state: all of it or none of it."""
    del debug  # read where a command has failed
    ctx.color = colour()
    if ctx.invoked_subcommand is None:
        say(ctx.get_help())


for _command in (*states.COMMANDS, *files.COMMANDS, *machine.COMMANDS):
    main.add_command(_command)
