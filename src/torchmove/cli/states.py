"""The commands survey, plan and rehearse, for the objects that a user's function returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from torchmove.cli.output import FINDINGS, FINE, INCOMPLETE, REFUSED, Answer, devices_like, reporting
from torchmove.cli.targets import Target, several, target

_Command = TypeVar("_Command", bound=Callable[..., Any])


def _programs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    del ctx, param
    return [CompletionItem(incomplete, type="file")]


_TARGET = click.argument("target", type=target, shell_complete=_programs)


def _to(**options: Any) -> Callable[[_Command], _Command]:
    return click.option("--to", metavar="DEVICE", shell_complete=devices_like, **options)


@click.command(epilog="Example: torchmove survey train.py:build --json")
@_TARGET
@reporting
def survey(target: Target, answer: Answer) -> None:
    """List every tensor of a training state.

    Shows its path, role, device, dtype, shape, bytes, and the tensors that share its storage.

    TARGET is file.py:function or package.module:function; the function returns the objects.
    """
    answer.check(target.files())
    objects = target.named()
    from torchmove.chain import survey_named

    answer.tell(survey_named(objects), target.files())


@click.command(epilog="Example: torchmove plan train.py:build --to cuda --keep 'model.*.table'")
@_TARGET
@_to(required=True, help="The device to move to; auto: the machine's accelerator.")
@click.option(
    "--keep",
    multiple=True,
    metavar="PATTERN",
    help="Path pattern of tensors that stay where they are; * matches anything. Repeatable.",
)
@reporting
@click.pass_context
def plan(ctx: click.Context, target: Target, to: str, keep: tuple[str, ...], answer: Answer) -> None:
    """Show what a move would do and whether it fits. Moves nothing. Exits with 2 if the move is refused.

    TARGET is file.py:function or package.module:function; the function returns the objects.
    """
    answer.check(target.files())
    objects = target.named()
    from torchmove.chain import plan_named

    planned = plan_named(objects, to, keep)
    answer.tell(planned, target.files())
    ctx.exit(FINE if planned.ok else REFUSED)


@click.command(epilog="Example: torchmove rehearse train.py:build --to cuda --moved-by to")
@_TARGET
@_to(default="cuda", show_default=True, help="The device to simulate. It need not exist.")
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
@click.option("--confirm-errors", is_flag=True, help="If the step raises an error, run it again without simulation.")
@reporting
@click.pass_context
def rehearse(
    ctx: click.Context,
    target: Target,
    to: str,
    moved_by: Any,
    data: Any,
    state: tuple[str, ...],
    strict_devices: bool,
    confirm_errors: bool,
    answer: Answer,
) -> None:
    """Run a training step on a simulated device. Exits with 1 if a line would fail, with 4 if the run is incomplete.

    TARGET is file.py:function or package.module:function; the function returns the step and its
    arguments: `return train_step, model, optimizer, batch`.
    """
    answer.check(target.files())
    made = target.made()
    from torchmove.rehearsing.run import Options, rehearse_named

    step, *objects = (made.values() if isinstance(made, dict) else several(made)) or [made]
    _check(target, step, objects, to)
    named = dict([*made.items()][1:]) if isinstance(made, dict) else _parameters(step, objects)
    options = Options(to, moved_by, data, _states(target, named, state), strict_devices, confirm_errors)
    rehearsed = rehearse_named(step, tuple(objects), named, options, str(target.files()[-1].resolve()))
    answer.tell(rehearsed, target.files())
    endings = {"finished": FINE if rehearsed.ok else FINDINGS, "refused": REFUSED}
    ctx.exit(endings.get(rehearsed.ending, INCOMPLETE))


def _check(target: Target, step: Any, objects: list[Any], to: str) -> None:
    from torch import nn

    from torchmove.rehearsing.run import check_call, home_of

    if isinstance(step, nn.Module) or not callable(step):
        kind = type(step).__name__
        raise click.UsageError(
            f"{target.spec} returned {kind} first, not the step. Fix: return the step, then its arguments: "
            "`return train_step, model, optimizer, batch`"
        )
    try:
        check_call(step, tuple(objects))
        home_of(to)
    except (TypeError, ValueError) as error:
        raise click.UsageError(str(error)) from None


def _parameters(step: Any, objects: list[Any]) -> dict[str, Any]:
    """The objects under the names of the step's parameters."""
    from torchmove.rehearsing.run import parameters_of
    from torchmove.surveying.names import names_of

    known = parameters_of(step, tuple(objects))
    return known | names_of([each for each in objects if not any(each is one for one in known.values())], None)


def _states(target: Target, named: dict[str, Any], names: tuple[str, ...]) -> tuple[Any, ...]:
    unknown = [name for name in names if name not in named]
    if unknown:
        returned = ", ".join(named) or "only the step"
        raise click.UsageError(f"--state {unknown[0]}: {target.spec} returned no object of this name, but {returned}")
    return tuple(named[name] for name in names)


COMMANDS = (survey, plan, rehearse)
