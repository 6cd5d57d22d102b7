"""survey, plan, rehearse: of the objects that a function of the user's returns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from torchmove.cli.output import FINDINGS, FINE, REFUSED, reporting, tell
from torchmove.cli.targets import Target, listed, named, target

_DEVICES = ["cuda", "cuda:0", "cpu", "mps", "xpu", "auto"]
_Command = TypeVar("_Command", bound=Callable[..., Any])
_TARGET = click.argument("target", type=target)


def _to(**options: Any) -> Callable[[_Command], _Command]:
    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        del ctx, param
        return [device for device in _DEVICES if device.startswith(incomplete)]

    return click.option("--to", metavar="DEVICE", shell_complete=complete, **options)


@click.command(epilog="For example: torchmove survey train.py:build --json")
@_TARGET
@reporting
def survey(target: Target, as_json: bool, html: Path | None) -> None:
    """Where is everything? Every tensor: its path, role, device, bytes, and who shares with whom.

    TARGET is file.py:function or package.module:function; the function returns the objects.
    """
    made = target.made()
    from torchmove._move import survey_named

    tell(survey_named(named(made)), as_json=as_json, html=html)


@click.command(epilog="For example: torchmove plan train.py:build --to cuda --keep 'model.*.table'")
@_TARGET
@_to(required=True, help="Where to, as torch names it; auto: the machine's accelerator.")
@click.option("--keep", multiple=True, metavar="PATTERN", help="What stays: paths, * stands for anything. Repeatable.")
@reporting
@click.pass_context
def plan(ctx: click.Context, target: Target, to: str, keep: tuple[str, ...], as_json: bool, html: Path | None) -> None:
    """What would happen, and does it fit? Moves nothing. Ends with 2 if the state cannot move as asked.

    TARGET is file.py:function or package.module:function; the function returns the objects.
    """
    made = target.made()
    from torchmove._move import plan_named

    planned = plan_named(named(made), to, keep)
    tell(planned, as_json=as_json, html=html)
    ctx.exit(FINE if planned.ok else REFUSED)


@click.command(epilog="For example: torchmove rehearse train.py:build --to cuda --moved-by to")
@_TARGET
@_to(default="cuda", show_default=True, help="Where to. The device need not be there.")
@click.option(
    "--moved-by",
    type=click.Choice(["torchmove", "to"]),
    default="torchmove",
    show_default=True,
    help="Where tm.move puts the objects, or where Module.to does.",
)
@click.option(
    "--data",
    type=click.Choice(["shapes", "real"]),
    default="shapes",
    show_default=True,
    help="Tensors without bytes, or with their values, for a step that looks at them.",
)
@reporting
@click.pass_context
def rehearse(
    ctx: click.Context, target: Target, to: str, moved_by: Any, data: Any, as_json: bool, html: Path | None
) -> None:
    """Would this training step run there? Needs no device. Ends with 1 if some line would fail.

    TARGET is file.py:function or package.module:function; the function returns the step, which is a function, and
    what it is called with: `return train_step, model, optimizer, batch`.
    """
    made = target.made()
    from torch import nn

    from torchmove.rehearsal.run import rehearse_named

    step, *objects = listed(made)
    if isinstance(step, nn.Module) or not callable(step):
        kind = type(step).__name__
        raise click.UsageError(f"{target.spec} returned a {kind} first: return the step, then what it is called with")
    names = [*made][1:] if isinstance(made, dict) else []
    known = dict(zip(names, objects, strict=True)) if names else named(tuple(objects))
    rehearsed = rehearse_named(step, tuple(objects), known, to, moved_by, data)
    tell(rehearsed, as_json=as_json, html=html)
    ctx.exit(FINE if rehearsed.ok else FINDINGS)


COMMANDS = (survey, plan, rehearse)
