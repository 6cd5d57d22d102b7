"""What a command says: a noun as text, as JSON or as a page, errors in one line, and the exit code."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from torchmove.report import Reported

FINE, FINDINGS, REFUSED, ERROR, INTERRUPTED = 0, 1, 2, 3, 130

_Command = TypeVar("_Command", bound=Callable[..., Any])


class Refused(click.ClickException):
    """The line says why, and what to do instead."""

    exit_code = REFUSED
    word = click.style("refused:", fg="yellow")

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"{self.word} {self.message}", file=file, err=True, color=colour())


class Failed(Refused):
    exit_code = ERROR
    word = click.style("error:", fg="red")


class Commands(click.Group):
    """What a command raises ends it with one line; a traceback is shown to those who ask for it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(self.commands)  # in the order of their files: from what one asks first to what one asks last

    def make_context(self, *given: Any, **extra: Any) -> click.Context:
        try:
            return super().make_context(*given, **extra)
        except click.UsageError as error:
            raise _misused(error) from None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            raise _misused(error) from None
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            raise click.exceptions.Exit(INTERRUPTED) from None
        except Exception as error:
            if ctx.params["debug"]:
                raise
            raise _ending(error, ctx.invoked_subcommand) from None


def _misused(error: click.UsageError) -> Refused:
    command = error.ctx.command_path if error.ctx else "torchmove"
    return Refused(f"{error.format_message().rstrip('.')}; {command} --help shows how")


def _ending(error: Exception, command: str | None) -> Refused:
    from torchmove._errors import CannotMeasure, TorchmoveError

    refusals = getattr(error, "refusals", ()) if isinstance(error, TorchmoveError) else ()
    if refusals:
        return Refused("; ".join(map(str, refusals)))
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if isinstance(error, CannotMeasure):
        return Refused(line)
    said = line if isinstance(error, TorchmoveError) else f"{type(error).__name__}: {line}"
    return Failed(f"{said}; torchmove --debug {command} ... shows where")


def reporting(command: _Command) -> _Command:
    """The options of a command whose answer is a noun."""
    page = click.Path(dir_okay=False, writable=True, path_type=Path)
    command = click.option("--html", "html", type=page, metavar="FILE", help="Write a page for the browser.")(command)
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for machines.")(command)


def tell(noun: Reported, *, as_json: bool, html: Path | None = None) -> None:
    if html is not None:
        html.write_text(noun.to_html(), encoding="utf-8")
        click.echo(f"wrote {html}", err=True)
    if as_json:
        click.echo(noun.to_json())
        return
    from torchmove.report import text

    click.echo(text.render(noun.sheet(), colour=True))  # click takes the colours out where nobody could see them


def colour() -> bool | None:
    """None: where it is a terminal. See no-color.org."""
    return False if os.environ.get("NO_COLOR") else None
