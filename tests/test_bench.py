"""The command line, what `torchmove bench` measures, and the page that benchmarks/speed.py writes; never how fast."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
import torch
from click.testing import CliRunner

from torchmove import bench, cli
from torchmove import bench as _trips
from torchmove.bench import (
    CPU,
    ByTorchmove,
    HostPeak,
    TrainingState,
    Trip,
    by_module_to,
    first_trip,
    of_each,
    resident_bytes,
    take_turns,
    transformer,
)
from torchmove.reporting.machine_reports import TITLES

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"
FEW_BYTES = 1_000_000


def run(*arguments: str, **options: object):
    return CliRunner().invoke(cli.main, arguments, **options)


def in_a_process(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Without the twin, and without a GPU where there is one."""
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    code = "from torchmove.cli import main; main()"
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=hidden)


# ---------------------------------------------------------------- the command line


@pytest.mark.slow
def test_without_an_accelerator_the_bench_is_refused_with_one_line():
    ran = in_a_process("bench")
    assert ran.returncode == 5
    assert ran.stdout == ""
    assert ran.stderr.splitlines() == [
        "refused: this machine has no accelerator. Fix: run torchmove bench on a machine with an accelerator"
    ]


@pytest.mark.twin
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--to", "cpu"], "the state is on the CPU already"),
        (["--to", "twin:7"], "twin:7 does not exist"),
        (["--bytes", "900TB"], "more than a quarter of the free memory"),
    ],
)
def test_what_cannot_be_measured_is_refused_with_one_line(arguments, says):
    ran = run("bench", *arguments)
    assert ran.exit_code == 5
    assert says in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


def test_an_error_is_one_line_and_a_traceback_only_with_debug(monkeypatch):
    def broken(*given, **options):
        raise RuntimeError("the card fell off\nmore about it")

    monkeypatch.setattr(bench, "measure", broken)
    ran = run("bench")
    assert ran.exit_code == 3
    assert ran.stderr == "error: RuntimeError: the card fell off. For the traceback: torchmove --debug bench ...\n"
    debugged = run("--debug", "bench")
    assert debugged.exit_code == 3
    assert "more about it" in debugged.stderr


# ---------------------------------------------------------------- what is measured

WAYS = {"usual_first", "usual", "move_first", "move", "move_bytes"}


def test_bench_prints_its_figures_as_json(twin):
    gc.collect()
    before = twin.bytes_in_use()  # other tests may have left some
    ran = run("bench", "--to", "twin", "--bytes", "1MB", "--json")
    assert ran.exit_code == 0, ran.stderr
    facts = json.loads(ran.stdout)
    assert facts["device"] == "twin:0"
    assert 0.5 * FEW_BYTES < facts["nbytes"] < 1.5 * FEW_BYTES
    assert facts["movers"].keys() == facts["extra_bytes"].keys() == {"there", "back"}
    assert set(facts["ways"]) == WAYS
    for name, legs in facts["ways"].items():
        for leg in (legs["there"], legs["back"]):
            assert leg["gb_per_second"] == pytest.approx(facts["nbytes"] / leg["seconds"] / 1e9)
            assert (leg["times_as_fast"] is None) is name.startswith("usual")
            assert leg["share_of_link"] is None  # pinned memory is measured on CUDA
    assert twin.bytes_in_use() == before


def test_bench_prints_a_table(twin):
    ran = run("bench", "--to", "twin:1", "--bytes", "1MB")
    assert ran.exit_code == 0, ran.stderr
    assert all(TITLES[name] in ran.stdout for name in WAYS)
    assert "movers: plain to twin:1, plain to cpu" in ran.stdout
    assert "turn 3 of 3" in ran.stderr


def test_the_state_is_a_transformer_in_mid_training_of_the_size_asked_for():
    state = transformer(FEW_BYTES)
    assert 0.8 * FEW_BYTES < state.nbytes < 1.2 * FEW_BYTES
    parameters = list(state.model.parameters())
    assert set(state.optimizer.state) == set(parameters)
    assert all(parameter.grad is None and bool(parameter.any()) for parameter in parameters)
    assert all(bool(state.optimizer.state[parameter]["exp_avg"].any()) for parameter in parameters)


def test_a_state_after_all_the_trips_is_what_it_was(twin):
    mine, theirs = transformer(FEW_BYTES), transformer(FEW_BYTES)
    before = [tensor.tolist() for tensor in mine.tensors()]
    ours = ByTorchmove(mine)
    device = torch.device("twin:0")
    take_turns({"usual": lambda to: by_module_to(theirs, to), "move": ours}, device, turns=2)
    assert [tensor.tolist() for tensor in mine.tensors()] == before
    assert ours.movers.keys() == {device, CPU}


def test_the_usual_way_takes_every_tensor_there(twin):
    state = transformer(FEW_BYTES)
    by_module_to(state, torch.device("twin:0"))
    assert {str(tensor.device) for tensor in state.tensors()} == {"twin:0"}


def test_ways_take_turns():
    seen = []
    goes = {name: lambda to, name=name: seen.append(name) for name in ("a", "b")}
    take_turns(goes, CPU, turns=2)
    assert seen == ["a", "a", "b", "b"] * 2


def test_a_figure_is_taken_of_all_turns_of_a_way_there_and_back():
    trips = {"a": [Trip(1.0, 9.0), Trip(3.0, 8.0), Trip(2.0, 4.0)]}
    assert of_each(trips, median) == {"a": Trip(2.0, 8.0)}
    assert of_each(trips, min) == {"a": Trip(1.0, 4.0)}


def test_figures_are_compared_with_the_way_beside_them_and_with_the_link():
    trips = {"usual": Trip(4.0, 8.0), "move": Trip(1.0, 2.0), "link": Trip(0.1, 0.2)}
    figures = bench.compared(bench.ways_of(trips, 10**9, {"move": "usual"}))
    assert figures["move"]["there"] == {
        "seconds": 1.0,
        "gb_per_second": 1.0,
        "times_as_fast": 4.0,
        "share_of_link": pytest.approx(0.1 / (bench.LINK_BYTES / 1e9)),
    }
    assert figures["usual"]["back"]["times_as_fast"] is None
    assert figures["link"]["there"]["share_of_link"] == 1.0


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="only Linux counts resident memory there")
def test_memory_that_comes_and_goes_is_seen_by_the_thread():
    size = 64 << 20
    before = resident_bytes()
    with HostPeak() as peak:
        held = torch.ones(size, dtype=torch.uint8)
        threading.Event().wait(0.1)
        del held
    assert peak.nbytes - before > 0.9 * size


@pytest.mark.twin
def test_memory_beside_the_state_is_seen():
    """A way that copies everything once more, and keeps it until it is home."""
    kept = []
    state = TrainingState(torch.nn.Linear(1 << 12, 1 << 12, bias=False), None)

    def wasteful(to: torch.device) -> None:
        kept.append(state.model.weight.detach().clone())
        threading.Event().wait(0.05)

    _, (there, back) = first_trip(wasteful, torch.device("twin:0"), state.model.weight.nbytes)
    assert there.device is None
    if there.host is not None:
        assert there.host > 0.9 * state.model.weight.nbytes
        assert back.host > 1.9 * state.model.weight.nbytes


@pytest.mark.twin
def test_memory_on_the_device_counts_beyond_the_state_that_arrives(monkeypatch):
    befores, peaks = [100, 1100], [100 + 1000 + 30, 1100 + 7]  # of the move there, of the one back
    counts = SimpleNamespace(
        reset_peak_memory_stats=lambda device: None,
        memory_allocated=lambda device: befores.pop(0),
        max_memory_allocated=lambda device: peaks.pop(0),
    )
    monkeypatch.setattr(_trips, "device_module", lambda device: counts)
    _, (there, back) = first_trip(lambda to: None, torch.device("twin:0"), 1000)
    assert (there.device, back.device) == (30, 7)


@pytest.mark.cuda
@pytest.mark.whole_card
def test_on_a_gpu_the_link_and_the_memory_are_measured():
    measured = bench.measure("cuda", 100_000_000)
    assert set(measured.ways) == {*WAYS, "link"}
    assert all(legs[leg]["share_of_link"] > 0 for legs in bench.compared(measured.ways).values() for leg in legs)
    assert None not in [extra.device for extra in measured.extra]
    assert "of link" in str(measured)


# ---------------------------------------------------------------- the page


@pytest.fixture
def page(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import speed_page

    return speed_page


def leg(rate: float) -> dict[str, float | None]:
    return {"seconds": 1 / rate, "gb_per_second": rate, "times_as_fast": None, "share_of_link": 0.5}


def part(**more: object) -> dict[str, object]:
    return {"date": "2001-02-03", "machine": "a <card>, 4 cores", "device": "cuda:0", "bytes": 10**9, **more}


def ways(*names: str) -> dict[str, dict[str, object]]:
    return {name: {"there": leg(rate), "back": leg(rate / 2)} for rate, name in enumerate(names, 1)}


def size_row(nbytes: int, tensors: int) -> dict[str, object]:
    seconds = {"usual": nbytes / 1e9 + 1e-5, "move": nbytes / 1e10 + 1e-4}
    within = {"there": True, "back": nbytes > 1024}
    return {
        "bytes": nbytes,
        "tensors": tensors,
        "turns": 2,
        "seconds": {"there": seconds, "back": seconds},
        "within": within,
    }


EXTRA = {"there": {"host": 1 << 20, "device": None}, "back": {"host": None, "device": 1 << 30}}
STAGES = {"survey": 4.0, "copy": 2.5, "total": 6.5}
FIGURES = {
    "transformer": part(tensors=12, movers={"there": "fast", "back": "slow"}, extra_bytes=EXTRA, ways=ways(*TITLES)),
    "small": part(
        tensors=96_000,
        turns=3,
        us_a_tensor={"there": STAGES, "back": STAGES},
        ways=ways("usual", "move", "usual_best", "move_best"),
    ),
    "sizes": part(rows=[size_row(1024 * 4**step, pieces) for pieces in (1, 8) for step in range(13)]),
    "peers": part(missing={"accelerate": "cannot be imported: no such thing"}, ways=ways("usual", "lightning", "move")),
    "digests": part(ways=ways("quick", "bytes", "off")),
}


@pytest.fixture
def docs(tmp_path, page):
    (tmp_path / "performance.md").write_text(f"# Before\n\n{page.BEGIN}\nold\n{page.END}\n\n## After\n")
    return tmp_path


def test_the_page_changes_between_the_marks_and_nowhere_else(page, docs):
    page.write(FIGURES, docs)
    written = (docs / "performance.md").read_text()
    assert written.startswith(f"# Before\n\n{page.BEGIN}\n")
    assert written.endswith(f"\n{page.END}\n\n## After\n")
    assert "old" not in written
    page.write(FIGURES, docs)
    assert (docs / "performance.md").read_text() == written


def test_the_page_has_every_part_and_says_what_is_missing(page, docs):
    page.write(FIGURES, docs)
    written = (docs / "performance.md").read_text()
    assert all(f"--parts {name}` on a <card>, 4 cores, 2001-02-03" in written for name in FIGURES)
    assert "accelerate cannot be imported: no such thing." in written
    assert "Movers: fast to cuda:0, slow to the CPU." in written
    assert "in 50 of 52 cases; the others are marked with a *." in written
    assert "![" in written
    rows = [line for line in written.splitlines() if line.startswith("|")]
    assert any("nan" in row or "None" in row for row in rows) is False


def test_every_table_has_as_many_cells_in_each_row(page):
    for block in page.tables(FIGURES).split("\n\n"):
        if block.startswith("|"):
            assert len({line.count("|") for line in block.splitlines()}) == 1, block


def test_parts_that_were_not_measured_again_keep_their_figures(page, docs):
    page.write({"digests": FIGURES["digests"]}, docs)
    page.write({"peers": FIGURES["peers"]}, docs)
    assert json.loads((docs / "performance.json").read_text()) == {name: FIGURES[name] for name in ("digests", "peers")}
    assert "### Cost of verification" in (docs / "performance.md").read_text()


@pytest.mark.parametrize("text", ["no marks", "<!-- speed --> only one", "<!-- /speed --> <!-- speed -->"])
def test_a_page_without_its_marks_is_left_alone(page, docs, text):
    (docs / "performance.md").write_text(text)
    with pytest.raises(ValueError, match="needs <!-- speed --> and <!-- /speed -->"):
        page.write(FIGURES, docs)
    assert (docs / "performance.md").read_text() == text
    assert not (docs / "performance.json").exists()


@pytest.mark.parametrize("names", [list(FIGURES), ["transformer"], ["sizes"], ["digests"]], ids=",".join)
def test_the_plot_is_well_formed(page, docs, names):
    page.write({name: FIGURES[name] for name in names}, docs)
    root = ElementTree.fromstring((docs / "performance.svg").read_text())
    space = {"svg": "http://www.w3.org/2000/svg"}
    width, height = map(float, root.get("viewBox").split()[2:])
    bars = root.findall("svg:rect", space)
    assert len(bars) == (8 if "transformer" in names else 0)
    assert all(float(bar.get("x")) + float(bar.get("width")) <= width for bar in bars)
    assert all(float(bar.get("y")) + float(bar.get("height")) <= height for bar in bars)
    curves = root.findall("svg:g", space)
    assert len(curves) == (2 if "sizes" in names else 0)
    assert all(len(curve.findall("svg:polyline", space)) == 5 for curve in curves)


def test_the_figures_in_the_docs_are_those_that_are_kept_beside_them(page):
    text = (ROOT / "docs" / "performance.md").read_text()
    kept = json.loads((ROOT / "docs" / "performance.json").read_text())
    assert page.replaced(text, page.tables(kept)) == text


@pytest.mark.slow
def test_a_quick_run_is_not_written():
    command = [sys.executable, BENCHMARKS / "speed.py", "--quick", "--write"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert "leave out --write" in ran.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", ["small", "digests"])
def test_a_part_runs_in_a_process_of_its_own_and_prints_json(name, page):
    command = [sys.executable, BENCHMARKS / "speed.py", "--device", "twin", "--quick", "--parts", name]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    figures = json.loads(ran.stdout)
    assert list(figures) == [name]
    assert figures[name]["device"] == "twin:0"
    assert page.tables(figures).count("###") == 1
    if name == "small":
        ways = figures[name]["ways"]
        assert all(ways["move_best"][leg]["seconds"] <= ways["move"][leg]["seconds"] for leg in Trip._fields)
        assert ways["move_best"]["there"]["times_as_fast"] is not None
        assert {"survey", "plan", "copy", "commit", "verify", "rest", "total"} <= figures[name]["us_a_tensor"][
            "back"
        ].keys()
