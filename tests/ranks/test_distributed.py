"""Many ranks, real processes: every rank moves or none does, and those that moved train on as if they had not.

What runs on each rank is in tests/ranks/program.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import distributed, nn

import torchmove as tm

PROGRAM = Path(__file__).parent / "program.py"


def run(ranks: int, *cases: str, seconds: float = 60, status: int | None = 0, **settings: str) -> str:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    command += ["--master-port", "0", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GROUP_SECONDS": str(seconds), **settings}
    done = subprocess.run(
        [*command, str(PROGRAM), *cases],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=environment,
    )
    assert status is None or done.returncode == status, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_what_was_moved_in_mid_training_trains_on_as_if_it_had_not(ranks):
    cases = ["fsdp", "tensors_in_parallel", "ddp"]
    said = run(ranks, *cases)
    assert all(f"done: {case}" in said for case in cases)


@pytest.mark.slow
def test_fsdp_at_all_moments_and_in_all_modes():
    cases = ["fsdp_in_mixed_precision", "fsdp_at_other_moments", "fsdp_offloaded_is_refused"]
    said = run(2, *cases)
    assert all(f"done: {case}" in said for case in cases)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_failure_on_one_rank_changes_nothing_on_any_rank(ranks):
    cases = ["a_fault_at_any_stage", "a_refusal_on_one_rank", "an_interrupt_on_one_rank", "different_calls"]
    cases += ["a_swap_that_fails_on_one_rank"]
    said = run(ranks, *cases)
    assert all(f"done: {case}" in said for case in cases)
    assert "different calls were refused after" in said


@pytest.mark.slow
def test_a_rank_that_never_calls():
    assert "a missing rank was told after" in run(2, "a_rank_that_never_calls", seconds=5)


@pytest.mark.slow
def test_a_rank_that_is_killed():
    said = run(2, "a_rank_that_dies", seconds=20, status=None)  # torchrun tells of the one that was killed
    assert "a rank that was killed was told after" in said


@pytest.mark.cuda
@pytest.mark.parametrize(("ranks", "backend"), [(1, "nccl"), (2, "cpu:gloo,cuda:gloo")])
def test_shards_on_a_gpu(ranks, backend):
    assert "done: fsdp_on_a_gpu" in run(ranks, "fsdp_on_a_gpu", DEVICE="cuda", BACKEND=backend)


@pytest.mark.twin
def test_a_group_of_one_rank_moves_like_a_single_process():
    distributed.init_process_group("gloo", init_method="tcp://localhost:0", rank=0, world_size=1)
    try:
        model = nn.Linear(3, 3)
        assert tm.by_rank(tm.move(model, to="twin:0")).rows[0]["rank"] == 0
        assert model.weight.device == torch.device("twin:0")
    finally:
        distributed.destroy_process_group()


@pytest.mark.slow
def test_the_agreement_costs_the_same_however_many_tensors_there_are():
    command = [sys.executable, "benchmarks/planning.py", "--ranks", "16", "--tensors", "100", "1000", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=PROGRAM.parents[2])
    few, many = json.loads(done.stdout)
    assert {**few, "tensors": 1000} == many
    assert (few["exchanges"], few["committed_in_peace"], few["committed_in_trouble"]) == (2, 16, 0)


def test_rewrap_says_what_it_takes():
    with pytest.raises(TypeError, match=r"Fix: tm\.move"):
        tm.rewrap(nn.Linear(2, 2), to="cpu")
