"""The commands: their arguments and help, and which functions of torchmove they call."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem, get_completion_class

from torchmove.cli.output import (
    FINDINGS,
    FINE,
    INCOMPLETE,
    REFUSED,
    Answer,
    as_format,
    as_json,
    devices_like,
    reporting,
    say,
    tell,
)
from torchmove.cli.rehearsed_targets import Request, ScriptRequest, rehearsed, rehearsed_script
from torchmove.cli.targets import ScriptFile, Target, target, target_or_script

if TYPE_CHECKING:
    from torchmove.rehearsing.result import Rehearsal

# ---------------------------------------------------------------- states


_Command = TypeVar("_Command", bound=Callable[..., Any])


def _programs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    del ctx, param
    return [CompletionItem(incomplete, type="file")]


_TARGET = click.argument("target", type=target, shell_complete=_programs)


def _to(**options: Any) -> Callable[[_Command], _Command]:
    return click.option("--to", metavar="DEVICE", shell_complete=devices_like, **options)


def _size(text: str) -> int:
    """The number of bytes of a size such as `2GB`."""
    from torchmove.formatting import bytes_of

    try:
        return bytes_of(text, "")
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a size. Fix: 500MB, 2GB, 2GiB or a number of bytes") from None


_FILTER = click.option("--filter", "pattern", default="", metavar="PATTERN", help="Only paths that match, with *.")


def _sort(*orders: str) -> Callable[[_Command], _Command]:
    return click.option("--sort", type=click.Choice(orders), help="The order; default: as found. Largest first.")


def check_device(to: str) -> None:
    """Refuse what torch does not know as a device. Not before the user's code ran: it may register a device."""
    import torch

    try:
        torch.device("cpu" if to == "auto" else to)
    except RuntimeError:
        known = f"--to {to}: not a device that torch knows. Fix: --to cuda, or --to auto for the machine's accelerator"
        raise click.UsageError(known) from None


@click.command(epilog="Example: torchmove survey train.py:build --filter 'model.*.weight' --sort bytes")
@_TARGET
@_FILTER
@_sort("bytes", "path", "parameters")
@reporting
def survey(target: Target, pattern: str, sort: Any, answer: Answer) -> None:
    """List every tensor of a training state.

    Shows its path, role, device, dtype, shape, bytes, and the tensors that share its storage.

    TARGET is file.py:function or package.module:function; the function returns the objects.
    """
    answer.check(target.files())
    objects = target.named()
    from torchmove.chain import survey_named

    found = survey_named(objects)
    answer.tell(found.select(pattern, sort=sort) if pattern or sort else found, target.files())


@click.command(epilog="Example: torchmove summary train.py:build --depth 3 --sort bytes")
@_TARGET
@click.option("--depth", type=click.IntRange(min=0), default=2, show_default=True, help="Levels of modules to list.")
@_FILTER
@_sort("bytes", "path", "parameters")
@reporting
def summary(target: Target, depth: int, pattern: str, sort: Any, answer: Answer) -> None:
    """Summarize a training state by module.

    Shows parameters, and the size of parameters, buffers, gradients, optimizer state and other tensors. A module
    includes everything below it. Shared bytes count once.

    TARGET is file.py:function or package.module:function; the function returns the objects.
    """
    answer.check(target.files())
    objects = target.named()
    from torchmove.chain import survey_named

    answer.tell(survey_named(objects).summary(depth, sort=sort, pattern=pattern), target.files())


@click.command(
    epilog="""
\b
Example: torchmove plan train.py:build --to cuda --keep 'model.*.table'
Example: torchmove plan train.py:build --to cuda --assume 80GB
"""
)
@_TARGET
@_to(required=True, help="The device to move to; auto: the machine's accelerator.")
@click.option(
    "--keep",
    multiple=True,
    metavar="PATTERN",
    help="Path pattern of tensors that stay where they are; * matches anything. Repeatable.",
)
@click.option(
    "--assume", type=_size, metavar="SIZE", help="Assume a device with this much free memory; it need not exist."
)
@reporting
@click.pass_context
def plan(
    ctx: click.Context, target: Target, to: str, keep: tuple[str, ...], assume: int | None, answer: Answer
) -> None:
    """Show what a move would do and whether it fits. Moves nothing. Exits with 5 if the move is refused.

    TARGET is file.py:function or package.module:function; the function returns the objects.
    """
    answer.check(target.files())
    objects = target.named()
    from torchmove.chain import plan_named

    check_device(to)
    planned = plan_named(objects, to, keep, assume)
    answer.tell(planned, target.files())
    ctx.exit(FINE if planned.ok else REFUSED)


_OF_SCRIPTS = ("steps", "seconds", "whole_loaders", "arguments")
_OF_FUNCTIONS = ("moved_by", "state", "strict_devices", "confirm_errors", "fix", "diff", "within")


@click.command(
    epilog="""
\b
Example: torchmove rehearse train.py -- --epochs 1
Example: torchmove rehearse train.py:build --to cuda --moved-by to
"""
)
@click.argument("target", type=target_or_script, shell_complete=_programs)
@click.argument("arguments", nargs=-1, metavar="[-- ARGUMENTS OF THE SCRIPT]", type=click.UNPROCESSED)
@_to(
    default="cuda",
    show_default=True,
    help="The device to simulate. It need not exist; auto: the accelerator, else cuda.",
)
@click.option("--steps", type=int, default=2, show_default=True, help="Of a script: how many optimizer steps it makes.")
@click.option(
    "--seconds", type=float, default=300, show_default=True, help="Of a script: end it after this time at the latest."
)
@click.option("--whole-loaders", is_flag=True, help="Of a script: do not end passes over a DataLoader early.")
@click.option(
    "--moved-by",
    type=click.Choice(["torchmove", "to"]),
    default="torchmove",
    show_default=True,
    help="Place the objects as tm.move does, or as Module.to does.",
)
@click.option(
    "--data",
    type=click.Choice(["auto", "shapes", "real"]),
    default="auto",
    show_default=True,
    help="Compute with shapes only or with real values; auto: real values for a small state.",
)
@click.option("--state", multiple=True, metavar="NAME", help="Treat this argument of the step as state. Repeatable.")
@click.option(
    "--strict-devices", is_flag=True, help="Report devices that were chosen at import because there is no GPU here."
)
@click.option("--max-memory", type=_size, metavar="SIZE", help="Exit with 1 if the peak memory is above, as in 80GB.")
@click.option("--confirm-errors", is_flag=True, help="If the step raises an error, run it again without simulation.")
@click.option("--fix", is_flag=True, help="Edit the source where the edit is certain. Needs libcst.")
@click.option("--diff", is_flag=True, help="Show what --fix would edit, as a unified diff. Writes nothing.")
@click.option(
    "--within",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Edit files in this folder only. Default: the folder of the program.",
)
@as_format
@reporting
@click.pass_context
def rehearse(
    ctx: click.Context,
    target: Target | ScriptFile,
    arguments: tuple[str, ...],
    to: str,
    steps: int,
    seconds: float,
    whole_loaders: bool,
    moved_by: Any,
    data: Any,
    state: tuple[str, ...],
    strict_devices: bool,
    max_memory: int | None,
    confirm_errors: bool,
    fix: bool,
    diff: bool,
    within: Path | None,
    format_: str,
    answer: Answer,
) -> None:
    """Run a training step or script on a simulated device. Exits with 1 if a line would fail, with 4 if incomplete.

    TARGET is a script, train.py, which runs for some optimizer steps and writes no files; or file.py:function or
    package.module:function, where the function returns the step and its arguments:
    `return train_step, model, optimizer, batch`.
    """
    answer.check(target.files())
    _check_options(ctx, target)
    if within is not None and not (fix or diff):
        raise click.UsageError("--within applies to --fix and --diff. Fix: --fix --within DIR")
    if isinstance(target, ScriptFile):
        how = ScriptRequest(arguments, steps, seconds, whole_loaders)
        found = rehearsed_script(target, how, to=to, data=data, max_memory=max_memory)
        answer.tell(found, target.files(), format_)
    else:
        request = Request(to, moved_by, data, state, strict_devices, confirm_errors, max_memory)
        if fix or diff:
            found = _tell_fixes(target, request, within, answer, write=not diff)
        else:
            found = rehearsed(target, request)
            answer.tell(found, target.files(), format_)
    endings = {"finished": FINE if found.ok else FINDINGS, "refused": REFUSED}
    ctx.exit(endings.get(found.ending, INCOMPLETE))


def _tell_fixes(target: Target, request: Request, within: Path | None, answer: Answer, *, write: bool) -> Rehearsal:
    """Edit the program, or show the edits; returns the rehearsal that decides the exit code."""
    from torchmove.cli.fixing import fixed

    fixes = fixed(target, request, within, write=write)
    if write or answer.is_whole:
        answer.tell(fixes, target.files())
    else:
        if fixes.diff:
            say(fixes.diff.rstrip("\n"))
        click.echo(str(fixes), err=True)
    after: Rehearsal = fixes.after if write else fixes.before
    return after


def _check_options(ctx: click.Context, target: Target | ScriptFile) -> None:
    is_script = isinstance(target, ScriptFile)
    wrong = _OF_FUNCTIONS if is_script else _OF_SCRIPTS
    given = [name for name in wrong if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT]
    if not given or (given == ["arguments"] and not ctx.params["arguments"]):
        return
    name = "arguments after the TARGET" if given[0] == "arguments" else f"--{given[0].replace('_', '-')}"
    kind, other = ("a function", "train.py:build") if is_script else ("a script", "train.py")
    raise click.UsageError(f"{name}: only for {kind} as TARGET. Fix: leave it out, or name {kind}, such as {other}")


# ---------------------------------------------------------------- checkpoint files


_FILE = click.argument("file", type=click.Path(exists=True, path_type=Path))


@click.command(epilog="Example: torchmove inspect checkpoint.pt --filter 'optimizer.*.step'")
@_FILE
@_FILTER
@reporting
def inspect(file: Path, pattern: str, answer: Answer) -> None:
    """List the tensors of a checkpoint.

    Shows the devices they were saved from, shared storages, optimizer state, and the metadata of a safetensors file.

    FILE is a .pt, .pth, .bin or .safetensors file, or the folder or index of a sharded checkpoint. No tensor data is
    loaded and no pickled code is run; whatever torch's weights-only loading refuses is refused here.
    """
    from torchmove.checkpoints.file_kinds import files_of
    from torchmove.checkpoints.inspecting import inspect as inspected
    from torchmove.checkpoints.untrusted import naming

    with naming(file):
        inputs = files_of(file)
    answer.check(inputs)
    contents = inspected(file)
    answer.tell(contents.select(pattern) if pattern else contents, inputs)


@click.command(epilog="Example: torchmove relocate checkpoint.pt --to cpu -o checkpoint-cpu.pt")
@_FILE
@_to(default="cpu", show_default=True, help="The device that the result loads on; auto: the machine's accelerator.")
@click.option("-o", "--out", required=True, type=click.Path(), help="The file to write, or the folder if FILE is one.")
@click.option("--overwrite", is_flag=True, help="Replace OUT if it is a regular file; folders are never replaced.")
@as_json
def relocate(file: Path, to: str, out: str, overwrite: bool, as_json: bool) -> None:
    """Rewrite a checkpoint for another device.

    The result loads on a machine without the device that the checkpoint was saved from. Only the names of devices
    change; the bytes of the tensors are copied unchanged and verified. OUT appears complete or not at all, and FILE is
    not modified. What is on the device already is copied unchanged.
    """
    from torchmove.checkpoints.relocating import relocate as relocated

    check_device(to)
    tell(relocated(file, to=to, out=out, overwrite=overwrite), as_json=as_json)


# ---------------------------------------------------------------- the machine, the demo, completion


@click.command(epilog="Example: torchmove devices --json")
@as_json
def devices(as_json: bool) -> None:
    """List this machine's devices.

    Shows their memory, free and used, their link to the host, and peer access between them.
    """
    from torchmove.machine import devices as found

    tell(found(), as_json=as_json)


@click.command(epilog="Example: torchmove bench --to cuda:1 --bytes 2GB --json > here.json")
@_to(default="auto", show_default=True, help="The device to move to; auto: the machine's accelerator.")
@click.option("--bytes", "nbytes", type=_size, help="Size of the state. Default: one that takes about a minute.")
@as_json
def bench(to: str, nbytes: int | None, as_json: bool) -> None:
    """Measure how fast a training state moves on this machine.

    Moves a transformer and its AdamW optimizer to the device and back, in turns: with Module.to and a loop over
    optimizer.state, with tm.move, and with tm.move(verify="bytes"). On CUDA it also copies pinned memory, which shows
    the limit of the link. The state takes at most a quarter of the free memory.
    """
    from torchmove import bench as measuring

    check_device(to)
    measured = measuring.measure(to, nbytes, tell=lambda line: click.echo(f"{line} ...", err=True))
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
    program = resources.files("torchmove").joinpath("demo.py").read_text(encoding="utf-8")
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


COMMANDS = (survey, summary, plan, rehearse, inspect, relocate, devices, bench, demo, completion)
