"""The command line: its commands, how they end, and what they never do."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import forged
import pytest
import torch
from click.testing import CliRunner

import torchmove as tm
from torchmove import bench, cli
from torchmove import results as html
from torchmove.checkpoints import atomic_writes
from torchmove.cli import output, targets
from torchmove.formatting import bytes_of

PROGRAM = """
import torch
from torch import nn

print("it talks while it is loaded")

class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 4))
        self.table = torch.ones(4)

    def forward(self, x):
        return (x @ self.weight) * self.table

def step(net, opt, batch):
    net(batch.to("cuda")).sum().backward()
    opt.step()

def pair():
    model = Scaled()
    return model, torch.optim.SGD(model.parameters())

def named():
    model, optimizer = pair()
    return {"step": step, "net": model, "opt": optimizer, "batch": torch.ones(2, 4)}

def listed():
    return step, *pair(), torch.ones(2, 4)

def stuck():
    return nn.DataParallel(nn.Linear(2, 2))

def nothing():
    pass

def empty():
    return ()

def absent():
    return None, None

async def awaited():
    return Scaled()

def slip():
    return {"net": Scaled(), "weights": Scaled().parameters()}

def values():
    return {"0.weight": torch.ones(2), "0.bias": torch.ones(3)}

def few():
    return step, Scaled()

def told():
    import atexit, os, sys, threading
    assert sys.argv == ["program.py"], sys.argv
    atexit.register(print, "it talks at the end")
    os.system("echo another program talks")
    os.write(1, b"it talks to the descriptor\\n")
    thread = threading.Thread(target=print, args=("it talks in a thread",))
    thread.start()
    thread.join()
    return step_that_talks, Scaled()

def step_that_talks(net):
    print("it talks in the step")
    net.to("cuda")

def with_namespace():
    from types import SimpleNamespace
    return {"step": step_of_namespace, "net": Scaled(), "batch": SimpleNamespace(x=torch.ones(2, 4))}

def step_of_namespace(net, batch):
    net(batch.x)

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

def decided():
    return {"step": decided_step, "net": Scaled(), "batch": torch.ones(2, 4)}

def decided_step(net, batch):
    net(batch.to(DEVICE))

def refused():
    return (lambda net: None), nn.DataParallel(nn.Linear(2, 2))

def undecided():
    with torch.device("meta"):
        net = Scaled()
    return {"step": undecided_step, "net": net, "batch": torch.ones(2, 4)}

def undecided_step(net, batch):
    if net(batch.to("cuda")).sum() > 0:
        print("positive")

def erring():
    return {"step": erring_step, "net": Scaled(), "batch": torch.ones(2, 4)}

def erring_step(net, batch):
    net(batch.to("cuda"))
    raise ValueError("no such label")

def ended():
    return step_that_ends, Scaled()

def step_that_ends(net):
    raise SystemExit(0)

class Odd(BaseException):
    pass

def odd():
    raise Odd

def wordless():
    raise KeyError

def broken():
    raise ValueError("no weights here\\nand more about it")

def leaves():
    raise SystemExit(7)

def slow():
    import time
    print("slow", flush=True)
    time.sleep(60)

class Holder:
    @staticmethod
    def inner():
        return Scaled()

number = 7
model = Scaled()

def needs(config):
    return Scaled()

def elsewhere():
    import os
    os.makedirs("outputs/run")
    os.chdir("outputs/run")
    return Scaled()
"""


MAIN = "from torchmove.cli import main; main(prog_name='torchmove')"
NO_TORCH = [["--help"], ["plan", "--help"], ["--version"], ["completion", "bash"], ["nosuch"]]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "needy.py").write_text("import a_module_that_is_not_there\n")
    (tmp_path / "wrong.py").write_text("def f(:\n")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "__init__.py").touch()
    (tmp_path / "inner" / "part.py").write_text("from . import other\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    for name in ("program", "needy", "wrong", "part", "inner"):
        sys.modules.pop(name, None)


def run(*arguments: str, **options: object):
    return CliRunner().invoke(cli.main, arguments, prog_name="torchmove", **options)


def in_a_process(*arguments: str, code: str = MAIN):
    """Without the twin, and without a GPU where there is one."""
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=hidden)


# ---------------------------------------------------------------- the door itself


def test_help_has_an_example_for_every_command():
    assert "Examples:\n    torchmove" in run("--help").output
    for name in cli.main.commands:
        shown = run(name, "--help")
        assert shown.exit_code == 0
        assert f"Example: torchmove {name}" in shown.output


def test_python_dash_m_runs_the_same_command():
    ran = subprocess.run([sys.executable, "-m", "torchmove", "--version"], capture_output=True, text=True, check=False)
    assert ran.stdout == run("--version").output


def test_the_version_is_that_of_the_library():
    assert run("--version").output == f"torchmove, version {tm.__version__}\n"


@pytest.mark.slow
@pytest.mark.parametrize("arguments", NO_TORCH, ids=" ".join)
def test_what_needs_no_torch_does_not_import_it(arguments):
    code = textwrap.dedent("""
        import sys, atexit
        atexit.register(lambda: print("imported", [name for name in ("torch", "rich") if name in sys.modules]))
        from torchmove.cli import main
        main()
    """)
    assert in_a_process(*arguments, code=code).stdout.splitlines()[-1] == "imported []"


@pytest.mark.slow
def test_importing_the_library_imports_nothing_until_it_is_used():
    code = "import sys, torchmove; print('torch' in sys.modules); torchmove.move; print('rich' in sys.modules)"
    assert in_a_process(code=code).stdout.split() == ["False", "False"]


def test_every_public_name_is_found_and_an_unknown_one_is_not():
    assert {name for name in tm.__all__ if getattr(tm, name, None) is not None} == set(tm.__all__)
    assert set(tm.__all__) <= set(dir(tm))
    with pytest.raises(AttributeError, match="no attribute 'moov'"):
        _ = tm.moov


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_script_for_the_shell(shell):
    ran = run("completion", shell)
    assert ran.exit_code == 0
    assert "_TORCHMOVE_COMPLETE" in ran.output


@pytest.mark.slow
def test_the_shell_completes_commands_and_devices(monkeypatch):
    monkeypatch.setenv("_TORCHMOVE_COMPLETE", "bash_complete")
    for words, count, expected in [
        ("torchmove re", 1, "rehearse"),
        ("torchmove plan a:b --to cu", 4, "cuda:0"),
        ("torchmove relocate a --to cu", 4, "cuda:0"),
        ("torchmove bench --to cu", 3, "cuda:0"),
        ("torchmove survey tr", 2, "file,tr"),
    ]:
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(count))
        assert expected in in_a_process().stdout


@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
def test_no_color_turns_colors_off(monkeypatch, no_color, coloured, folder):
    monkeypatch.setenv("NO_COLOR", no_color)
    ran = run("bench", "--to", "cpu", color=True)
    assert ("\x1b[" in ran.stderr) is coloured
    assert ("\x1b[" in run("plan", "program.py:stuck", "--to", "cpu", color=True).stdout) is coloured


def test_without_a_terminal_there_are_no_colours(folder):
    assert "\x1b[" not in run("plan", "program.py:stuck", "--to", "cpu").stdout


# ---------------------------------------------------------------- how commands end


@pytest.mark.twin
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nosuch"], "No such command 'nosuch'. Fix: see torchmove --help"),
        (["--nosuch"], "No such option '--nosuch'"),
        (["survey"], "Missing argument 'TARGET'. Fix: see torchmove survey --help"),
        (["plan", "program.py:pair"], "Missing option '--to'"),
        (["survey", "program.py"], "'program.py' does not name a function. Fix: file.py:function"),
        (["survey", "elsewhere.py:f"], "the file elsewhere.py does not exist"),
        (["survey", "no.such.module:f"], "no module named no.such.module. Fix: for a file, no.such.module.py"),
        (["survey", "program.py:f"], "program.py has no f; it has Scaled, step, pair"),
        (["survey", "program.py:number"], "is int, not a function. Fix: name one that returns the objects"),
        (["survey", "program.py:model"], "is Scaled, not a function. Fix: name one that returns the objects"),
        (["survey", "program.py:needs"], "has required arguments (missing a required argument: 'config')"),
        (["survey", "..program:pair"], "does not name a function. Fix: file.py:function"),
        (["survey", "program.py:pair", "--html", ""], "not a file name. Fix: --html report.html"),
        (["completion"], "Missing argument"),
        (["survey", "program:nothing"], "returned None. Fix: return the objects"),
        (["survey", "program.py:empty"], "returned None. Fix: return the objects"),
        (["survey", "program.py:absent"], "returned None. Fix: return the objects"),
        (["survey", "program.py:awaited"], "is async. Fix: use an ordinary function"),
        (["survey", "program.py:slip"], "returned weights: cannot search generator for tensors"),
        (["survey", "inner/part.py:build"], "part.py belongs to a package. Fix: run the command in "),
        (["survey", "program.py:pair", "--html", "no/such/folder.html"], "the folder no/such does not exist"),
        (["rehearse", "program.py:pair"], "returned Scaled first, not the step. Fix: return the step"),
        (["rehearse", "program.py:few"], "the step step(net, opt, batch) cannot be called with (Scaled): missing"),
        (
            ["rehearse", "program.py:named", "--to", "cpu"],
            "to='cpu': a rehearsal simulates an accelerator. Fix: to='cuda'",
        ),
        (
            ["rehearse", "program.py:named", "--to", "nowhere"],
            "to='nowhere' is not a device that torch knows. Fix: to='cuda'",
        ),
        (["plan", "program.py:pair", "--to", "nowhere"], "--to nowhere: not a device that torch knows. Fix: --to cuda"),
        (["relocate", "program.py", "--to", "nowhere", "-o", "out.pt"], "--to nowhere: not a device"),
        (["bench", "--to", "nowhere"], "--to nowhere: not a device"),
        (["survey", "program.py:pair", "--sort", "size"], "'size' is not one of 'bytes', 'path', 'parameters'"),
        (["summary", "program.py:pair", "--depth", "-1"], "-1 is not in the range x>=0"),
        (["inspect", "elsewhere.pt"], "does not exist"),
    ],
)
def test_a_mistyped_command_ends_with_one_line_and_a_code_of_its_own(arguments, says, folder):
    ran = run(*arguments)
    assert ran.exit_code == output.MISTYPED
    told = ran.stdout + ran.stderr.replace("it talks while it is loaded\n", "")
    assert says in told
    assert len(told.splitlines()) == 1
    assert told.startswith("usage: ")
    facts = json.loads(run(*arguments, "--json").stdout)
    assert (facts["schema"], facts["ok"], facts["refusals"]) == (1, False, [])
    assert arguments == ["completion"] or says in facts["usage"]


@pytest.mark.twin
@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("plan program.py:pair --to twin:7", "R010 to='twin:7'"),
        ("plan program.py:pair --to twin --keep model.nosuch", "R011"),
        ("plan program.py:stuck --to twin", "R020"),
        ("survey program.py:pair --html program.py", "R069"),
        ("summary program.py:pair --html program.py", "R069"),
        ("rehearse program.py:refused", "R020"),
        ("rehearse program.py:named --html program.py", "R069"),
        ("inspect program.py", "R062"),
        ("relocate program.py -o out.pt", "R062"),
        ("bench --to twin --bytes 900TB", "more than a quarter of the free memory"),
    ],
)
def test_what_is_refused_has_a_code_of_its_own(command, says, folder):
    ran = run(*command.split())
    assert ran.exit_code == output.REFUSED
    assert says in ran.stdout + ran.stderr
    facts = json.loads(run(*command.split(), "--json").stdout)
    assert (facts["schema"], facts["ok"]) == (1, False)


def test_the_exit_codes_of_the_help_and_the_page_are_those_of_the_code():
    text = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text()
    page = dict(re.findall(r"^\| (\d+) \| (.*?) \|$", text, re.M))
    shown = dict(re.findall(r"^ +(\d+)  (.*)$", run("--help").output, re.M))
    codes = {"FINE", "FINDINGS", "MISTYPED", "ERROR", "INCOMPLETE", "REFUSED", "INTERRUPTED", "UNHEARD"}
    assert [*page] == [*shown] == [str(getattr(output, name)) for name in sorted(codes, key=vars(output).get)]


@pytest.mark.parametrize("name", [name for name in cli.main.commands if name not in ("completion", "demo")])
def test_every_command_prints_json_and_names_a_device_to(name):
    options = {option for parameter in cli.main.commands[name].params for option in parameter.opts}
    assert "--json" in options
    assert "--device" not in options
    if "--to" in options:
        assert "auto" in run(name, "--help").output


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("program:broken", "program:broken raised ValueError: no weights here"),
        ("program:leaves", "program:leaves raised SystemExit: 7"),
        ("needy:f", "cannot import needy: ModuleNotFoundError: No module named 'a_module_that_is_not_there'"),
        ("wrong.py:f", "cannot import wrong.py: SyntaxError"),
        ("program:odd", "program:odd raised Odd (at program.py:"),
        ("program:wordless", "program:wordless raised KeyError (at program.py:"),
    ],
)
def test_an_error_of_the_program_is_one_line_and_a_traceback_only_with_debug(target, says, folder):
    ran = run("survey", target)
    assert ran.exit_code == output.ERROR
    line = ran.stderr.splitlines()[-1]
    assert line.startswith(f"error: {says}")
    assert line.endswith(". For the traceback: torchmove --debug survey ...")
    assert "Traceback" not in ran.output
    debugged = run("--debug", "survey", target)
    assert debugged.exit_code == output.ERROR
    assert "Traceback" in debugged.stderr
    assert debugged.stderr.splitlines()[-1] == line


def test_a_refused_move_ends_a_command_with_its_reasons(monkeypatch):
    def refused(*given, **options):
        tm.move(torch.nn.Linear(1, 1), to="nowhere")

    monkeypatch.setattr(bench, "measure", refused)
    ran = run("bench")
    assert ran.exit_code == output.REFUSED
    assert ran.stderr.startswith("refused: R010 to='nowhere'")
    assert len(ran.stderr.splitlines()) == 1


@pytest.mark.slow
def test_ctrl_c_ends_a_command_with_a_word(folder):
    program = f"import signal; signal.signal(signal.SIGINT, signal.default_int_handler); {MAIN}"
    command = [sys.executable, "-c", program, "survey", "program.py:slow"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder) as child:
        while child.stderr.readline() != "slow\n":
            time.sleep(0.01)
        child.send_signal(signal.SIGINT)
        stdout, stderr = child.communicate(timeout=30)
    assert (child.returncode, stdout, stderr) == (output.INTERRUPTED, "", "interrupted\n")


@pytest.mark.slow
def test_ctrl_c_while_the_command_line_is_loaded_shows_no_traceback():
    code = textwrap.dedent("""
        import sys

        class Interrupted:
            def find_spec(name, *rest):
                if name == "click":
                    raise KeyboardInterrupt

        sys.meta_path.insert(0, Interrupted)
        from torchmove.__main__ import run
        run()
    """)
    ran = in_a_process("--help", code=code)
    assert (ran.returncode, ran.stdout, ran.stderr) == (output.INTERRUPTED, "", "")


def test_what_is_refused_is_json_too_if_that_was_asked_for(folder):
    for command, code in [("plan program.py:pair --to xpu:99", "R010"), ("inspect program.py", "R06")]:
        ran = run(*command.split(), "--json")
        assert ran.exit_code == output.REFUSED
        facts = json.loads(ran.stdout)
        assert not facts["ok"]
        assert facts["refusals"][0]["code"].startswith(code)
    ran = run("survey", "program.py:broken", "--json")
    assert "no weights here" in json.loads(ran.stdout)["error"]
    assert "no_such" in json.loads(run("survey", "no_such:f", "--json").stdout)["usage"]


@pytest.mark.slow
def test_stdout_is_for_the_answer_alone_whoever_prints(folder):
    ran = in_a_process("rehearse", "program.py:told", "--json")
    assert ran.returncode == output.FINE, ran.stderr
    assert json.loads(ran.stdout)["ok"]
    talked = {line for line in ran.stderr.splitlines() if "talk" in line}
    places = ("it talks while it is loaded", "it talks at the end", "it talks in the step", "it talks in a thread")
    assert talked == {*places, "another program talks", "it talks to the descriptor"}


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a full disk is at hand on Linux only")
@pytest.mark.parametrize("command", ["survey program.py:pair", "devices", "--help"])
def test_an_answer_that_cannot_be_written_is_an_error(command, folder):
    with open("/dev/full", "w") as full:
        ran = subprocess.run(
            [sys.executable, "-c", MAIN, *command.split()], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert ran.returncode == output.ERROR
    assert ran.stderr.splitlines()[-1].startswith("error: OSError: [Errno 28] No space left on device")


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_what_the_terminal_cannot_show_is_replaced(encoding, folder, monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    ran = in_a_process("survey", "program.py:pair")
    assert ran.returncode == output.FINE, ran.stderr
    assert "-----" in ran.stdout


@pytest.mark.slow
@pytest.mark.parametrize("command", ["survey program.py:pair", "devices", "--help"])
def test_a_closed_stdout_is_no_error(command, folder):
    line = f"exec {shlex.quote(sys.executable)} -c {shlex.quote(MAIN)} {command} >&-"
    ran = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr.replace("it talks while it is loaded\n", "")) == (output.FINE, "")


@pytest.mark.slow
def test_with_stderr_closed_stdout_is_for_the_answer_still(folder):
    line = f"exec {shlex.quote(sys.executable)} -c {shlex.quote(MAIN)} rehearse program.py:told --json 2>&-"
    ran = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
    assert json.loads(ran.stdout)["ok"]


@pytest.mark.slow
def test_a_page_lies_where_it_was_asked_for_wherever_the_program_goes(folder):
    ran = in_a_process("survey", "program.py:elsewhere", "--html", "page.html")
    assert ran.returncode == output.FINE, ran.stderr
    assert sorted(each.name for each in folder.glob("**/*.html")) == ["page.html"]
    assert (folder / "page.html").exists()


@pytest.mark.slow
def test_a_page_that_cannot_be_written_whole_is_not_there(folder):
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000)); "
    program = "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
    ran = in_a_process("survey", "program.py:pair", "--html", "page.html", code=limit + program + MAIN)
    assert ran.returncode == output.REFUSED
    assert "R061 page.html: File too large" in ran.stderr
    assert not [each.name for each in folder.iterdir() if "page" in each.name]


COMMANDS = ["survey program.py:pair", "plan program.py:pair --to cpu", "rehearse program.py:named", "inspect saved.pt"]


@pytest.fixture
def saved(folder):
    torch.save({"a": torch.ones(2)}, folder / "saved.pt")
    return folder / "saved.pt"


def names(folder):
    return {each.name: os.lstat(each).st_ino for each in folder.iterdir() if each.name != "__pycache__"}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("overwrite", [[], ["--overwrite"]])
def test_a_page_never_replaces_what_the_command_reads(folder, saved, command, overwrite):
    read = folder / ("saved.pt" if "saved" in command else "program.py")
    (folder / "below").mkdir()
    (folder / "link").symlink_to(folder)
    (folder / "link.html").symlink_to(read.name)
    os.link(read, folder / "twin.html")
    before, there = read.read_bytes(), names(folder)
    for place in (read.name, str(read), f"below/../{read.name}", f"link/{read.name}", "link.html", "twin.html"):
        ran = run(*command.split(), "--html", place, *overwrite)
        assert ran.exit_code == output.REFUSED
        assert f"R069 {place}: is a file that this command reads" in ran.stderr
        assert "choose another path" in ran.stderr
        assert ran.stdout == ""
    assert (read.read_bytes(), names(folder)) == (before, there)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["program:pair", "package.module:pair", "package:pair"])
def test_a_page_never_replaces_a_module_that_the_command_imports(folder, target):
    (folder / "package").mkdir()
    (folder / "package" / "__init__.py").write_text("from package.module import pair")
    (folder / "package" / "module.py").write_text((folder / "program.py").read_text())
    place = {"program:pair": "program.py", "package:pair": "package/__init__.py"}.get(target, "package/module.py")
    before = (folder / place).read_text()
    ran = in_a_process("survey", target, "--html", place, "--overwrite")
    assert "is a file that this command reads" in ran.stderr
    assert "it talks while it is loaded" not in ran.stderr  # it has not been loaded for nothing
    assert (folder / place).read_text() == before


def test_a_page_never_replaces_a_file_of_a_sharded_checkpoint(folder):
    model = forged.index(folder / "model", {"a": "a.bin", "b": "b.bin"})
    for name in "ab":
        torch.save({name: torch.ones(2)}, model / f"{name}.bin")
    index = "pytorch_model.bin.index.json"
    os.link(model / "b.bin", folder / "twin.html")
    for given in ("model", f"model/{index}"):
        assert run("inspect", given, "--html", "page.html").exit_code == output.FINE
        for place in (f"model/{index}", "model/a.bin", "model/b.bin", "twin.html"):
            ran = run("inspect", given, "--html", place, "--overwrite")
            assert "R069" in ran.stderr
            assert "is a file that this command reads" in ran.stderr
    assert sorted(each.name for each in model.iterdir()) == ["a.bin", "b.bin", index]
    assert run("inspect", "model").exit_code == output.FINE


@pytest.mark.parametrize("command", COMMANDS)
def test_a_page_replaces_a_page_and_another_file_only_if_it_is_told_to(folder, saved, command):
    page = folder / "page.html"
    for _ in range(2):
        assert run(*command.split(), "--html", "page.html").exit_code == output.FINE
        assert page.read_text().startswith(html.PAGE_MARK)
    for mine in (b"", b"<!doctype html>\n<p>mine", html.PAGE_MARK[:-1].encode(), b" " + page.read_bytes()):
        page.write_bytes(mine)
        ran = run(*command.split(), "--html", "page.html")
        assert ran.exit_code == output.REFUSED
        assert "R069 page.html: already exists" in ran.stderr
        assert "--overwrite" in ran.stderr
        assert (ran.stdout, page.read_bytes()) == ("", mine)
    page.chmod(0o600)
    assert run(*command.split(), "--html", "page.html", "--overwrite").exit_code == output.FINE
    assert page.read_text().startswith(html.PAGE_MARK)
    assert page.stat().st_mode & 0o777 == 0o600


def taken(folder, kind):
    place = folder / "place.html"
    (folder / "mine.html").write_text("mine")
    if kind == "a pipe":
        os.mkfifo(place)
    elif kind == "a folder":
        place.mkdir()
    elif kind == "a device":
        return Path("/dev/null")
    else:
        place.symlink_to({"a link to a file": "mine.html", "a link to nothing": "nothing"}[kind])
    return place


@pytest.mark.parametrize("overwrite", [[], ["--overwrite"]])
@pytest.mark.parametrize("kind", ["a pipe", "a folder", "a device", "a link to a file", "a link to nothing"])
def test_a_page_is_refused_the_places_that_a_relocated_file_is(folder, saved, kind, overwrite):
    place = taken(folder, kind)
    there = names(folder)
    page = run("inspect", "saved.pt", "--html", str(place), *overwrite)
    torch.save({"a": torch.ones(2)}, folder / "saved.pt")
    with forged.saved_from("cuda:0"):
        torch.save({"a": torch.ones(2)}, folder / "cuda.pt")
    file = run("relocate", "cuda.pt", "-o", str(place), *overwrite)
    assert (page.exit_code, file.exit_code) == (output.REFUSED, output.REFUSED)
    assert "R069" in page.stderr
    assert page.stderr == file.stderr
    assert names(folder) == {**there, "cuda.pt": names(folder)["cuda.pt"]}
    assert (folder / "mine.html").read_text() == "mine"


@pytest.mark.slow
def test_a_page_is_refused_before_the_program_is_loaded(folder):
    (folder / "mine.html").write_text("mine")
    ran = in_a_process("survey", "program.py:pair", "--html", "mine.html")
    assert "R069" in ran.stderr
    assert "it talks while it is loaded" not in ran.stderr


def test_a_place_that_is_taken_meanwhile_stays(folder, saved, monkeypatch):
    page, before = folder / "page.html", {*names(folder)}
    monkeypatch.setattr(atomic_writes, "_persist", lambda path: page.write_text("mine"))
    ran = run("inspect", "saved.pt", "--html", "page.html")
    assert "R069" in ran.stderr
    assert page.read_text() == "mine"
    assert {*names(folder)} == before | {"page.html"}


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_page_that_is_not_written_leaves_the_old_one(folder, saved, monkeypatch, error):
    assert run("inspect", "saved.pt", "--html", "page.html").exit_code == output.FINE
    before, there = (folder / "page.html").read_bytes(), names(folder)

    def fails(*given, **options):
        raise error

    monkeypatch.setattr(atomic_writes, "_persist", fails)
    assert run("inspect", "saved.pt", "--html", "page.html").exit_code != output.FINE
    assert (folder / "page.html").read_bytes() == before
    assert names(folder) == there


def test_overwrite_without_a_page_is_said_to_mean_nothing(folder, saved):
    for given in ([], ["--html", "-"]):
        ran = run("inspect", "saved.pt", "--overwrite", *given)
        assert ran.exit_code == output.MISTYPED
        assert "Fix: --html report.html --overwrite" in ran.stderr


@pytest.mark.parametrize("command", ["survey", "plan", "rehearse", "inspect"])
def test_the_help_says_what_a_page_replaces(command):
    said = " ".join(run(command, "--help").stdout.split())
    assert "Replaces only an earlier page of torchmove." in said
    assert "--overwrite Let the page of --html replace any regular file." in said


@pytest.mark.slow
def test_a_closed_pipe_ends_the_command_quietly(folder):
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-c", MAIN, "survey", "program.py:pair"]
    ran = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert ran.returncode == output.UNHEARD
    assert ran.stderr == "it talks while it is loaded\n"


def test_without_a_command_it_shows_its_help():
    assert run().output == run("--help").output
    assert run().exit_code == output.FINE


# ---------------------------------------------------------------- survey, plan, rehearse


@pytest.mark.parametrize("target", ["program.py:pair", "program:pair", "./program.py:pair"])
def test_survey_says_where_everything_is(target, folder):
    ran = run("survey", target)
    assert ran.exit_code == output.FINE
    assert "model.table" in ran.stdout
    assert "talks" not in ran.stdout  # what the program prints is not the answer
    facts = json.loads(run("survey", target, "--json").stdout)
    assert facts["roots"] == ["model", "optimizer"]


def test_a_dict_has_names_and_a_factory_may_be_inside_a_class(folder):
    assert json.loads(run("survey", "program.py:named", "--json").stdout)["roots"] == ["step", "net", "opt", "batch"]
    assert json.loads(run("survey", "program.py:Holder.inner", "--json").stdout)["roots"] == ["model"]
    assert json.loads(run("survey", "program.py:values", "--json").stdout)["roots"] == ["dict"]


def test_the_batch_has_the_name_that_the_step_has_for_it(folder):
    told = run("rehearse", "program.py:listed", "--moved-by", "to").stdout
    assert "net.table is on cpu" in told


def test_a_step_that_ends_the_program_is_not_fine(folder):
    ran = run("rehearse", "program.py:ended")
    assert ran.exit_code == output.INCOMPLETE
    assert ran.stdout.startswith("Incomplete: stopped at program.py:")
    assert "SystemExit: 0" in ran.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "first"),
    [
        ("program.py:with_namespace", output.FINDINGS, "1 device error on cuda:0"),
        ("program.py:with_namespace --state batch", output.FINE, "No device error found"),
        ("program.py:decided", output.FINE, "No device error found"),
        ("program.py:decided --strict-devices", output.FINDINGS, "1 device error on cuda:0"),
        ("program.py:refused", output.REFUSED, "Incomplete: the step was not run"),
        ("program.py:undecided", output.INCOMPLETE, "Incomplete: stopped at program.py:"),
        ("program.py:erring", output.INCOMPLETE, "Incomplete: stopped at program.py:"),
        ("program.py:erring --confirm-errors", output.INCOMPLETE, "Incomplete: stopped at program.py:"),
    ],
)
def test_a_rehearsal_ends_with_a_code_of_its_own(arguments, code, first, folder):
    ran = run("rehearse", *arguments.split())
    assert ran.exit_code == code
    assert ran.stdout.startswith(first)
    assert ("the step also raises ValueError" in ran.stdout) is ("--confirm-errors" in arguments)


def test_a_state_that_was_not_returned_is_refused(folder):
    ran = run("rehearse", "program.py:named", "--state", "ema")
    assert ran.exit_code == output.MISTYPED
    assert "--state ema: program.py:named returned no object of this name, but net, opt, batch" in ran.stderr


def test_a_step_alone_is_rehearsed(folder):
    step = "def step():\n    model(torch.ones(2, 4).to('cuda'))\n\n\ndef build():\n    return step\n"
    (folder / "alone.py").write_text(f"import torch\n\nmodel = torch.nn.Linear(4, 4)\n\n\n{step}")
    ran = run("rehearse", "alone.py:build")
    assert ran.exit_code == output.FINDINGS
    assert "model.weight is on cpu" in ran.stdout or "model.bias is on cpu" in ran.stdout
    named = run("rehearse", "alone.py:build", "--state", "model")
    assert named.exit_code == output.MISTYPED
    assert "--state model: alone.py:build returned no object of this name, but only the step" in named.stderr


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        (
            "import sys\n\nsys.exit('--data is missing')\n",
            'Fix: put the main program under `if __name__ == "__main__":`',
        ),
        ("raise AssertionError('Torch not compiled with CUDA enabled')\n", "Fix: use the device only inside the step"),
    ],
)
def test_an_error_at_import_says_what_to_do(folder, text, fix):
    (folder / "starting.py").write_text(text)
    ran = run("rehearse", "starting.py:build")
    assert ran.exit_code == output.ERROR
    assert fix in ran.stderr
    assert "(at starting.py:" in ran.stderr


def test_a_syntax_error_names_its_own_line(folder):
    (folder / "unfinished.py").write_text("import torch\n\ndef build(:\n")
    ran = run("rehearse", "unfinished.py:build")
    assert "(unfinished.py, line 3)" in ran.stderr
    assert "importlib" not in ran.stderr


def test_an_error_at_import_is_not_reported_as_an_error_of_the_function(folder):
    (folder / "failing.py").write_text("import json\n\n\ndef build():\n    pass\n\n\njson.loads('{')\n")
    ran = run("rehearse", "failing.py:build")
    assert ran.exit_code == output.ERROR
    assert ran.stderr.startswith("error: cannot import failing.py: JSONDecodeError: ")
    assert "(at failing.py:8)" in ran.stderr


def test_plan_says_what_would_happen_and_moves_nothing(folder, twin):
    ran = run("plan", "program.py:pair", "--to", "twin:0", "--keep", "*.table")
    assert ran.exit_code == output.FINE
    assert "would move to twin:0" in ran.stdout
    assert "model.table" in ran.stdout.split("stays")[1]


def test_a_state_that_cannot_move_ends_the_plan_with_two(folder):
    ran = run("plan", "program.py:stuck", "--to", "cpu", "--json")
    assert ran.exit_code == output.REFUSED
    assert [each["code"] for each in json.loads(ran.stdout)["refusals"]] == ["R020"]


@pytest.mark.parametrize(("target", "path"), [("program.py:named", "net.table"), ("program.py:listed", "scaled.table")])
def test_rehearse_ends_with_one_where_a_line_would_fail(target, path, folder):
    ran = run("rehearse", target, "--moved-by", "to")
    assert ran.exit_code == output.FINDINGS
    assert "1 device error on cuda:0" in ran.stdout
    assert path.split(".")[1] in ran.stdout
    assert run("rehearse", target).exit_code == output.FINE
    assert json.loads(run("rehearse", target, "--json").stdout)["ok"]


def test_a_page_is_written(folder):
    for command in ("survey program.py:pair", "plan program.py:stuck --to cpu", "rehearse program.py:named"):
        ran = run(*command.split(), "--html", "report.html")
        assert "wrote report.html" in ran.stderr
        assert (folder / "report.html").read_text().startswith("<!doctype html>")
        (folder / "report.html").unlink()
    assert run("survey", "program.py:pair", "--html", "-").stdout.startswith("<!doctype html>")
    both = run("survey", "program.py:pair", "--html", "-", "--json")
    assert both.exit_code == output.MISTYPED
    assert "both write to stdout" in both.stderr


# ---------------------------------------------------------------- the machine


def test_devices_says_what_there_is(twin):
    found = json.loads(run("devices", "--json").stdout)["devices"]
    assert [each["device"] for each in found] == ["cpu", "twin:0", "twin:1"]
    assert found[0]["total_bytes"] > found[0]["free_bytes"] > 0
    assert "twin:1" in run("devices").stdout


@pytest.mark.slow
def test_without_an_accelerator_devices_says_so():
    ran = in_a_process("devices")
    assert ran.returncode == output.FINE
    assert "no accelerator; tm.rehearse finds device bugs without one" in ran.stdout


def test_ctrl_c_ends_the_demo(monkeypatch):
    def interrupted(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr(targets.Target, "made", interrupted)
    ran = run("demo")
    assert ran.exit_code == output.INTERRUPTED
    assert ran.stderr == "interrupted\n"


@pytest.mark.slow
def test_the_demo_prints_its_steps_and_leaves_no_files(folder):
    before = sorted(folder.iterdir())
    ran = in_a_process("demo")
    assert ran.returncode == output.FINE, ran.stderr
    assert "2 device errors on cuda:0" in ran.stdout
    assert "train.py:20  return (x @ self.weight) * self.table" in ran.stdout
    assert "No device error found" in ran.stdout
    assert ran.stdout.rstrip().endswith("the next training step ran there")
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("4096", 4096), ("500MB", 500_000_000), ("1.5gb", 1_500_000_000), ("2GiB", 2 << 30), ("3 k", 3000)],
)
def test_a_size_reads_as_it_is_written(text, nbytes):
    assert bytes_of(text, "--bytes ") == nbytes


@pytest.mark.parametrize("text", ["", "much", "-1GB", "0", "1XB"])
def test_what_is_not_a_size_is_said(text):
    ran = run("bench", "--bytes", text)
    assert ran.exit_code == output.MISTYPED
    assert "is not a size. Fix: 500MB" in ran.stderr
