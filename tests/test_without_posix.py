"""Everything works where Python lacks what only POSIX has, as on Windows: locks, forks, limits, flags of open files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# What a step needs of torch and of others is imported before: they look at the system themselves.
HIDE = """
import ctypes, mmap, os, signal, sys, time
import click.testing, rich.console, rich.progress, rich.table, torch, torch._dynamo, torch.distributed.tensor
import torch.multiprocessing.reductions, torch.utils.data
from torch._lazy import ts_backend

for name in ("fcntl", "resource", "termios", "tty", "pty", "pwd", "grp"):
    sys.modules[name] = None
ABSENT = {
    os: "fork forkpty register_at_fork sysconf sched_getaffinity getuid geteuid getpgid killpg mkfifo fchmod "
        "O_CLOEXEC O_NOFOLLOW O_NONBLOCK O_DIRECTORY pread pwrite posix_fadvise posix_fallocate sendfile",
    signal: "SIGKILL SIGHUP SIGALRM SIGUSR1 SIGUSR2 setitimer pthread_kill pthread_sigmask sigwait",
    time: "tzset clock_gettime",
}
for module, names in ABSENT.items():
    for name in names.split():
        vars(module).pop(name, None)
for name in [name for name in vars(mmap) if name.startswith(("MADV", "MAP_", "PROT"))]:
    delattr(mmap, name)
sys.platform = "win32"

def no_library(name, *_, **__):
    raise TypeError("argument of type 'NoneType' is not iterable" if name is None else FileNotFoundError(name))

ctypes.CDLL = no_library
"""
USE = """
import importlib, pathlib, pkgutil
import torchmove as tm

for module in pkgutil.walk_packages(tm.__path__, "torchmove."):
    if module.name not in ("torchmove.__main__", "torchmove.pytest_plugin"):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:  # of optional dependencies
            if error.name != "libcst" and "which is not installed" not in str(error):
                raise

from torch import nn
from torchmove.checkpoints import inspect, relocate
from torchmove.cli import main

def state():
    model = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    return model, optimizer

def bits(model, optimizer):
    tensors = [*model.parameters(), *(value for each in optimizer.state.values() for value in each.values())]
    return [each.detach().cpu().clone() for each in tensors]

def same(before, after):
    return all(map(torch.equal, before, after))

ts_backend.init()
model, optimizer = state()
before = bits(model, optimizer)
tm.move(model, optimizer, to="lazy")
assert model.weight.device.type == "lazy" and same(before, bits(model, optimizer))
with tm.parked(model, optimizer):
    assert model.weight.device.type == "cpu"
assert model.weight.device.type == "lazy" and same(before, bits(model, optimizer))
tm.move(model, optimizer, to="cpu")
assert tm.verify(model, optimizer, on="cpu").ok and same(before, bits(model, optimizer))
print("moved and parked")

def step(model, optimizer, loader):
    for x in loader:
        loss = model(x.to("cuda")).sum()
        loss.backward()
        optimizer.step()
        torch.save(model.state_dict(), "step.pt")
    return loss + torch.ones(1)

found = tm.rehearse(step, model, optimizer, torch.utils.data.DataLoader(torch.ones(4, 4), batch_size=2))
assert [each.kind for each in found.failing] == ["factory"], found
assert same(before, bits(model, optimizer)) and not pathlib.Path("step.pt").exists()
print("rehearsed")

torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "here.pt")
assert inspect("here.pt").devices().keys() == {"cpu"}
relocate("here.pt", to="cuda:1", out="there.pt")
relocate("there.pt", to="cpu", out="there.pt.back")
assert inspect("there.pt").devices().keys() == {"cuda:1"}
assert torch.equal(torch.load("there.pt.back")["model"]["weight"], model.weight)
assert not [*pathlib.Path().glob(".*")], "no temporary file is left"

def said(*command):
    ran = click.testing.CliRunner().invoke(main, command)
    assert ran.exit_code == 0, (ran.output, ran.exception)
    return ran.output

said("relocate", "here.pt", "--to", "cuda:2", "--out", "there.pt", "--overwrite")
assert "cuda:2" in said("inspect", "there.pt")
assert "cpu" in said("devices")
said("inspect", "there.pt", "--html", "page.html")
said("inspect", "there.pt", "--html", "page.html")
print("inspected and relocated")
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    (tmp_path / "program.py").write_text(f"{HIDE}\n{USE}")
    return tmp_path / "program.py"


@pytest.mark.slow
def test_all_of_it_works_without_what_only_posix_has(program):
    command = [sys.executable, "-W", "ignore", program.name]
    ran = subprocess.run(command, cwd=program.parent, capture_output=True, text=True, check=False)
    assert ran.stdout.splitlines() == ["moved and parked", "rehearsed", "inspected and relocated"], ran.stderr
