"""Findings for services that show them at their lines: GitHub annotations and SARIF."""

from __future__ import annotations

import json
import re
import urllib.parse
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from torchmove import cli
from torchmove.rehearsing.result import Finding, Rehearsal
from torchmove.reporting import line_formats

ROOT = Path(__file__).parents[2]
SCRIPT = """
import torch
from torch import nn

model = nn.Linear(4, 1).to("cuda")
loss = model(torch.ones(2, 4)).sum()
print(loss.item())
"""


def result(*findings: Finding, **facts) -> Rehearsal:
    return Rehearsal(torch.device("cuda:0"), findings, {"activations": 4096}, facts.pop("stopped", ""), **facts)


def read_as_github_does(line: str) -> tuple[str, dict[str, str], str]:
    """The command, its properties and its message, as the runner of GitHub Actions reads them."""
    command, given, message = re.fullmatch(r"::(\w+) ([^:]*)::(.*)", line).groups()
    return (
        command,
        {name: urllib.parse.unquote(value) for name, value in (each.split("=", 1) for each in given.split(","))},
        urllib.parse.unquote(message),
    )


def check_sarif(log: dict) -> list[dict]:
    """What the schema of SARIF 2.1.0 requires of what we write. Returns the results."""
    assert log["version"] == "2.1.0"
    assert log["$schema"].endswith("sarif-schema-2.1.0.json")
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"] == "torchmove"
    rules = [rule["id"] for rule in driver["rules"]]
    assert len({*rules}) == len(rules)
    assert all(rule["shortDescription"]["text"] for rule in driver["rules"])
    assert all(isinstance(each["executionSuccessful"], bool) for each in run["invocations"])
    for each in run["results"]:
        assert each["message"]["text"]
        assert each["level"] in ("none", "note", "warning", "error")
        assert rules[each["ruleIndex"]] == each["ruleId"]
        for place in each.get("locations", ()):
            physical = place["physicalLocation"]
            assert physical["region"]["startLine"] >= 1
            assert re.fullmatch(r"[\w./%~:@!$&'()*+,;=-]+", physical["artifactLocation"]["uri"])
    return run["results"]


def test_a_finding_is_an_annotation_at_its_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    why = "100% of:\r\nthis, and that"
    found = result(Finding(str(tmp_path / "a,b:c%" / "x.py"), 7, "factory", "x", why, 'x.to("cuda")'))
    line, title = line_formats.github(found).splitlines()
    command, properties, message = read_as_github_does(line)
    assert (command, properties) == ("error", {"file": "a,b:c%/x.py", "line": "7", "title": "torchmove: factory"})
    assert message == f'{why}\nFix: x.to("cuda")'
    assert title == "1 device error on cuda:0"


def test_a_note_is_a_notice():
    found = result(Finding("x.py", 7, "synchronizes", "x", "why", "fix"))
    assert line_formats.github(found).startswith("::notice file=x.py,line=7,")
    (note,) = check_sarif(json.loads(line_formats.sarif(found)))
    assert note["level"] == "note"


def test_paths_are_relative_to_the_working_folder_and_otherwise_whole(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    files = [tmp_path / "here" / "a b" / "ü.py", tmp_path / "else where.py"]
    found = result(*(Finding(str(file), 3, "input", "x", "why", "fix") for file in files))
    places = [
        each["locations"][0]["physicalLocation"]["artifactLocation"]
        for each in check_sarif(json.loads(line_formats.sarif(found)))
    ]
    assert places == [{"uri": "a%20b/%C3%BC.py", "uriBaseId": "%SRCROOT%"}, {"uri": files[1].as_uri()}]


def test_what_has_no_line_is_said_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    facts = {"ending": "limit", "stopped_at": "x.py:9", "stopped_in": (str(tmp_path / "x.py"), 9), "max_bytes": 1024}
    found = result(stopped="stopped at x.py:9  code\n      why\n      Fix: do", **facts)
    stopped, large, _ = line_formats.github(found).splitlines()
    assert read_as_github_does(stopped)[1] == {"file": "x.py", "line": "9", "title": "torchmove: incomplete"}
    assert read_as_github_does(stopped)[2].endswith("why\nFix: do")
    assert read_as_github_does(large)[1:] == (
        {"title": "torchmove: memory"},
        "the peak memory on cuda:0 is 4 KiB, above 1 KiB",
    )
    log = json.loads(line_formats.sarif(found))
    assert [each["ruleId"] for each in check_sarif(log)] == ["incomplete", "memory"]
    assert log["runs"][0]["invocations"] == [{"executionSuccessful": False}]


def test_the_rules_are_the_kinds_of_the_page_about_rehearsals():
    text = (ROOT / "docs" / "rehearse.md").read_text()
    assert {*re.findall(r"^\| `([\w-]+)` \|", text, re.M)} | {"incomplete", "memory"} == {*line_formats.RULES}


@pytest.mark.parametrize("format_", ["text", "json", "github", "sarif"])
def test_at_the_command_line(format_, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    ended = CliRunner().invoke(cli.main, ["rehearse", "train.py", "--format", format_])
    assert ended.exit_code == 1, ended.stderr
    if format_ == "sarif":
        found = {
            (each["ruleId"], each["locations"][0]["physicalLocation"]["region"]["startLine"])
            for each in check_sarif(json.loads(ended.stdout))
        }
        assert found == {("factory", 6), ("synchronizes", 7)}
    elif format_ == "json":
        assert ended.stdout == CliRunner().invoke(cli.main, ["rehearse", "train.py", "--json"]).stdout
    elif format_ == "github":
        assert ended.stdout.startswith("::error file=train.py,line=6,title=torchmove%3A factory::")
    else:
        assert ended.stdout.startswith("1 device error on cuda:0\n  train.py:6")


@pytest.mark.parametrize("given", [["--format", "sarif", "--json"], ["--format", "github", "--html", "-"]])
def test_one_thing_is_printed_to_stdout(given, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    ended = CliRunner().invoke(cli.main, ["rehearse", "train.py", *given])
    assert (ended.exit_code, "both write to stdout. Fix: " in ended.stderr) == (2, True)


def test_an_error_is_json_too_with_format_json(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ended = CliRunner().invoke(cli.main, ["rehearse", "absent.py:build", "--format", "json"])
    assert (ended.exit_code, json.loads(ended.stdout)["ok"]) == (2, False)
