"""`--fix` over the corpus: most planted programs are mended, none is broken, and right programs are left alone."""

from __future__ import annotations

import linecache
import random
import re
import sys
import types
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from unittest.mock import patch

import numpy
import pytest
import torch
from test_corpus import CLEAN, DECOYS, PLANTED, has_its_devices, moved, no_accelerator, objects_of
from torch import Tensor, nn
from torch.optim import Optimizer

import torchmove as tm
from torchmove.rehearsing.run import Options, rehearse_for

pytest.importorskip("libcst")
from torchmove.rehearsing.fixing.rounds import Fixed, fix

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(sys.version_info < (3, 11), reason="expressions have positions from Python 3.11"),
]
ENOUGH = 0.8


def loaded(path: Path, source: bytes, device: str = "cuda"):
    """The module of an edited program, with this device in the place of "cuda"."""
    program = sys.modules[path.stem] = types.ModuleType(path.stem)
    program.__file__ = str(path)
    text = source.decode()
    text = text if device == "cuda" else re.sub(r"(?<=[\"'])cuda(:\d)?", device, text)
    with patch.dict(linecache.cache), no_accelerator():
        linecache.cache[str(path)] = (len(text), None, text.splitlines(keepends=True), str(path))
        exec(compile(text, path, "exec", dont_inherit=True), vars(program))
    return program


def rehearsed(path: Path, source: bytes) -> tm.Rehearsal:
    torch.manual_seed(0)
    program = loaded(path, source)
    text = source.decode()
    given = getattr(program, "OPTIONS", {})
    with patch.dict(linecache.cache, {str(path): (len(text), None, text.splitlines(keepends=True), str(path))}):
        return rehearse_for(program.step, objects_of(program), Options(**given, evidence=True), None)


def fixed(path: Path, source: bytes | None = None) -> Fixed:
    whole = path.read_bytes() if source is None else source

    def rehearse(sources: Mapping[str, bytes]) -> tm.Rehearsal:
        return rehearsed(path, sources.get(str(path), whole))

    return fix(rehearse, lambda _: whole)


# ---------------------------------------------------------------- what a program computes on the CPU


def computed(path: Path, source: bytes) -> object:
    """The bits of everything that a program has and returns after its step on the CPU."""
    seed_all()
    program = loaded(path, source, "cpu")
    objects = objects_of(program)
    with (
        patch.object(nn.Module, "cuda", lambda module, *_, **__: module),
        patch.object(Tensor, "cuda", lambda each, *_, **__: each),
    ):
        try:
            returned = program.step(*objects)
        except Exception as error:  # a shape or a dtype is wrong on the CPU, too
            returned = repr(error)
    names = {name: each for name, each in vars(program).items() if isinstance(each, (nn.Module, Tensor, Optimizer))}
    owner = getattr(program.step, "__self__", None)
    return bits([returned, objects, names, owner], program.__name__, set())


def seed_all() -> None:
    torch.manual_seed(0)
    numpy.random.seed(0)
    random.seed(0)


def bits(each: object, program: str, seen: set[int]) -> object:
    """Plain data for each tensor and number. A buffer counts like an attribute."""
    if isinstance(each, Tensor):
        dense = each.detach().to_dense()
        grad = None if each.grad is None or not each.is_leaf else bits(each.grad, program, seen)
        return (str(dense.dtype), tuple(dense.shape), dense.contiguous().flatten().view(torch.uint8).tolist(), grad)
    if isinstance(each, (int, float, str, bytes, bool, type(None))):
        return repr(each)
    if id(each) in seen:
        return "again"
    seen.add(id(each))
    if isinstance(each, Mapping):
        return {str(key): bits(value, program, seen) for key, value in each.items()}
    if isinstance(each, (list, tuple)):
        return [bits(value, program, seen) for value in each]
    if isinstance(each, nn.Module):
        own = {**each._parameters, **each._buffers, **each._modules}
        own |= {name: value for name, value in vars(each).items() if isinstance(value, Tensor)}
        held = {name: value for name, value in vars(each).items() if isinstance(value, (list, dict, tuple))}
        own |= {name: value for name, value in held.items() if not name.startswith("_")}
        own = {name: value for name, value in own.items() if value is not None}
        return {name: bits(own[name], program, seen) for name in sorted(own)}
    if isinstance(each, Optimizer):
        return [bits(value, program, seen) for value in each.state.values()]
    if type(each).__module__ == program and hasattr(each, "__dict__"):
        return {name: bits(value, program, seen) for name, value in sorted(vars(each).items())}
    return type(each).__name__


# ---------------------------------------------------------------- the laws


@pytest.mark.sampled(16)
@pytest.mark.parametrize("path", PLANTED, ids=lambda path: path.stem)
def test_an_edited_program_computes_the_same_bits_on_the_cpu_and_is_edited_once(path):
    before = path.read_bytes()
    done = fixed(path)
    assert {*done.sources} <= {str(path)}
    assert all(why for _, why in done.left)
    assert bool(done.sources) is bool(done.mended)
    assert len(done.after.failing) <= len(done.before.failing)
    if done.sources:
        source = done.sources[str(path)]
        assert source != before
        assert computed(path, source) == computed(path, before)
        again = fixed(path, source)
        assert (again.sources, len(again.before.failing)) == ({}, len(done.after.failing))


@pytest.mark.sampled(8)
@pytest.mark.parametrize("path", CLEAN + DECOYS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_program_that_is_right_is_not_edited(path):
    done = fixed(path)
    assert (done.sources, done.mended, done.left) == ({}, (), ())


def ending_of(done: Fixed) -> str:
    if done.after.ok:
        return "clean"
    return "edited, not clean" if done.sources else "not edited"


@pytest.mark.slow
def test_most_of_the_planted_programs_are_mended(capsys):
    endings, kinds, reasons = Counter(), Counter(), Counter()
    for path in PLANTED:
        done = fixed(path)
        if done.before.ok:
            continue  # notes only: these are not edited
        endings[ending_of(done)] += 1
        left = Counter(finding.kind for finding, _ in done.left)
        kinds.update(("fixed", finding.kind) for finding in done.mended)
        kinds.update(("left", kind) for kind in left.elements())
        reasons.update((finding.kind, why) for finding, why in done.left)
    with capsys.disabled():
        print(f"\nprograms: {dict(endings)}")
        for kind in sorted({kind for _, kind in kinds}):
            print(f"  {kind:12} fixed {kinds['fixed', kind]:3}  left {kinds['left', kind]:3}")
        print(*(f"  {count:3} {kind}: {why}" for (kind, why), count in reasons.most_common()), sep="\n")
    assert endings["clean"] >= ENOUGH * endings.total()


@pytest.mark.cuda
@pytest.mark.parametrize("path", PLANTED, ids=lambda path: path.stem)
def test_a_mended_program_runs_on_a_gpu(path):
    done = fixed(path)
    if not done.after.ok or not done.sources:
        pytest.skip("not mended")
    if not has_its_devices(path):
        pytest.skip("it needs two GPUs")
    program = loaded(path, done.sources[str(path)])
    program.step(*moved(program))
    torch.cuda.synchronize()
