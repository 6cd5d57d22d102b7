"""Print the result of a command as text, JSON or an HTML page; errors in one line; exit codes.

stdout is for results only, whatever the user's code prints. The page of `--html` never replaces a file that the
command reads, nor another file without --overwrite; it is written complete or not at all.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import traceback
from collections.abc import Callable, Collection
from functools import wraps
from itertools import pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TextIO

import click

from torchmove.results import SCHEMA

if TYPE_CHECKING:
    from torchmove.results import Result


_ANSWERS = "torchmove.answers"


def say(words: str) -> None:
    """Print to the stream of the command's results."""
    stream = _stream()
    if stream is None:  # stdout is closed
        return
    try:
        click.echo(_encodable(words, stream), file=stream)
    except OSError:
        discard_output(stream)
        raise


def _stream() -> IO[str] | None:
    stream: IO[str] | None = click.get_current_context().meta.get(_ANSWERS) or sys.stdout
    return stream


def _encodable(words: str, stream: IO[str]) -> str:
    """The text with characters replaced that the terminal cannot show: mostly the rules of tables."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        words.encode(encoding)
    except UnicodeEncodeError:
        return words.replace("─", "-").replace("…", "~").encode(encoding, "replace").decode(encoding)
    return words


def discard_output(stream: IO[str]) -> None:
    """Redirect a broken stream to nowhere; Python would flush it again at exit and report an error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def reserve_stdout() -> None:
    """Redirect stdout to stderr before the user's code runs; only `say` still writes to stdout.

    The redirection is permanent, since user code may print from C, in a thread or at exit.
    """
    meta = click.get_current_context().meta
    if _ANSWERS not in meta and sys.stdout is not None:
        sys.stdout.flush()
        meta[_ANSWERS] = _own(sys.stdout)
        sys.stdout = sys.stderr


def _own(stdout: TextIO) -> IO[str]:
    try:
        number = stdout.fileno()
    except OSError:  # not a file: in a test or a notebook
        return stdout
    if sys.stderr is None:  # closed: os.dup would reuse its descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    own = open(os.dup(number), "w", encoding=stdout.encoding, errors=stdout.errors)  # noqa: SIM115
    os.dup2(2, number)
    return own


def color() -> bool | None:
    """False if the environment turns colors off (no-color.org); None: colors in a terminal."""
    return False if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" else None


class PageFile(NamedTuple):
    """The path of the page: as given, and absolute, since the user's code may change the working directory."""

    given: str
    path: str
    overwrite: bool

    def check(self, inputs: Collection[Path]) -> bool:
        """Refuse a path that cannot be written. Returns whether a file is replaced."""
        from torchmove.checkpoints.atomic_writes import check_page
        from torchmove.checkpoints.untrusted import naming

        with naming(self.given):
            return check_page(self.path, inputs, overwrite=self.overwrite)

    def write(self, words: str, inputs: Collection[Path]) -> None:
        from torchmove.checkpoints.atomic_writes import new_file
        from torchmove.checkpoints.untrusted import naming

        replaces, place = self.check(inputs), Path(self.path)
        with naming(self.given):
            # The new page gets the permissions of the one it replaces.
            mode = stat.S_IMODE(os.lstat(place).st_mode) & 0o777 if os.path.lexists(place) else 0o666
            with new_file(place, mode, overwrite=replaces) as hidden:
                hidden.write_text(words, encoding="utf-8")


FINE, FINDINGS, MISTYPED, ERROR, INCOMPLETE, REFUSED, INTERRUPTED, UNHEARD = 0, 1, 2, 3, 4, 5, 130, 141

_JSON = "torchmove.json"
_STDOUT = "-"


class CommandRefused(click.ClickException):
    """A refusal: one line with the reason and the remedy."""

    exit_code = REFUSED
    kind, color = "refused", "yellow"

    def __init__(self, message: str, refusals: tuple[Any, ...] = ()) -> None:
        super().__init__(message)
        self.refusals = refusals

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"{click.style(self.kind + ':', fg=self.color)} {self.message}", file=file, err=True, color=color())

    def facts(self) -> dict[str, Any]:
        refusals = [each._asdict() for each in self.refusals]
        return {"schema": SCHEMA, "ok": False, self.kind: self.message, "refusals": refusals}


class CommandMistyped(CommandRefused):
    """Arguments that make no command, or name nothing: one line with the remedy. click itself exits with 2 then."""

    exit_code = MISTYPED
    kind, color = "usage", "yellow"


class CommandFailed(CommandRefused):
    """An error: one line."""

    exit_code = ERROR
    kind, color = "error", "red"


class Commands(click.Group):
    """The command group. An exception ends a command with one line; --debug prints the traceback."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(self.commands)  # in the order of definition, not alphabetical

    def make_context(self, info_name: str | None, args: list[str], *given: Any, **extra: Any) -> click.Context:
        in_json = _in_json(args)
        try:
            return super().make_context(info_name, args, *given, **extra)
        except click.UsageError as error:
            ending = _usage_error(error)
            if in_json:
                click.echo(json.dumps(ending.facts(), indent=2))
            raise ending from None
        except OSError as error:  # the help could not be written
            discard_output(sys.stdout)
            raise CommandFailed(described(error)) from None

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_JSON] = _in_json(args)  # also if the rest of the command cannot be parsed
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            raise click.exceptions.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            raise click.exceptions.Exit(UNHEARD) from None
        except Exception as error:
            if ctx.params["debug"]:
                traceback.print_exc()
            ending = _error_for(error, ctx.invoked_subcommand)
            if ctx.meta[_JSON]:
                say(json.dumps(ending.facts(), indent=2))
            raise ending from None


def _in_json(args: list[str]) -> bool:
    own = args[: args.index("--")] if "--" in args else args  # the rest are arguments of a script
    return "--json" in own or "--format=json" in own or ("--format", "json") in pairwise(own)


def _usage_error(error: click.UsageError) -> CommandMistyped:
    command = error.ctx.command_path if error.ctx else "torchmove"
    message = " ".join(error.format_message().split()).rstrip(".")
    if isinstance(error, click.NoSuchOption) and command.endswith(" rehearse"):
        message += f". Fix: see {command} --help; options of a script come after --: train.py -- {error.option_name}"
    return CommandMistyped(message if "Fix: " in message else f"{message}. Fix: see {command} --help")


def _error_for(error: Exception, command: str | None) -> CommandRefused:
    if isinstance(error, CommandRefused):
        return error
    if isinstance(error, click.UsageError):
        return _usage_error(error)
    from torchmove.errors import CannotMeasure, TorchmoveError

    refusals = getattr(error, "refusals", ()) if isinstance(error, TorchmoveError) else ()
    if refusals:
        return CommandRefused("; ".join(map(str, refusals)), refusals)
    if isinstance(error, CannotMeasure):
        return CommandRefused(first_line(error))
    message = first_line(error) if isinstance(error, TorchmoveError) else described(error)
    return CommandFailed(f"{message}. For the traceback: torchmove --debug {command} ...")


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0]


def described(error: BaseException) -> str:
    """The exception's type, and the first line of its message if it has one."""
    return ": ".join(filter(None, (type(error).__name__, first_line(error))))


# ---------------------------------------------------------------- options


def _page(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Check the arguments of --html before the command runs."""
    del param
    if value == _STDOUT and ctx.meta[_JSON]:
        raise click.BadParameter("- and --json both write to stdout. Fix: --html report.html --json")
    if value in (None, _STDOUT):
        return value
    place = Path(value or "")
    if not place.name:
        raise click.BadParameter("not a file name. Fix: --html report.html")
    if not place.parent.is_dir():
        raise click.BadParameter(f"the folder {place.parent} does not exist. Fix: create it first")
    return value


as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_as_page = click.option(
    "--html",
    type=click.Path(allow_dash=True),
    callback=_page,
    metavar="FILE",
    help="Write an HTML page to FILE, or to stdout if FILE is -. Replaces only an earlier page of torchmove.",
)
_overwrite = click.option("--overwrite", is_flag=True, help="Let the page of --html replace any regular file.")


def reporting(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options --json, --html and --overwrite to a command, which gets them as one argument, `answer`."""

    @as_json
    @_as_page
    @_overwrite
    @wraps(command)
    def with_answer(*given: Any, as_json: bool, html: str | None, overwrite: bool, **options: Any) -> Any:
        page = None if html in (None, _STDOUT) else PageFile(html, os.path.join(os.getcwd(), html), overwrite)
        if overwrite and page is None:
            raise click.UsageError("--overwrite applies to --html. Fix: --html report.html --overwrite")
        return command(*given, answer=Answer(as_json, html == _STDOUT, page), **options)

    return with_answer


def _format(ctx: click.Context, param: click.Parameter, value: str) -> str:
    del param
    if value in ("github", "sarif") and ctx.meta[_JSON]:
        raise click.BadParameter(f"{value} and --json both write to stdout. Fix: leave one of them out")
    return value


# For results with lines of code. --json is short for --format json.
as_format = click.option(
    "--format",
    "format_",
    type=click.Choice(["text", "json", "github", "sarif"]),
    default="text",
    show_default=True,
    callback=_format,
    help="Print text, JSON, GitHub annotations, or SARIF 2.1.0 for code scanning.",
)


def devices_like(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Device names for shell completion."""
    del ctx, param
    known = ("cuda", "cuda:0", "cpu", "mps", "xpu", "auto")
    return [device for device in known if device.startswith(incomplete)]


# ---------------------------------------------------------------- answers


class Answer(NamedTuple):
    """How a command prints its result."""

    as_json: bool
    as_html: bool
    page: PageFile | None

    @property
    def is_whole(self) -> bool:
        """Whether it is JSON or a page, which have everything."""
        return self.as_json or self.as_html or self.page is not None

    def check(self, inputs: Collection[Path]) -> None:
        """Refuse a page that cannot be written, before the command runs. `inputs`: the files that the command reads."""
        if self.page is not None:
            self.page.check(inputs)

    def tell(self, result: Result, inputs: Collection[Path], format_: str = "text") -> None:
        if self.page is not None:
            self.page.write(result.to_html(), inputs)
            click.echo(f"wrote {os.path.relpath(self.page.path)}", err=True)
        if self.as_html and format_ != "text":
            raise click.UsageError("--html - and --format both write to stdout. Fix: --html report.html")
        if self.as_html:
            say(result.to_html())
        elif format_ in ("github", "sarif"):
            from torchmove.reporting import line_formats

            say(getattr(line_formats, format_)(result))
        else:
            tell(result, as_json=self.as_json or format_ == "json")


def tell(result: Result, *, as_json: bool) -> None:
    """Print a result."""
    if as_json:
        say(result.to_json())
    else:
        from torchmove.reporting import report, text

        width = text.terminal_width(_stream())
        say(text.render(report(result).sheet(), color=True, width=width))  # click removes colors unless in a terminal
