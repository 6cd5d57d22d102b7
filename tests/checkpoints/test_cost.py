"""A checkpoint takes as much work and memory as it is large; one made to take more is refused before it has."""

from __future__ import annotations

import json
import random
import sys
import tracemalloc
from collections import Counter, OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import costly
import pytest
import torch
from forged import entry, refused, safetensors, save
from torch import nn

from torchmove.checkpoints import inspecting, untrusted
from torchmove.checkpoints.inspecting import inspect
from torchmove.checkpoints.pickled_objects import Keys
from torchmove.checkpoints.relocating import relocate
from torchmove.checkpoints.untrusted import Budget
from torchmove.errors import CheckpointRefused

SIZE = 16_000
# For each byte of a file: what Python is called, and what it holds. A hostile file of before takes hundreds or more.
MOST_CALLS, MOST_BYTES = 120, 150


@pytest.fixture
def nothing_fixed(monkeypatch):
    """Only what the bytes are worth, so that small files show what large ones do."""
    monkeypatch.setattr(untrusted, "_FIXED_UNITS", 3_000)


def calls(work: Callable[[], Any]) -> tuple[Any, int]:
    """What it returns or is refused with, and how many functions were called meanwhile, those in C too."""
    count = 0

    def seen(frame: object, event: str, _: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        result = ended(work)
    finally:
        sys.setprofile(before)
    return result, count


def ended(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except CheckpointRefused as caught:
        return caught.refusals[0].code


def memory(work: Callable[[], Any]) -> int:
    tracemalloc.start()
    try:
        kept = ended(work)
        del kept
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def bounded(path: Path, nbytes: int) -> Any:
    """What `inspect` makes of it, with work and memory in proportion to its size."""
    result, count = calls(lambda: inspect(path))
    assert count < MOST_CALLS * nbytes
    assert memory(lambda: inspect(path)) < MOST_BYTES * nbytes + 1_000_000
    if not isinstance(result, str):
        _, count = calls(lambda: (str(result), result.to_json(), result.to_html()))
        assert count < MOST_CALLS * nbytes + 50_000  # a page has much that is the same in each
        assert len(result.to_json()) < MOST_BYTES * nbytes
    return result


# What takes no more than its size is worth, since it is gone through once. The others would, and are refused.
READ = {
    *("optimizers that share a state", "a tensor by many names", "a storage by many names", "a device by many names"),
    *("a long text again and again", "ten of ten of ten", "nothing", "huge numbers", "names", "short texts"),
    *("numbers with the same low bits", "strides that hash alike", "complex numbers that hash alike"),
}


@pytest.mark.sampled(12)
@pytest.mark.parametrize("kind", costly.PICKLES)
def test_a_pickle_takes_work_in_proportion_to_its_size(tmp_path, nothing_fixed, kind):
    file = costly.of_pickle(kind, tmp_path / "a.pt", SIZE)
    assert (bounded(file, file.stat().st_size) == "R067") is (kind not in READ)
    _, count = calls(lambda: relocate(file, out=tmp_path / "out.pt", progress=False))
    assert count < 6 * MOST_CALLS * SIZE + 100_000


@pytest.mark.parametrize("kind", costly.SAFETENSORS)
def test_a_safetensors_header_takes_work_in_proportion_to_its_size(tmp_path, nothing_fixed, kind):
    file = costly.of_safetensors(kind, tmp_path / "a.safetensors", SIZE)
    result = bounded(file, file.stat().st_size)
    read = {"texts in the metadata", "keys in the metadata", "many tensors", "large empty tensors"}
    unsound = {"brackets for a tensor", "keys for a tensor", "tensors that are numbers", "one huge size", "many sizes"}
    assert (result == "R067") is (kind not in read | unsound)
    assert (result == "R065") is (kind in unsound)


@pytest.mark.parametrize(("kind", "code"), [*zip(costly.INDICES, ("R068", "R068", "R065", "R067"), strict=True)])
def test_an_index_takes_work_in_proportion_to_its_size(tmp_path, nothing_fixed, kind, code):
    folder = costly.of_index(kind, tmp_path / "model", SIZE)
    assert bounded(folder, SIZE) == code
    assert refused(lambda: relocate(folder, out=tmp_path / "out")) == code


def test_a_zip_takes_work_in_proportion_to_its_size(tmp_path, nothing_fixed):
    assert not bounded(costly.many_records(tmp_path / "a.pt", SIZE), SIZE).entries


def test_a_file_counts_once_by_however_many_names_a_folder_has_it(tmp_path, nothing_fixed, monkeypatch):
    folder = costly.one_file_by_many_names(tmp_path / "model", SIZE)
    result, count = calls(lambda: inspect(folder))
    assert result == "R067"
    assert count < 5 * MOST_CALLS * SIZE
    monkeypatch.setattr(untrusted, "_FIXED_UNITS", 1 << 60)
    assert len(inspect(folder).entries) == 30 * 30


def test_the_last_of_many_names_is_counted_not_listed(tmp_path, monkeypatch):
    monkeypatch.setattr(inspecting, "_MOST_NAMES", 3)
    one, two = torch.ones(2), torch.ones(3)
    contents = inspect(save(tmp_path / "a.pt", [one] * 5 + [two] * 3 + [one]))
    assert [str(entry.path) for entry in contents.entries] == ["[0]", "[1]", "[2]", "[5]", "[6]", "[7]"]
    assert contents.unlisted == 3
    assert json.loads(contents.to_json())["unlisted"] == 3
    assert "3 more paths of these tensors are not listed" in str(contents)
    monkeypatch.undo()
    contents = inspect(tmp_path / "a.pt")
    assert (len(contents.entries), contents.unlisted) == (9, 0)
    assert "more names" not in str(contents)
    assert "[0], [1] (+3)" in str(contents)


def test_optimizers_that_share_a_state_are_one(tmp_path):
    state, groups = {0: {"momentum": torch.ones(2)}}, [{"params": [0]}]
    own = {0: {"momentum": torch.ones(3)}}
    given = [{"state": each, "param_groups": groups} for each in (state, state, own)]
    contents = inspect(save(tmp_path / "a.pt", given))
    assert [(str(each.path), each.nbytes) for each in contents.optimizers] == [("[0]", 8), ("[2]", 12)]


def test_a_page_shows_the_first_of_many_optimizers_and_kinds(tmp_path):
    state = {0: {f"kind {index}": torch.ones(1) for index in range(12)}}
    given = [{"state": {0: dict(state[0])}, "param_groups": []} for _ in range(12)]
    said = str(inspect(save(tmp_path / "a.pt", given)))
    assert "kind 9 4 B and 2 more kinds" in said
    assert "... and 2 more optimizers: to_json() has all of them" in said


# ---------------------------------------------------------------- honest ones


def trained(count: int) -> dict[str, Any]:
    parameters = [nn.Parameter(torch.zeros(1)) for _ in range(count)]
    optimizer = torch.optim.AdamW(parameters, foreach=True)
    for parameter in parameters:
        parameter.grad = torch.zeros(1)
    optimizer.step()
    return {"model": {f"layers.{index}.w": each for index, each in enumerate(parameters)}, "o": optimizer.state_dict()}


def separate(count: int) -> dict[str, torch.Tensor]:
    return {f"model.layers.{index}.weight": torch.zeros(1) for index in range(count)}


def views(count: int) -> dict[str, torch.Tensor]:
    base = torch.zeros(count)
    return {f"layers.{index // 12}.{index % 12}": base[index] for index in range(count)}


def tied(count: int) -> dict[str, Any]:
    model = separate(count)
    return {"model": model, "ema": dict(model), "again": list(model.values())}


def keyed(count: int) -> list[Any]:
    rng = random.Random(0)
    numbers = {rng.getrandbits(62): index for index in range(count)}
    strided = [{step * index: 0 for index in range(count)} for step in (7, 1000, 4096, 1 << 20)]
    mixed = [{(index // 100, index % 100): 0 for index in range(count)}, {index / 10: 0 for index in range(count)}]
    old = {139872634785232 + 16 * rng.randrange(1 << 20): 0 for _ in range(count)}
    return [numbers, *strided, *mixed, old, set(range(0, 9 * count, 9)), Counter(range(count, 0, -1))]


def small(count: int) -> list[Any]:
    made: list[Callable[[], Any]] = [
        dict,
        list,
        OrderedDict,
        lambda: (1,),
        lambda: {"a": 1},
        lambda: torch.device("cpu"),
    ]
    return [[make() for _ in range(count)] for make in made]


def spent(path: Path) -> float:
    """The part of what its bytes grant that is taken to inspect it."""
    given: list[Budget] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(untrusted, "_FIXED_UNITS", 0)
        start, worth = Budget.__init__, untrusted._worth
        granted: list[int] = []
        patch.setattr(Budget, "__init__", lambda self, *nbytes: (start(self, *nbytes), given.append(self))[0])
        patch.setattr(untrusted, "_worth", lambda nbytes: granted.append(worth(nbytes)) or granted[-1])
        inspect(path)
    (one,) = given
    return 1 - one.left / sum(granted)


@pytest.mark.parametrize(
    ("make", "count", "most"),
    [
        *((trained, 1000, 0.5), (separate, 2000, 0.5), (tied, 1000, 0.5), (views, 2000, 0.6), (views, 100_000, 0.6)),
        *((keyed, 5000, 0.5), (small, 2000, 0.7), (lambda count: ["train"] * count, 20_000, 0.7)),
    ],
)
def test_ordinary_files_stay_far_below_the_limit_even_without_the_fixed_amount(tmp_path, make, count, most):
    assert 0 < spent(save(tmp_path / "a.pt", make(count))) < most


@pytest.mark.slow
def test_a_header_of_100_000_tensors_stays_far_from_it_too(tmp_path):
    described = {f"layers.{index}.w": entry("F32", (2, 1), (8 * index, 8 * index + 8)) for index in range(100_000)}
    metadata = {"format": "pt", "tags": '{"a": [1, 2], "b": {"c": "d"}}' * 1000}
    file = safetensors(tmp_path / "a.safetensors", {"__metadata__": metadata, **described}, bytes(800_000))
    assert len(inspect(file).entries) == 100_000
    assert 0 < spent(file) < 0.5


def test_a_relocated_file_is_as_cheap_as_the_original(tmp_path):
    file = save(tmp_path / "a.pt", separate(2000), where=lambda storage: f"cuda:{storage.data_ptr() % 7}")
    relocate(file, out=tmp_path / "b.pt", progress=False)
    assert spent(tmp_path / "b.pt") < 0.5


# ---------------------------------------------------------------- keys


class Counted:
    """A key that counts how often it is compared."""

    compared = 0

    def __hash__(self) -> int:
        return 7

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return self is other


@pytest.mark.parametrize("of_set", [False, True])
def test_the_steps_that_are_paid_for_are_those_that_python_takes(of_set):
    paid, members = Budget(1 << 20), [Counted() for _ in range(100)]
    before, Counted.compared = paid.left, 0
    if of_set:
        Keys(paid).check_members(members)
        compared = (set(members), Counted.compared)[1]  # a set compares as a dict does
    else:
        Keys(paid).fill({}, [(each, None) for each in members])
        Counted.compared = 0
        compared = (dict.fromkeys(members), Counted.compared)[1]
    assert compared >= 100 * 99 // 2
    assert before - paid.left >= compared


def test_keys_that_are_their_own_places_cost_nothing_more():
    paid, found = Budget(1 << 20), {}
    keys, before = Keys(paid), paid.left
    for index in range(5000):
        keys.put(found, index, None)
    assert before - paid.left == 5000
    assert found == dict.fromkeys(range(5000))


def test_large_numbers_are_keys_like_others(tmp_path):
    given = {1 << 63: torch.ones(1), -(1 << 61): torch.ones(1)}
    relocate(save(tmp_path / "a.pt", given), out=tmp_path / "b.pt", progress=False)
    assert [entry.path.what for entry in inspect(tmp_path / "b.pt").entries] == [*given]


@pytest.mark.parametrize("times", [1, 5])
def test_a_long_text_is_one_object_however_often_it_is_there(tmp_path, times):
    text = "a" * 500
    contents = inspect(save(tmp_path / "a.pt", {"texts": [text] * times, "device": "cuda:0"}))
    assert [str(path) for path, _ in contents.mentions] == ["['device']"]
