"""Rehearse a TARGET: what its function returns, the step and then its arguments; or a script."""

from __future__ import annotations

from typing import Any, NamedTuple

import click

from torchmove.cli.output import reserve_stdout
from torchmove.cli.targets import ScriptFile, Target, several


class Request(NamedTuple):
    """The options of a rehearsal, as they are given on the command line."""

    to: str
    moved_by: Any
    data: Any
    state: tuple[str, ...]
    strict_devices: bool
    confirm_errors: bool
    max_memory: int | None = None
    evidence: bool = False


class ScriptRequest(NamedTuple):
    """How a script is run: its arguments, and where it ends."""

    arguments: tuple[str, ...]
    steps: int
    seconds: float
    whole_loaders: bool


def rehearsed(target: Target, request: Request) -> Any:
    """The rehearsal of a target."""
    made = target.made()
    from torchmove.rehearsing.run import Options, rehearse_named

    step, *objects = (made.values() if isinstance(made, dict) else several(made)) or [made]
    _check(target, step, objects, request.to)
    named = dict([*made.items()][1:]) if isinstance(made, dict) else _parameters(step, objects)
    options = Options(**{**request._asdict(), "state": _states(target, named, request.state)})
    return rehearse_named(step, tuple(objects), named, options, str(target.files()[-1].resolve()))


def rehearsed_script(target: ScriptFile, request: ScriptRequest, **options: Any) -> Any:
    """The rehearsal of a script."""
    from torchmove.rehearsing.run import Options, home_of
    from torchmove.rehearsing.scripts import Script, rehearse_script

    reserve_stdout()
    script = Script(target.path, *request)
    try:
        home_of(options["to"])
        script.check()
        script.compiled()
    except SyntaxError as error:
        raise click.UsageError(f"{target.path}:{error.lineno} is not Python: {error.msg}. Fix: correct it") from None
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    return rehearse_script(script, Options(**options))


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
    from torchmove.surveying.paths import names_of

    known = parameters_of(step, tuple(objects))
    return known | names_of([each for each in objects if not any(each is one for one in known.values())], None)


def _states(target: Target, named: dict[str, Any], names: tuple[str, ...]) -> tuple[Any, ...]:
    unknown = [name for name in names if name not in named]
    if unknown:
        returned = ", ".join(named) or "only the step"
        raise click.UsageError(f"--state {unknown[0]}: {target.spec} returned no object of this name, but {returned}")
    return tuple(named[name] for name in names)
