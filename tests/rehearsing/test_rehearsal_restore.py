"""After a rehearsal everything that the step could reach is as it was."""

from __future__ import annotations

import functools
import importlib
import queue
import random
import subprocess
import sys
import threading
from contextlib import nullcontext

import numpy as np
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


@pytest.mark.slow
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
        assert (found.ok, {finding.kind for finding in found.findings}) == (True, {"synchronizes"})
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
    asked, done = queue.SimpleQueue(), queue.SimpleQueue()

    def keep():
        for path in (tmp_path / "table.pt", kept):
            state = asked.get(timeout=30)
            save(state or {"table": torch.arange(3)}, path, **options)
            done.put(path)

    def step(model, x):
        for state in (None, model.state_dict()):
            asked.put(state)
            done.get(timeout=30)
        return model(x.to("cuda"))

    keeper = threading.Thread(target=keep)
    keeper.start()
    found = tm.rehearse(step, model, torch.ones(2, 4))
    keeper.join(30)
    assert (found.ok, [finding.kind for finding in found.findings]) == (True, ["synchronizes"])
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


def switches():
    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    return (
        (torch.get_float32_matmul_precision(), torch.is_warn_always_enabled(), torch.get_num_threads()),
        (cuda.matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark, cudnn.benchmark_limit),
        (cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled(), cuda.cudnn_sdp_enabled()),
        (cuda.matmul.allow_fp16_reduced_precision_reduction, cuda.matmul.allow_bf16_reduced_precision_reduction),
    )


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_switches_of_precision_and_kernels_are_put_back(precision):
    def step(model, x):
        cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
        torch.set_float32_matmul_precision("high" if precision == "highest" else "highest")
        if not torch.backends.flags_frozen():  # as torch's own tests freeze them for the whole process
            cuda.matmul.allow_tf32 = cudnn.benchmark = True
            cudnn.allow_tf32, cudnn.benchmark_limit = False, 3
        cuda.enable_flash_sdp(False), cuda.enable_mem_efficient_sdp(False)
        cuda.matmul.allow_fp16_reduced_precision_reduction = False
        torch.set_warn_always(True)
        model(x.to("cuda"))

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        told = switches()
        found = tm.rehearse(step, nn.Linear(4, 4), torch.ones(2, 4))
        assert found.ok, str(found)
        assert switches() == told
    finally:
        torch.set_float32_matmul_precision(before)


def autocasting():
    kinds = [(torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda")]
    torch.autocast_increment_nesting()
    return kinds, torch.is_autocast_cache_enabled(), torch.autocast_decrement_nesting()


@pytest.mark.parametrize("data", ["shapes", "real"])
@pytest.mark.parametrize("raised", [None, ValueError, KeyboardInterrupt])
def test_autocast_that_the_step_leaves_on_is_off_afterwards(data, raised):
    def step(model, x):
        torch.autocast("cuda", cache_enabled=False).__enter__()
        torch.autocast("cpu", torch.float16).__enter__()
        torch.set_autocast_cache_enabled(True)
        model(x.to("cuda"))
        if raised:
            raise raised

    model, before = nn.Linear(4, 4), autocasting()
    with pytest.raises(KeyboardInterrupt) if raised is KeyboardInterrupt else nullcontext():
        tm.rehearse(step, model, torch.ones(2, 4), data=data)
    assert autocasting() == before
    assert model(torch.ones(2, 4)).dtype is torch.float32


def test_a_rehearsal_within_autocast_that_has_cached_weights():
    model, x = nn.Linear(4, 4), torch.ones(2, 4)
    with torch.autocast("cpu", torch.bfloat16):
        model(x)
        assert tm.rehearse(lambda model, x: model(x.to("cuda")), model, x).ok
        assert model(x).dtype is torch.bfloat16


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


@pytest.mark.slow
@pytest.mark.parametrize("interrupt", ["raise KeyboardInterrupt", "signal.raise_signal(signal.SIGINT)"])
def test_ctrl_c_during_the_imports_is_a_keyboard_interrupt(interrupt):
    again = "print(tm.rehearse(step, model, torch.ones(2, 4)).ok)\n" if "SIGINT" in interrupt else ""
    script = INTERRUPTED.format(interrupt=interrupt) + again
    ran = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stdout) == (0, "interrupted True\n" + ("True\n" if again else "")), ran.stderr


# ---------------------------------------------------------------- random numbers


DICE, CARDS = random.Random(3), np.random.default_rng(3)
OLD, BITS, NOISE = np.random.RandomState(3), np.random.PCG64(3), torch.Generator().manual_seed(3)


def drawn(given):
    return [
        *(DICE.random(), CARDS.random(), OLD.rand(), BITS.random_raw()),
        *(torch.rand(1, generator=each).sum().item() for each in (NOISE, *given)),
    ]


def test_generators_go_on_where_they_were():
    def step(model, given, x):
        drawn([given["noise"]])
        return model(x.to("cuda"))

    given = {"noise": torch.Generator().manual_seed(5), "system": random.SystemRandom()}
    states = DICE.getstate(), CARDS.bit_generator.state, OLD.get_state(), BITS.state
    noises = NOISE.get_state(), given["noise"].get_state()
    assert tm.rehearse(step, nn.Linear(4, 4), given, torch.ones(2, 4)).stopped == ""
    after = DICE.getstate(), CARDS.bit_generator.state, OLD.get_state(), BITS.state
    assert repr(after) == repr(states)
    assert torch.equal(noises[0], NOISE.get_state())
    assert torch.equal(noises[1], given["noise"].get_state())


class Dealer:
    cards = np.random.default_rng(5)

    def deal(self):
        return self.cards.random(4, dtype=np.float32)


def test_a_generator_in_the_body_of_a_class_goes_on_where_it_was():
    def step(model, dealer):
        model(torch.from_numpy(dealer.deal()).to("cuda"))

    before = repr(Dealer.cards.bit_generator.state)
    assert tm.rehearse(step, nn.Linear(4, 4), Dealer())
    assert repr(Dealer.cards.bit_generator.state) == before


# ---------------------------------------------------------------- what the step reaches by names

METERS = """
import types
class AverageMeter:
    count = 0
    latest = []
    def __init__(self):
        self.sum, self.all = 0, []
    def update(self, value):
        self.sum = self.sum + value
        self.all.append(value)
        AverageMeter.count += 1
        self.latest.append(value)
        history.append(value)
        remember(value)
history = []
def counter():
    seen, last = [], None
    def see(value):
        nonlocal last
        last = value
        seen.append(value)
        return seen, last
    return see
see = counter()
def remember(value):
    global last
    last = value
last = best = None
settings = types.SimpleNamespace(best=None)
"""
TRAINING = """
import functools, torch
import meters_of_mine, package_of_mine.state
from torch import nn
from meters_of_mine import AverageMeter, see

meter = AverageMeter()
best = None

class Net(nn.Module):
    seen = []
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
    @functools.lru_cache
    def mask(self, size):
        return torch.ones(size, device="cuda")
    def forward(self, x):
        Net.seen.append(x)
        Net.newest = x
        return self.inner(x) * self.mask(4)
    def inner(self, x):
        meters_of_mine.newcomer = x
        return self.layer(x)

def step(model, x):
    global best, unheard_of
    loss = model(x.to("cuda")).sum()
    meter.update(loss.detach())
    meters_of_mine.history.append(loss)
    meters_of_mine.best = meters_of_mine.settings.best = best = unheard_of = loss
    package_of_mine.state.history.append(loss)
    package_of_mine.state.best = loss
    see(loss)
    loss.backward()
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    package = tmp_path / "package_of_mine"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "state.py").write_text("history, best = [], None\n")
    (tmp_path / "meters_of_mine.py").write_text(METERS)
    (tmp_path / "training_of_mine.py").write_text(TRAINING)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("training_of_mine")
    for name in [name for name in sys.modules if name.endswith("_of_mine") or name.startswith("package_of_mine")]:
        del sys.modules[name]


def test_no_stand_in_stays_in_objects_outside_of_the_step(mine):
    found = tm.rehearse(mine.step, mine.Net(), torch.ones(2, 4))
    assert (found.stopped, found.findings) == ("", ())
    meters, state = mine.meters_of_mine, mine.package_of_mine.state
    assert vars(mine.meter) == {"sum": 0, "all": []}
    assert (meters.AverageMeter.count, meters.AverageMeter.latest) == (0, [])
    assert (meters.history, meters.best, meters.last, vars(meters.settings)) == ([], None, None, {"best": None})
    assert (state.history, state.best) == ([], None)
    assert (mine.Net.seen, hasattr(mine.Net, "newest"), mine.Net.mask.cache_info().currsize) == ([], False, 0)
    assert (mine.best, hasattr(mine, "unheard_of"), hasattr(meters, "newcomer")) == (None, False, False)
    assert mine.see(1) == ([1], 1)


def test_code_that_was_executed_has_its_own_things_too():
    space = {"__name__": "not among sys.modules"}
    exec(compile(METERS + "meter = AverageMeter()\n", "anywhere.py", "exec"), space)
    exec("def step(model, x): meter.update(model(x.to('cuda')).sum())\n", space)
    assert tm.rehearse(space["step"], nn.Linear(4, 4), torch.ones(2, 4)).ok
    assert vars(space["meter"]) == {"sum": 0, "all": []}
    assert (space["AverageMeter"].count, space["AverageMeter"].latest, space["history"]) == (0, [], [])
    assert space["last"] is None


def test_what_the_step_imports_stays_imported(tmp_path, monkeypatch):
    (tmp_path / "lazy_of_mine").mkdir()
    (tmp_path / "lazy_of_mine" / "__init__.py").touch()
    (tmp_path / "lazy_of_mine" / "part.py").write_text("value = 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    package = importlib.import_module("lazy_of_mine")

    def step(model, x):
        import lazy_of_mine.part

        return model(x.to("cuda")) * package.part.value * lazy_of_mine.part.value

    for _ in range(2):
        assert tm.rehearse(step, nn.Linear(4, 4), torch.ones(2, 4)).ok
    assert package.part.value == 2
    del sys.modules["lazy_of_mine"], sys.modules["lazy_of_mine.part"]


# ---------------------------------------------------------------- arrays


class Replay:
    def __init__(self):
        self.seen, self.at = np.zeros((4, 2), np.float32), 0
        self.inside = {"rewards": [np.zeros(4)]}

    def add(self, value):
        self.seen[self.at], self.at = value, self.at + 1
        self.inside["rewards"][0][:] = 1.0


TOTALS = np.arange(3.0)
MANY = {"objects": np.array([None, "text", 1], dtype=object), "fields": np.zeros(2, dtype=[("a", "i4"), ("b", "f4")])}
REPLAY = Replay()


def test_what_the_step_writes_into_arrays_is_put_back():
    around, given = np.zeros(2), np.zeros(2)

    def step(model, x, given):
        REPLAY.add(model(x.to("cuda")).detach().cpu().numpy()[0])
        TOTALS[1:] += 5
        MANY["objects"][0], MANY["fields"]["b"] = "new", 3.0
        around[0] = given[1] = 9

    arrays = [REPLAY.seen, *REPLAY.inside["rewards"], TOTALS, *MANY.values(), around, given]
    before = [(each, each.tolist()) for each in arrays]
    assert tm.rehearse(step, nn.Linear(2, 2), torch.ones(1, 2), given)
    assert [(id(each), each.tolist()) for each in arrays] == [(id(each), values) for each, values in before]
    assert REPLAY.at == 0


def test_arrays_that_are_too_large_to_be_copied_are_named(monkeypatch):
    monkeypatch.setattr("torchmove.rehearsing.restore.MOST_ARRAY_BYTES", 100)
    large, small = np.zeros(20), np.zeros(3)

    def step(model, x):
        large[0] = small[0] = 1.0
        return model(x.to("cuda"))

    found = tm.rehearse(step, nn.Linear(2, 2), torch.ones(1, 2))
    assert found, str(found)
    assert any("the numpy arrays" in each for each in found.assumed)
    assert (large[0], small[0]) == (1.0, 0.0)


def remembering(value, seen=[], *, by_size={}):  # noqa: B006 (as such code is written)
    seen.append(value)
    by_size[value.shape] = value
    remembering.calls += 1
    remembering.latest = value
    return value


remembering.calls = 0
ROWS = np.empty(2, dtype=object)
ROWS[:] = [[1], {"a": 1}]


@pytest.mark.parametrize("data", ["shapes", "real"])
@pytest.mark.parametrize("raised", [None, ValueError, KeyboardInterrupt])
def test_what_functions_keep_in_defaults_and_attributes_is_put_back(data, raised):
    def step(model, x):
        remembering(model(remembering(x).to("cuda")))
        ROWS[0].append(x)
        ROWS[1]["b"] = x
        if raised:
            raise raised

    with pytest.raises(KeyboardInterrupt) if raised is KeyboardInterrupt else nullcontext():
        tm.rehearse(step, nn.Linear(4, 4), torch.ones(2, 4), data=data)
    assert (remembering.__defaults__, remembering.__kwdefaults__) == (([],), {"by_size": {}})
    assert vars(remembering) == {"calls": 0}
    assert [*ROWS] == [[1], {"a": 1}]
