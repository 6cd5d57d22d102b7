"""The findings of a rehearsal for services that show them at their lines: GitHub annotations, and SARIF 2.1.0."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import torchmove
from torchmove.formatting import readable_bytes
from torchmove.rehearsing.result import Rehearsal
from torchmove.reporting import report

# What each kind of finding means, as in the tables of docs/rehearse.md.
RULES = {
    "attribute": "A tensor on the wrong device is a plain attribute of a module, not a buffer.",
    "container": "A tensor or module on the wrong device is in a list or dict, which Module.to does not look into.",
    "cache": "A tensor on the wrong device was cached.",
    "closure": "A tensor on the wrong device is held by a function: its closure, defaults, a partial, a hook.",
    "factory": "A tensor was created without device=.",
    "hard-coded": "A tensor was moved to, or created on, a device that the code names.",
    "stale-device": "A tensor is on a device that an attribute or a variable keeps.",
    "input": "A tensor of the batch was not moved.",
    "loss": "A tensor on the wrong device belongs to no given object, such as a global or the weights of a loss.",
    "optimizer": "Optimizer state is on the wrong device.",
    "thrown-away": "A tensor was moved, but the result of .to() was not kept.",
    "numpy": "numpy cannot read the memory of a device.",
    "host": "An operation reads on the CPU a tensor that is on the device.",
    "generator": "A torch.Generator is on another device than the tensor that it fills.",
    "error": "The step raised an error that is not about devices.",
    "dtype": "The device does not support this dtype or operation.",
    "synchronizes": "This line waits for the device.",
    "decided": "This line decided a device.",
    "incomplete": "The rehearsal did not reach the end.",
    "memory": "The peak memory is above the limit.",
}
_NOTES = {"synchronizes", "decided"}
_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


class Annotation(NamedTuple):
    """A message at a line of a file; `file` is empty if it belongs to no line."""

    kind: str
    message: str
    file: str = ""
    line: int = 0

    @property
    def level(self) -> str:
        return "note" if self.kind in _NOTES else "error"


def annotated(found: Rehearsal) -> list[Annotation]:
    """The findings, and what a rehearsal says besides: that it stopped, or that the memory is too small."""
    made = [
        Annotation(each.kind, f"{each.why}\nFix: {each.remedy}", _path_of(each.file), each.line)
        for each in found.findings
    ]
    if found.stopped and not {each.kind for each in made} & {"error", "dtype"}:
        lines = [line.strip() for line in found.stopped.splitlines()]
        words = "\n".join([report(found).sheet().title, *lines])
        file, line = found.stopped_in or ("", 0)
        made.append(Annotation("incomplete", words, _path_of(file) if file else "", line))
    if not found.fits and found.max_bytes is not None:
        peak, limit = readable_bytes(found.peak_bytes), readable_bytes(found.max_bytes)
        made.append(Annotation("memory", f"the peak memory on {found.device} is {peak}, above {limit}"))
    return made


def _path_of(file: str) -> str:
    """The path relative to the working folder, with slashes; the whole path of a file elsewhere."""
    path = Path(file)
    try:
        return path.resolve().relative_to(Path.cwd().resolve()).as_posix()
    except ValueError:
        return path.as_posix()


# ---------------------------------------------------------------- GitHub


def github(found: Rehearsal) -> str:
    """Workflow commands, which GitHub Actions shows at the lines, and the first line of the result."""
    return "\n".join([*map(_command, annotated(found)), report(found).sheet().title])


def _command(each: Annotation) -> str:
    place = {"file": each.file, "line": str(each.line)} if each.file else {}
    properties = {**place, "title": f"torchmove: {each.kind}"}
    given = ",".join(f"{name}={_escaped(value, ':,')}" for name, value in properties.items())
    return f"::{'notice' if each.level == 'note' else 'error'} {given}::{_escaped(each.message)}"


def _escaped(text: str, more: str = "") -> str:
    """As GitHub's own toolkit does: `%` first."""
    for letter in f"%\r\n{more}":
        text = text.replace(letter, f"%{ord(letter):02X}")
    return text


# ---------------------------------------------------------------- SARIF


def sarif(found: Rehearsal) -> str:
    """A SARIF 2.1.0 log with one run; paths are relative to the working folder."""
    kinds = list(RULES)
    driver = {
        "name": "torchmove",
        "version": torchmove.__version__,
        "rules": [_rule(kind) for kind in kinds],
    }
    run = {
        "tool": {"driver": driver},
        "invocations": [{"executionSuccessful": not found.stopped}],
        "columnKind": "unicodeCodePoints",
        "results": [_result(each, kinds) for each in annotated(found)],
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)


def _rule(kind: str) -> dict[str, Any]:
    return {
        "id": kind,
        "shortDescription": {"text": RULES[kind]},
        "defaultConfiguration": {"level": Annotation(kind, "").level},
    }


def _result(each: Annotation, kinds: list[str]) -> dict[str, Any]:
    result = {
        "ruleId": each.kind,
        "ruleIndex": kinds.index(each.kind),
        "level": each.level,
        "message": {"text": each.message},
    }
    if each.file:
        result["locations"] = [{"physicalLocation": _location(each)}]
    return result


def _location(each: Annotation) -> dict[str, Any]:
    is_relative = not Path(each.file).is_absolute()
    place = {"uri": quote(each.file), "uriBaseId": "%SRCROOT%"} if is_relative else {"uri": Path(each.file).as_uri()}
    return {"artifactLocation": place, "region": {"startLine": max(each.line, 1)}}
