"""The quick tier is a part of the full one, and every law, every failure and the README are in it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from pages import ROOT
from tiers import parted

ALWAYS = ("tests/test_laws.py", "tests/test_failures.py")


class Collected:
    """A plugin that keeps what a run would run."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.names += [item.nodeid for item in session.items]


def collected(*options: str) -> list[str]:
    plugin = Collected()
    files = [str(ROOT / name) for name in (*ALWAYS, "tests/test_docs.py", "tests/test_torch_own.py")]
    status = pytest.main(["--collect-only", "-q", "-m", "not cuda", f"--rootdir={ROOT}", *options, *files], [plugin])
    assert status == pytest.ExitCode.OK
    return plugin.names


@pytest.fixture(scope="module")
def full() -> list[str]:
    return collected()


@pytest.fixture(scope="module")
def quick() -> list[str]:
    return collected("--quick")


@pytest.mark.parametrize("file", ALWAYS)
def test_every_law_and_every_failure_is_in_the_quick_tier_with_all_its_rows(file, quick, full):
    rows = [name for name in full if name.startswith(f"{file}::")]
    assert rows
    assert [name for name in quick if name.startswith(f"{file}::")] == rows


def test_the_readme_is_run_in_the_quick_tier(quick):
    assert "tests/test_docs.py::test_what_a_page_shows_runs_and_prints_what_it_says[README.md-twin]" in quick


def test_the_quick_tier_is_a_part_of_the_full_one_in_the_same_order(quick, full):
    assert len(quick) < len(full)
    assert quick == [name for name in full if name in {*quick}]


def test_of_every_sampled_test_some_rows_run_and_the_same_ones_each_time(quick, full):
    (name,) = {row.partition("[")[0] for row in full if "test_a_moved_module_trains_on" in row}
    rows = [row for row in quick if row.startswith(name)]
    assert 0 < len(rows) < Counter(row.partition("[")[0] for row in full)[name]
    assert [row for row in collected("--quick") if row.startswith(name)] == rows


class Item:
    """As much of a collected test as the tiers look at."""

    def __init__(self, name: str, **marks: Any) -> None:
        self.name, self.nodeid, self.marks = name, f"tests/test_some.py::{name}", marks

    def get_closest_marker(self, name: str) -> Any:
        return getattr(pytest.mark, name)(*self.marks[name]).mark if name in self.marks else None


def test_what_is_slow_is_left_out_and_what_is_not_marked_runs():
    items = [Item("test_a"), Item("test_b", slow=()), Item("test_c[1]"), Item("test_c[2]", slow=())]
    quick, left = parted(items)
    assert (quick, left) == ([items[0], items[2]], [items[1], items[3]])


def test_a_sample_keeps_its_rows_when_others_are_added():
    def rows(count: int) -> list[Item]:
        return [Item(f"test_a[{number}]", sampled=(5,)) for number in range(count)]

    few, _ = parted(rows(50))
    many, _ = parted(rows(60))
    assert len(few) == len(many) == 5
    assert {item.name for item in many} - {item.name for item in few} <= {
        f"test_a[{number}]" for number in range(50, 60)
    }


def test_a_sample_of_more_than_there_is_is_all():
    items = [Item(f"test_a[{number}]", sampled=(5,)) for number in range(3)]
    assert parted(items) == (items, [])


def test_a_sample_of_none_is_an_error():
    with pytest.raises(ValueError, match="at least one"):
        parted([Item("test_a[1]", sampled=(0,))])
