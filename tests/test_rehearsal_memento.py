"""After a rehearsal everything that the step could reach is as it was."""

from __future__ import annotations

import functools
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn, save

import torchmove as tm

# ---------------------------------------------------------------- caches

CACHES = {
    "bounded": functools.lru_cache,
    "bounded at two": functools.lru_cache(maxsize=2),
    "without a bound": functools.lru_cache(maxsize=None),
    "cache": functools.cache,
}
WARM = """
import functools, gc, torch, torchmove as tm
from torch import nn, save

@{cache}
def table(n):
    return {{"index": list(range(n)), "ones": torch.ones(n)}}

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.table = nn.Linear(4, 4), {cache}(lambda n: torch.ones(n))

    def forward(self, x):
        return self.layer(x) * self.table(4).to(x.device)

def step(model, x):
    kept = table(SIZE)
    return model(x.to("cuda"))[:, kept["index"]] * kept["ones"].to("cuda")

model = Net()
before = table(4), model.table(4)
table(1)
for SIZE in (4, 3):
    tm.rehearse(step, model, torch.randn(2, 4))
    gc.collect()
for size in range(8):
    assert type(table(size)["ones"]) is torch.Tensor and table(size)["ones"].tolist() == [1.0] * size
for size in range(8):
    assert type(model.table(size)) is torch.Tensor and model.table(size).tolist() == [1.0] * size
print(before[0]["ones"].tolist(), before[1].tolist())
"""


@pytest.mark.parametrize(
    "cache", ["functools.lru_cache", "functools.lru_cache(2)", "functools.lru_cache(None)", "functools.cache"]
)
def test_a_warm_cache_works_on(cache):
    script = WARM.format(cache=cache)
    ran = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stdout) == (0, f"{[1.0] * 4} {[1.0] * 4}\n"), ran.stderr


@pytest.mark.parametrize("kind", CACHES)
def test_a_cache_keeps_what_was_there_and_is_cleared_when_the_step_fills_it(kind):
    made = CACHES[kind](lambda size: torch.ones(size, device="cuda" if size == 3 else "cpu"))
    before = made(2)
    go = lambda model, x, size: model(x.cuda()) * made(size).sum().to("cuda")  # noqa: E731
    for size, left in [(2, 1), (3, 0)]:
        assert tm.rehearse(go, nn.Linear(4, 4), torch.ones(2, 4), size).stopped == ""
        assert made.cache_info().currsize == left
        assert (type(before), before.tolist()) == (torch.Tensor, [1, 1])
        assert (made(2) is before) == (left == 1)


# ---------------------------------------------------------------- files


def keeping(path, **options):
    def step(model, x):
        loss = model(x.to("cuda")).sum()
        save({"model": model.state_dict(), "loss": loss}, path, **options)
        torch.save(model, path, **options)
        return loss.backward()

    return step


@pytest.mark.parametrize("data", ["shapes", "real"])
@pytest.mark.parametrize("options", [{}, {"_use_new_zipfile_serialization": False}], ids=["zip", "legacy"])
@pytest.mark.parametrize("name", ["last.pt", "zuletzt-für-später.pt"])
def test_torch_save_touches_no_file(tmp_path, options, data, name):
    model, path = nn.Linear(4, 4), tmp_path / name
    torch.save(model.state_dict(), path)
    before = path.read_bytes()
    for each in (path, str(path), tmp_path / "new.pt"):
        found = tm.rehearse(keeping(each, **options), model, torch.ones(2, 4), data=data)
        assert (found.ok, {finding.kind for finding in found.findings}) == (True, {"synchronises"})
        assert all("does not write the file" in finding.why for finding in found.findings)
        assert ["save(" in finding.code for finding in found.findings] == [True, True]
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == [name]
    torch.save(model.state_dict(), tmp_path / "new.pt", **options)
    assert torch.load(tmp_path / "new.pt")["weight"].tolist() == model.weight.tolist()


@pytest.mark.parametrize("options", [{}, {"_use_new_zipfile_serialization": False}], ids=["zip", "legacy"])
def test_what_others_save_meanwhile_is_saved(tmp_path, options):
    model, kept = nn.Linear(4, 4), tmp_path / "kept.pt"
    torch.save(model, kept)
    before = kept.read_bytes()

    def step(model, x):
        pool.submit(lambda: save({"table": torch.arange(3)}, tmp_path / "table.pt", **options)).result()
        pool.submit(save, model.state_dict(), kept, **options).result()
        return model(x.to("cuda"))

    with ThreadPoolExecutor(1) as pool:
        pool.submit(len, ()).result()
        found = tm.rehearse(step, model, torch.ones(2, 4))
    assert (found.ok, [finding.kind for finding in found.findings]) == (True, ["synchronises"])
    assert torch.load(tmp_path / "table.pt")["table"].tolist() == [0, 1, 2]
    assert kept.read_bytes() == before


# ---------------------------------------------------------------- modes


def modes():
    return (
        (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
        (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        torch._inductor.config.deterministic,
    )


@pytest.mark.parametrize("inside", [None, (False, False), (True, False), (True, True)])
@pytest.mark.parametrize("before", [(False, False), (True, False), (True, True)])
def test_modes_are_put_back_to_the_last_bit(before, inside):
    def switch(on, half):
        torch.use_deterministic_algorithms(on, warn_only=half)
        torch.autograd.set_detect_anomaly(on, check_nan=not half)

    def step(model, x):
        if inside:
            switch(*inside)
        return model(x.to("cuda"))

    try:
        switch(*before)
        told = modes()
        assert told[0] == before
        assert tm.rehearse(step, nn.Linear(4, 4), torch.ones(2, 4)).ok
        assert modes() == told
    finally:
        switch(False, False)


INTERRUPTED = """
import signal, sys, torch, torchmove as tm

class Impatient:
    def find_spec(self, name, *rest):
        if name == "torch._inductor.custom_graph_pass" and self in sys.meta_path:
            sys.meta_path.remove(self)
            {interrupt}

def step(model, x):
    return model(x.to("cuda"))

sys.meta_path.insert(0, Impatient())
model = torch.nn.Linear(4, 4)
try:
    tm.rehearse(step, model, torch.ones(2, 4))
except KeyboardInterrupt:
    print("interrupted", type(model.weight) is torch.nn.Parameter)
"""


@pytest.mark.parametrize("interrupt", ["raise KeyboardInterrupt", "signal.raise_signal(signal.SIGINT)"])
def test_ctrl_c_during_the_imports_is_a_keyboard_interrupt(interrupt):
    again = "print(tm.rehearse(step, model, torch.ones(2, 4)).ok)\n" if "SIGINT" in interrupt else ""
    script = INTERRUPTED.format(interrupt=interrupt) + again
    ran = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stdout) == (0, "interrupted True\n" + ("True\n" if again else "")), ran.stderr
