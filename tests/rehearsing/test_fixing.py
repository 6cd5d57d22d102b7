"""Edits keep every other character, stay in their folder, and are written together or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import torchmove as tm
from torchmove import cli
from torchmove.cli import output
from torchmove.rehearsing.evidence import Evidence, Operand, Site, Span
from torchmove.rehearsing.fixing import source_files
from torchmove.rehearsing.fixing.edits import (
    AddDevice,
    Append,
    Before,
    Drop,
    ForEach,
    Keep,
    NotEdited,
    Register,
    SetDevice,
)
from torchmove.rehearsing.fixing.source_files import SourceChanged, SourceFiles, write_all
from torchmove.rehearsing.result import Finding

libcst = pytest.importorskip("libcst")
from torchmove.rehearsing.fixing.rewriting import edited  # noqa: E402  (these import libcst)
from torchmove.rehearsing.fixing.rounds import RehearsalFailed, fix  # noqa: E402

needs_positions = pytest.mark.skipif(sys.version_info < (3, 11), reason="expressions have positions from Python 3.11")
PROGRAM = """\
import torch
from torch import nn

from parts import noise


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.table = torch.ones(4)  # a table

    def forward(self, x):
        return self.linear(x) * self.table


def step(model, x, y):
    out = model(x.to("cuda")) + noise(4)
    (out - y).square().mean().backward()


def build():
    return step, Net(), torch.ones(2, 4), torch.zeros(2, 4)
"""
PARTS = "import torch\n\ndef noise(n):\n    return torch.zeros(n)\n"


def at(source: bytes, text: str) -> Span:
    """The span of the first occurrence of a text, in one line."""
    lines = source.decode("utf-8-sig").splitlines()
    number = next(index for index, line in enumerate(lines) if text in line)
    column = lines[number].index(text)
    return Span("f.py", number + 1, column, number + 1, column + len(text))


# ---------------------------------------------------------------- one edit


@pytest.mark.parametrize(
    ("source", "edit", "expected"),
    [
        ("x = f(2)", lambda s: AddDevice(at(s, "f(2)"), "y.device"), "x = f(2, device=y.device)"),
        ("x = f()", lambda s: AddDevice(at(s, "f()"), "d"), "x = f(device=d)"),
        ("x = f(2, device=None)", lambda s: AddDevice(at(s, "f(2, device=None)"), "d"), "x = f(2, device=d)"),
        ("x = f( 2 )", lambda s: AddDevice(at(s, "f( 2 )"), "d"), "x = f( 2, device=d )"),
        ('x = y.to("cpu", z)', lambda s: SetDevice(at(s, 'y.to("cpu", z)'), "d"), "x = y.to(d, z)"),
        ('f(2, device="cpu")', lambda s: SetDevice(at(s, 'f(2, device="cpu")'), "d"), "f(2, device=d)"),
        ("z = a * b + c", lambda s: Append(at(s, "a * b"), ".to(d)"), "z = (a * b).to(d) + c"),
        ("z = (a * b) + c", lambda s: Append(at(s, "a * b"), ".to(d)"), "z = (a * b).to(d) + c"),
        ("z = -f(x)", lambda s: Append(at(s, "-f(x)"), ".to(d)"), "z = (-f(x)).to(d)"),
        ("z = y.cpu().sum()", lambda s: Drop(at(s, "y.cpu()")), "z = y.sum()"),
        ("z = np.mean(xs)", lambda s: ForEach(at(s, "xs"), ".cpu()"), "z = np.mean([each.cpu() for each in xs])"),
        ("if a:\n\tz = f(x)", lambda s: Before(at(s, "f(x)"), "x = x.to(d)"), "if a:\n\tx = x.to(d)\n\tz = f(x)"),
        ("x.to(d)  # sent", lambda s: Keep("f.py", 1), "x = x.to(d)  # sent"),
        ("b['x'].cuda()", lambda s: Keep("f.py", 1), "b['x'] = b['x'].cuda()"),
    ],
)
def test_an_edit_changes_its_place_only(source, edit, expected):
    assert edited(source.encode(), [edit(source.encode())]).decode() == expected


@pytest.mark.parametrize(
    ("source", "edit"),
    [
        ("x = f(2, device=other)", lambda s: AddDevice(at(s, "f(2, device=other)"), "d")),
        ("x = f(**more)", lambda s: AddDevice(at(s, "f(**more)"), "d")),
        ("x = f(2, generator=g)", lambda s: AddDevice(at(s, "f(2, generator=g)"), "d")),
        ("def g(device):\n    f(device=device)", lambda s: SetDevice(at(s, "f(device=device)"), "d")),
        ("y = x.to(device)", lambda s: SetDevice(at(s, "x.to(device)"), "x.device")),
        ("y = x.to('cpu')", lambda s: SetDevice(at(s, "x.to('cpu')"), "d", only_made=True)),
        ("x += y", lambda s: Append(at(s, "x"), ".to(d)")),
        ("while f(x): pass", lambda s: Before(at(s, "f(x)"), "x = x.to(d)")),
        ("a = [f(x) for x in xs]", lambda s: Before(at(s, "f(x)"), "x = x.to(d)")),
        ("a = lambda x: f(x)", lambda s: Before(at(s, "f(x)"), "x = x.to(d)")),
        ("x = 1; y = f(x)", lambda s: Before(at(s, "f(x)"), "x = x.to(d)")),
        ("f(x).to(d)", lambda s: Keep("f.py", 1)),
        ("x = f(", lambda s: Keep("f.py", 1)),
    ],
)
def test_an_edit_that_is_not_certain_is_refused(source, edit):
    with pytest.raises(NotEdited):
        edited(source.encode(), [edit(source.encode())])


def module_of(body: str) -> str:
    return f"class A:\n    def __init__(self):\n{body}"


@pytest.mark.parametrize(
    "body",
    [
        "        self.t = f()\n        super().__init__()",
        "        super().__init__()\n        self.t = f()\n        self.t = g()",
        "        super().__init__()\n        self.t = self.u = f()",
        "        super().__init__()\n        self.t, self.u = f()",
        "        super().__init__()\n\n    def set(self):\n        self.t = f()",
    ],
)
def test_an_attribute_that_is_not_assigned_once_alone_is_not_registered(body):
    with pytest.raises(NotEdited):
        edited(module_of(body).encode(), [Register("f.py", "A", "t")])


def test_a_registered_attribute_keeps_its_comment_and_its_lines():
    source = module_of(
        "        super().__init__()\n        self.t = (a +  # first\n            b)  # second\n"
    ).encode()
    expected = source.replace(b"self.t = (", b'self.register_buffer("t", (').replace(
        b"b)  # second", b"b), persistent=False)  # second"
    )
    assert edited(source, [Register("f.py", "A", "t")]) == expected


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("end", ["", "\n", "\n\n"])
@pytest.mark.parametrize("indent", ["  ", "\t"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1"])
def test_line_ends_indents_and_encodings_are_kept(newline, end, indent, encoding):
    head = "# -*- coding: latin-1 -*-\n" if encoding == "latin-1" else ""
    text = f"{head}# ä\ndef f(x):\n{indent}é = g(x)\n\n\n{indent}return é{end}".replace("\n", newline)
    source = text.encode(encoding)
    span = at(text.encode(), "g(x)")
    result = edited(source, [Append(span, ".to(d)"), Before(span, "x = x.to(d)")])
    inserted = f"{indent}x = x.to(d){newline}{indent}é = g(x).to(d)"
    assert result == text.replace(f"{indent}é = g(x)", inserted).encode(encoding)


# ---------------------------------------------------------------- rounds


def finding_at(line: int, kind: str = "input") -> Finding:
    return Finding("f.py", line, kind, f"code {line}", "why", "remedy")


def rehearsal_of(*findings: Finding, spans: tuple[Span, ...] = (), ending: str = "finished") -> tm.Rehearsal:
    evidence = tuple(
        (Evidence(Site(span, ("d",)), (Operand(span, "x", "tensor"),)),)
        for span in spans or [Span("f.py", each.line, 4, each.line, 5) for each in findings]
    )
    stopped = "" if ending == "finished" else "stopped"
    return tm.Rehearsal(torch.device("cuda", 0), findings, {}, stopped, ending, evidence=evidence)


SOURCE = b"a = x\nb = x\n"


@pytest.mark.parametrize(
    "worse",
    [
        lambda: rehearsal_of(finding_at(1), finding_at(2)),
        lambda: rehearsal_of(finding_at(2, "numpy")),
        lambda: rehearsal_of(ending="error"),
        lambda: (_ for _ in ()).throw(RehearsalFailed("it raised")),
    ],
)
def test_an_edit_that_makes_it_worse_is_undone(worse):
    done = fix(lambda sources: worse() if sources else rehearsal_of(finding_at(1)), lambda _: SOURCE)
    assert (done.sources, done.mended) == ({}, ())
    assert [(finding.line, why) for finding, why in done.left] == [(1, "no edit that is certain mends it")]


def test_what_helps_is_kept_and_the_rest_is_named():
    def rehearse(sources):
        source = sources.get("f.py", SOURCE)
        lines = [line for line in (1, 2) if b".to(d)" not in source.splitlines()[line - 1] or line == 2]
        return rehearsal_of(*map(finding_at, lines))

    done = fix(rehearse, lambda _: SOURCE)
    assert done.sources == {"f.py": b"a = x.to(d)\nb = x\n"}
    assert [each.line for each in done.mended] == [1]
    assert [finding.line for finding, _ in done.left] == [2]


def test_kinds_that_are_yours_to_decide_are_not_edited():
    kinds = ("error", "dtype", "optimizer")
    found = rehearsal_of(*(finding_at(1, kind) for kind in kinds))
    done = fix(lambda _: found, lambda _: SOURCE)
    assert done.sources == {}
    assert len({why for _, why in done.left}) == len(kinds)


# ---------------------------------------------------------------- files


def test_only_files_in_the_folder_are_edited(tmp_path):
    inside, outside = tmp_path / "in" / "a.py", tmp_path / "b.py"
    inside.parent.mkdir()
    library = tmp_path / "in" / "site-packages" / "c.py"
    library.parent.mkdir()
    for each in (inside, outside, library):
        each.write_text("x = 1\n")
    (tmp_path / "in" / "link.py").symlink_to(outside)
    files = SourceFiles(tmp_path / "in")
    assert files.read(str(inside)) == b"x = 1\n"
    for each in (outside, library, tmp_path / "in" / "link.py", tmp_path / "in" / "missing.py", Path("<stdin>")):
        with pytest.raises(NotEdited):
            files.read(str(each))


@pytest.mark.parametrize("protect", [lambda path: path.chmod(0o444), lambda path: os.link(path, f"{path}.again")])
def test_a_file_that_is_protected_or_has_two_names_is_not_edited(tmp_path, protect):
    path = tmp_path / "a.py"
    path.write_text("x = 1\n")
    protect(path)
    with pytest.raises(NotEdited):
        SourceFiles(tmp_path).read(str(path))


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(each): each.read_bytes() for each in folder.iterdir()}


def test_all_files_are_written_and_keep_their_permissions(tmp_path):
    originals = {str(tmp_path / name): name.encode() for name in ("a.py", "b.py")}
    for path, source in originals.items():
        Path(path).write_bytes(source)
        Path(path).chmod(0o750)
    sources = {path: source + b" edited" for path, source in originals.items()}
    write_all(sources, originals)
    assert files_in(tmp_path) == sources
    assert {Path(path).stat().st_mode & 0o777 for path in sources} == {0o750}


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_if_one_file_cannot_be_written_none_is(tmp_path, monkeypatch, which, error):
    originals = {str(tmp_path / name): name.encode() for name in ("a.py", "b.py")}
    for path, source in originals.items():
        Path(path).write_bytes(source)
    replace, count = os.replace, iter(range(9))

    def failing(source, target):
        if next(count) == which:
            raise error
        replace(source, target)

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(error):
        write_all(dict.fromkeys(originals, b"edited"), originals)
    assert files_in(tmp_path) == originals


def test_a_file_that_was_changed_meanwhile_is_not_overwritten(tmp_path):
    path = tmp_path / "a.py"
    path.write_bytes(b"yours")
    with pytest.raises(SourceChanged, match="was changed"):
        write_all({str(path): b"edited"}, {str(path): b"before"})
    assert files_in(tmp_path) == {str(path): b"yours"}


def test_an_interrupt_while_files_are_written_comes_after_the_last_one(tmp_path, monkeypatch):
    originals = {str(tmp_path / name): name.encode() for name in ("a.py", "b.py")}
    for path, source in originals.items():
        Path(path).write_bytes(source)
    write = source_files._write

    def interrupted(*given):
        os.kill(os.getpid(), signal.SIGINT)
        write(*given)

    monkeypatch.setattr(source_files, "_write", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has it ignored in the background
    try:
        with pytest.raises(KeyboardInterrupt):
            write_all(dict.fromkeys(originals, b"edited"), originals)
    finally:
        signal.signal(signal.SIGINT, before)
    assert {*files_in(tmp_path).values()} in ({b"edited"}, {*originals.values()})


# ---------------------------------------------------------------- the command


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(PROGRAM)
    Path("parts.py").write_text(PARTS)
    return tmp_path


SOURCES, LIBRARIES = str(Path(tm.__file__).parents[1]), str(Path(libcst.__file__).parents[1])
RUN = (
    f"import sys; sys.path.insert(0, {SOURCES!r}); sys.path.append({LIBRARIES!r}); "
    "from torchmove.__main__ import run; run()"
)


def torchmove(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", RUN, "rehearse", "train.py:build", "--moved-by", "to", *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)


@needs_positions
def test_a_program_is_fixed_across_its_files_and_a_second_time_nothing_is_edited(folder):
    before = files_in(folder)
    shown = torchmove("--diff")
    assert shown.returncode == 1
    assert {path: text for path, text in files_in(folder).items() if path.endswith(".py")} == before
    ran = torchmove("--fix")
    assert (ran.returncode, ran.stdout.splitlines()[0]) == (
        0,
        "Fixed 3 device errors: the edited step ran to its end on a simulated cuda:0",
    ), ran.stderr
    program, parts = Path("train.py").read_text(), Path("parts.py").read_text()
    assert 'self.register_buffer("table", torch.ones(4), persistent=False)  # a table' in program
    assert "+ noise(4).to(" in program or ".device)" in parts
    assert "y = y.to(out.device)" in program
    for line in {*program.splitlines()} - {*PROGRAM.splitlines()}:
        assert f"+{line}" in shown.stdout
    assert torchmove("--fix").stdout.startswith("Nothing to fix")
    assert (Path("train.py").read_text(), Path("parts.py").read_text()) == (program, parts)


@pytest.mark.slow
@needs_positions
def test_a_folder_that_is_named_limits_the_edits(folder):
    Path("other").mkdir()
    ran = torchmove("--fix", "--within", "other")
    assert ran.returncode == 1
    assert "not edited: not in " in ran.stdout
    assert (Path("train.py").read_text(), Path("parts.py").read_text()) == (PROGRAM, PARTS)


@pytest.mark.slow
@needs_positions
def test_an_interrupt_during_a_rehearsal_leaves_the_files(folder):
    Path("train.py").write_text(PROGRAM.replace("def build():", "def build():\n    __import__('time').sleep(60)"))
    before = Path("train.py").read_text()
    command = [sys.executable, "-c", RUN, "rehearse", "train.py:build", "--fix"]
    listening = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.default_int_handler)}
    with subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE, text=True, **listening) as process:
        time.sleep(6)
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in said
    assert Path("train.py").read_text() == before
    assert not [*folder.glob(".*")]


def test_a_rehearsal_needs_no_libcst():
    code = "import sys; sys.modules['libcst'] = None; import torchmove.reporting.rehearsal_report, torchmove.cli.fixing"
    environment = {**os.environ, "PYTHONPATH": SOURCES}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_without_libcst_the_line_that_installs_it_is_named(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "libcst", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    ran = CliRunner().invoke(cli.main, ["rehearse", "train.py:build", "--fix"])
    assert (ran.exit_code, "Fix: pip install libcst" in ran.output) == (output.REFUSED, True)


def test_a_folder_without_an_edit_is_refused(folder):
    ran = CliRunner().invoke(cli.main, ["rehearse", "train.py:build", "--within", "."])
    assert (ran.exit_code, "--within applies to --fix and --diff" in ran.output) == (output.MISTYPED, True)
