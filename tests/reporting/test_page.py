"""The page of a noun: what is in it, and what it does in Chromium."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import re
import shutil
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from zoo import ZOO

import torchmove as tm
from torchmove.chain import plan_for
from torchmove.formatting import counted, listed, readable_bytes, readable_seconds
from torchmove.reporting import report

pytestmark = pytest.mark.twin

HOSTILE = "</script><script>hurt = 1</script><img src=x onerror='hurt = 1'>\"><b>&amp;<!--"
ALONE = {"area", "base", "br", "col", "hr", "img", "input", "link", "meta", "source", "wbr"}


class Model(nn.Module):
    """Tied weights, views of one storage, an unregistered tensor, and a device that is remembered."""

    def __init__(self) -> None:
        super().__init__()
        self.device = torch.device("cpu")
        self.words = nn.Embedding(64, 16)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.head = nn.Linear(16, 64, bias=False)
        self.head.weight = self.words.weight
        self.caches = list(torch.zeros(4, 8, 16))
        self.table = torch.ones(16, 16)


def in_mid_training() -> tuple[Model, torch.optim.Optimizer]:
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return model, optimizer


def hostile_plan() -> tm.Plan:
    module = nn.Module()
    module.register_parameter(HOSTILE.replace(".", ""), nn.Parameter(torch.ones(3)))
    module.table = {HOSTILE: torch.ones(2), "shared": [*torch.zeros(2, 2)]}
    module.held = type(HOSTILE, (nn.Module,), {})()
    module.held.graph = torch.ones(2, requires_grad=True) * 2
    return plan_for({HOSTILE: module}, torch.device("twin:0"), (), lambda device: None)


def planned(tensors: int) -> tm.Plan:
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(tensors // 10)))
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return tm.plan(model, optimizer, to="twin:0")


class Read(HTMLParser):
    """What a browser would make of a page: its tags, the text of each script, and whether all that opens closes."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ALONE:
            self.open.append(tag)
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data
        else:
            self.words.append(data)


def island(page: str) -> dict[str, Any]:
    return json.loads(Read(page).scripts[0])


def texts(tree: dict[str, Any]) -> list[str]:
    """Each node's path, put together as the page does it."""
    made: list[str] = []
    for node, parent in enumerate(tree["parents"]):
        before = made[parent] if parent >= 0 else ""
        made.append(tree["texts"].get(str(node), before + tree["labels"][tree["label"][node]]))
    return made


# ---------------------------------------------------------------- what is in it


@pytest.mark.parametrize("make", ZOO.values(), ids=ZOO)
def test_every_path_can_be_read_from_the_tree(make):
    state = make()
    inventory = tm.survey(*state.objects)
    page = inventory.to_html()
    if not inventory.tensors:
        assert island(page) is None
        return
    data = island(page)
    written = texts(data["tree"])
    assert [written[node] for node in data["node"]] == [str(slot.path) for slot in inventory.tensors]
    assert len({*data["node"]}) == len(inventory.tensors)
    columns = ("nbytes", "role", "device", "dtype", "shape")
    assert {len(data[column]) for column in columns} == {len(inventory.tensors)}
    assert all(parent < node for node, parent in enumerate(data["tree"]["parents"]))


def test_a_page_closes_what_it_opens_and_names_no_other_file():
    model, optimizer = in_mid_training()
    for noun in (tm.survey(model, optimizer), tm.plan(model, optimizer, to="twin:0"), tm.verify(model, on="twin:0")):
        read = Read(noun.to_html())
        assert not read.open
        assert not [attrs for _, attrs in read.tags if {"src", "href", "srcset", "action"} & attrs.keys()]
        assert not [tag for tag, _ in read.tags if tag in {"link", "img", "iframe", "object", "base"}]
        assert len(read.scripts) == 2
        ids = [attrs["id"] for _, attrs in read.tags if "id" in attrs]
        assert len(ids) == len({*ids})


def test_the_policy_of_a_page_lets_its_own_script_run_and_no_other():
    read = Read(tm.survey(nn.Linear(1, 1)).to_html())
    policy = next(attrs["content"] for tag, attrs in read.tags if attrs.get("http-equiv") == "Content-Security-Policy")
    digest = base64.b64encode(hashlib.sha256(read.scripts[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in policy
    assert policy.startswith("default-src 'none'")


def test_hostile_names_are_words_and_nothing_else():
    page = hostile_plan().to_html()
    read = Read(page)
    assert len(read.scripts) == 2
    assert not [
        tag for tag, attrs in read.tags if tag in {"img", "b!--"} or any(name.startswith("on") for name in attrs)
    ]
    assert HOSTILE in "".join(read.words)  # shown as it is
    assert any(HOSTILE in text for text in texts(island(page)["tree"]))
    assert not re.search(r"[<>&]", read.scripts[0])


def test_half_a_character_in_a_name_can_be_written():
    assert tm.survey({"\ud800": torch.ones(1)}).to_html().encode()


def test_a_plan_says_before_and_after_what_moves_and_why_the_rest_stays():
    model, optimizer = in_mid_training()
    plan = tm.plan(model, optimizer, to="twin:0")
    data = island(plan.to_html())
    names = data["devices"]
    assert [names[index] for index in data["placed"]] == list(map(str, plan.placement))
    assert {index for index, flag in enumerate(data["moves"]) if flag == "1"} == {*plan.moves.indices()}
    assert {tensor: data["reasons"][why] for tensor, why in data["stays"]} == plan.reasons
    assert names[0] == "cpu"


def test_shared_storages_and_further_paths_are_told():
    model, optimizer = in_mid_training()
    inventory = tm.survey(model, optimizer)
    data = island(inventory.to_html())
    written = texts(data["tree"])
    ((size, members),) = data["shared"]
    assert size == 4 * 8 * 16 * 4
    assert [written[data["node"][member]] for member in members] == [f"model.caches[{index}]" for index in range(4)]
    assert [path for _, path in data["also"]] == ["model.head.weight"]


def test_without_scripts_the_largest_tensors_are_there_under_their_paths():
    model, optimizer = in_mid_training()
    plan = tm.plan(model, optimizer, to="twin:0")
    said = re.search(r"<noscript>(.*)</noscript>", plan.to_html(), re.S)[1]
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", said)[1:]]
    slots = sorted(plan.inventory.tensors, key=lambda slot: -slot.nbytes)[:40]
    assert len(rows) == min(40, len(slots))
    assert {html.unescape(row[0]) for row in rows} <= {str(slot.path) for slot in plan.inventory.tensors}
    assert [row[2] for row in rows] == [readable_bytes(slot.nbytes) for slot in slots]
    assert rows[0][1:] == ["parameter", "4 KiB", "cpu", "twin:0"]


def test_an_archive_remembers_dtypes_and_shapes():
    state = in_mid_training()
    expected = island(tm.survey(*state).to_html())
    receipt = tm.move(*state, to="twin:0")
    for page in (receipt.plan, receipt):
        found = island(page.to_html())
        assert [found[name] for name in _KINDS] == [expected[name] for name in _KINDS]


_KINDS = ("dtypes", "dtype", "shapes", "shape")


def test_a_receipt_knows_when_each_stage_began_and_ended():
    model, optimizer = in_mid_training()
    receipt = tm.move(model, optimizer, to="twin:0", verify="bytes")
    stages = report(receipt).facts()["stages"]
    assert [stage["name"] for stage in stages] == [
        "survey",
        "plan",
        "digests",
        "copy",
        "commit",
        "verify",
        "finish",
    ]
    times = [time for stage in stages for time in (stage["began"], stage["ended"])]
    assert times == sorted(times)
    assert times[0] == 0
    assert times[-1] > 0
    words = "".join(Read(receipt.to_html()).words)
    assert "cpu to twin:0: " in words


def test_whoever_holds_old_memory_is_on_the_page():
    model, optimizer = in_mid_training()
    other = {"best": model.table[:2]}
    receipt = tm.move(model, optimizer, to="twin:0")
    words = "".join(Read(receipt.to_html()).words)
    assert "Still held on the old device (1)" in words
    assert "a tensor of shape (2, 16) under 'best'" in words
    del other


def test_a_verdict_shows_where_things_are_and_should_be_and_keeps_none_of_them():
    model = Model()
    verdict = tm.verify(model, on="twin:0")
    data = island(verdict.to_html())
    assert data["words"] == ["is", "should be"]
    assert {data["devices"][index] for index in data["placed"]} == {"twin:0"}
    watched = weakref.ref(model.table)
    del model
    assert watched() is None


def test_many_findings_are_folded_and_very_many_are_counted():
    verdict = tm.verify([torch.ones(1) for _ in range(1000)], on="twin:0")
    read = Read(verdict.to_html())
    words = "".join(read.words)
    assert "Problems (1000)" in words
    assert "394 more" in words
    assert "and 600 more: to_json() has all of them" in words


def many_roots(make: str) -> Any:
    """A noun of a thousand objects, each given by itself."""
    modules = [nn.Linear(1, 1).to("twin:0" if make == "park" else "cpu") for _ in range(1000)]
    if make == "park":
        return tm.park(*modules)
    return tm.survey(*modules) if make == "survey" else getattr(tm, make)(*modules, to="twin:0")


@pytest.mark.parametrize("make", ["survey", "plan", "move", "park"])
def test_a_heading_names_a_few_objects_and_counts_the_rest(make):
    noun = many_roots(make)
    for title in (report(noun).sheet().title, report(noun).page().title, str(noun).splitlines()[0], repr(noun)):
        assert "model, model_2, model_3, model_4, model_5, model_6 and 994 more" in title
        assert len(title) < 250
    if make == "survey":
        assert json.loads(noun.to_json())["roots"][-1] == "model_1000"


def test_a_heading_has_all_the_names_of_few_objects_and_cuts_a_very_long_one():
    assert listed(["a", "b", "c", "d", "e", "f"]) == "a, b, c, d, e, f"
    assert listed([]) == ""
    assert listed(["x" * 101, "y" * 100]) == f"{'x' * 97}..., {'y' * 100}"


def test_many_lines_of_one_kind_are_counted():
    """Forty remembered devices, a line for refusals of one reason with their count, and all of them as JSON."""
    holders = [nn.Module() for _ in range(100)]
    for holder in holders:
        holder.device, holder.graph = torch.device("cpu"), torch.ones(1, requires_grad=True) * 2
    plan = tm.plan(holders, to="twin:0")
    lines = str(plan).splitlines()
    assert ["R032 at 100 paths (holders[0].graph ... and 99 more)" in line for line in lines if "R0" in line] == [True]
    assert sum(".device: cpu -> twin:0" in line for line in lines) == 40
    assert lines.count("  ... and 60 more: to_json() has all of them") == 2  # and the table of what moves
    facts = json.loads(plan.to_json())
    assert len(facts["refusals"]) == len(facts["repoints"]) == 100


def fails(model: nn.Module, batch: Tensor) -> None:
    (model(batch.to("cuda")) + torch.ones(1)).sum().backward()


def nouns_without_a_state() -> dict[str, tm.Plan | Any]:
    model = nn.Linear(2, 2)
    return {
        "Rehearsal": tm.rehearse(fails, model, torch.ones(1, 2), to="cuda"),
        "ByRank": tm.by_rank(tm.plan(model, to="twin:0")),
        "Swap": tm.swap(out=nn.Linear(2, 2).to("twin:0"), into=nn.Linear(2, 2)),
    }


@pytest.mark.parametrize("name", ["Rehearsal", "ByRank", "Swap"])
def test_a_result_without_tensors_has_a_page_too(name):
    noun = nouns_without_a_state()[name]
    page = noun.to_html()
    read = Read(page)
    assert island(page) is None
    assert report(noun).page().kind == name
    assert not [attrs for _, attrs in read.tags if attrs.get("id") == "map"]
    words = "".join(read.words)
    assert {"Rehearsal": 'torch.ones(1, device="cuda")', "ByRank": "1 rank", "Swap": "swapped"}[name] in words


def test_a_rehearsal_shows_the_line_of_code_and_the_memory_by_part():
    words = "".join(Read(nouns_without_a_state()["Rehearsal"].to_html()).words)
    assert '(model(batch.to("cuda")) + torch.ones(1)).sum().backward()' in words
    assert "Peak memory on cuda:0" in words
    assert "activations" in words


def test_a_parked_state_shows_the_map_of_what_was_parked():
    model = nn.Linear(2, 2).to("twin:0")
    parked = tm.park(model)
    data = island(parked.to_html())
    assert [data["devices"][index] for index in data["placed"]] == ["cpu", "cpu"]
    assert "copied" in "".join(Read(parked.to_html()).words)
    parked.wake()


def test_a_notebook_shows_the_same_page_in_a_frame_of_its_own():
    inventory = tm.survey(*in_mid_training())
    read = Read(inventory._repr_html_())
    ((tag, attrs),) = read.tags
    assert (tag, attrs["sandbox"], attrs["srcdoc"]) == ("iframe", "allow-scripts", inventory.to_html())


def test_a_notebook_shows_a_small_result_in_a_few_lines():
    model = nn.Linear(1, 1)
    for result in (tm.survey(model), tm.survey(model).summary(), tm.plan(model, to="twin:0"), tm.move(model, to="cpu")):
        read = Read(result._repr_html_())
        assert not {tag for tag, _ in read.tags} & {"iframe", "script", "style"}
        assert not read.open
        assert str(result).splitlines()[0] in "".join(read.words)
    words = Read(tm.survey(model)._repr_html_()).words
    assert {"model.weight", "model.bias", "parameter"} <= {*words}


def test_a_notebook_shows_a_verified_state_of_any_size_in_one_line():
    verdict = tm.verify(*in_mid_training(), on="cpu")
    assert Read(verdict._repr_html_()).words == [str(verdict)]
    assert "<iframe" in tm.verify(*in_mid_training(), on="twin:0")._repr_html_()


def test_what_is_shown_without_a_frame_is_text():
    module = nn.Module()
    module.table = {HOSTILE: torch.ones(2)}
    for result in (tm.survey(module), tm.survey(module).summary()):
        read = Read(result._repr_html_())
        assert {tag for tag, _ in read.tags} <= {
            "div",
            "strong",
            "table",
            "caption",
            "thead",
            "tbody",
            "tr",
            "th",
            "td",
        }
    assert str(tm.survey(module)[0].path) in Read(tm.survey(module)._repr_html_()).words


def test_a_page_opens_on_the_state_after(plan):
    assert island(plan.to_html())["opened"] == 1
    assert island(tm.move(Model(), to="twin:0").to_html())["opened"] == 1
    assert island(tm.verify(Model(), on="twin:0").to_html())["opened"] == 0  # what it is, not what it should be


@pytest.mark.slow
def test_importing_torchmove_reads_no_file_of_the_page():
    program = "import torchmove; from torchmove.reporting import html; print(html._file.cache_info().currsize)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "0"


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1010 * 1024, "1010 KiB"),
        (1 << 20, "1 MiB"),
        (1 << 52, "4096 TiB"),
    ],
)
def test_bytes_are_written_without_powers_of_ten(count, words):
    assert readable_bytes(count) == words


def test_seconds_are_written_in_their_unit():
    assert [readable_seconds(each) for each in (2.5, 0.0021, 3e-6)] == ["2.5 s", "2.1 ms", "3 µs"]


# ---------------------------------------------------------------- in a browser


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install -e '.[browser]'")
    found = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if found is None:
        pytest.skip("needs Chromium: install it, or name it in CHROMIUM")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


Show = Callable[..., Any]


@pytest.fixture
def show(chromium, tmp_path: Path) -> Iterator[Show]:
    """Opens a page from a file. In the end there must have been no error, and no request but for the file."""
    errors: list[str] = []
    requests: list[str] = []
    contexts: list[Any] = []

    def opened(noun: Any, *, width: int = 1280, **options: Any) -> Any:
        path = tmp_path / f"{len(contexts)}.html"
        path.write_text(noun if isinstance(noun, str) else noun.to_html(), encoding="utf-8")
        contexts.append(chromium.new_context(viewport={"width": width, "height": 900}, **options))
        page = contexts[-1].new_page()
        page.on("console", lambda message: errors.append(message.text))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(path.as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not errors
    assert all(url.startswith(tmp_path.as_uri()) for url in requests)


@pytest.fixture
def plan() -> tm.Plan:
    return tm.plan(*in_mid_training(), to="twin:0")


def names(page: Any) -> list[str]:
    """What the map shows on its first level."""
    return page.locator("#map [role=treeitem] > .name").all_inner_texts()


def crumbs(page: Any) -> list[str]:
    return page.locator("#crumbs li").all_inner_texts()


def paths(page: Any) -> list[str]:
    return ["".join(row.locator("span").all_inner_texts()) for row in page.locator("#rows-inside .path").all()]


def wait_for_lit(page: Any, where: str, count: int) -> None:
    from playwright.sync_api import expect

    expect(page.locator(f"{where} .lit")).to_have_count(count)


def cell(page: Any, label: str) -> Any:
    return page.locator("#map .cell > .name").get_by_text(label, exact=True).first


def test_opening_a_part_shows_what_is_in_it_and_the_trail_leads_back(show, plan):
    page = show(plan)
    assert sorted(names(page)) == ["model", "optimizer.state.model"]
    cell(page, "model").click()
    assert sorted(names(page)) == ["caches", "layers", "table", "words.weight"]
    cell(page, "layers").click()
    assert crumbs(page) == ["everything", "model", "layers"]
    assert sorted(names(page)) == ["[0]", "[1]", "[2]"]
    page.get_by_role("navigation").get_by_role("button", name="everything").click()
    assert crumbs(page) == ["everything"]
    assert sorted(names(page)) == ["model", "optimizer.state.model"]


def test_a_part_deep_in_the_map_is_opened_with_all_that_is_above_it_in_the_trail(show, plan):
    page = show(plan)
    cell(page, "layers").click()
    assert crumbs(page)[0] == "everything"
    above = crumbs(page)[1]
    assert above in ("model", "optimizer.state.model")
    assert crumbs(page)[2:] == ["layers"]
    page.keyboard.press("Escape")
    assert crumbs(page) == ["everything", above]
    page.keyboard.press("Escape")
    assert crumbs(page) == ["everything"]


def test_what_an_optimizer_keeps_is_a_part_of_its_own_laid_out_like_the_model(show, plan):
    page = show(plan)
    cell(page, "optimizer.state.model").click()
    assert sorted(names(page)) == ["layers", "words.weight"]
    page.fill("#search", "exp_avg_sq layers[1] bias")
    page.locator("#rows-inside .row").click()
    assert crumbs(page) == ["everything", "optimizer.state.model", "layers", "[1]", "bias"]


def test_the_map_is_gone_through_by_keyboard(show, plan):
    page = show(plan)
    page.locator("#map [role=treeitem][tabindex='0']").focus()
    first = page.evaluate("document.activeElement.querySelector('.name').textContent")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    second = page.evaluate("document.activeElement.querySelector('.name').textContent")
    assert {first, second} == {"model", "optimizer.state.model"}
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    assert len(crumbs(page)) == 2
    assert page.locator("#ring").is_visible()
    page.keyboard.press("Escape")
    assert crumbs(page) == ["everything"]
    assert page.evaluate("document.activeElement.querySelector('.name').textContent") == first
    # Down to a tensor, which Enter selects.
    for _ in range(6):
        page.keyboard.press("Enter")
    assert page.locator("#rows .selected").count() == 1
    assert page.locator("#map .selected").count() == 1


def test_tab_reaches_everything_and_focus_can_be_seen(show, plan):
    page = show(plan)
    reached: list[str] = []
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate(
                "document.activeElement.id || document.activeElement.className || document.activeElement.textContent"
            )
        )
        seen = page.evaluate(
            """() => { const on = document.activeElement; const style = getComputedStyle(on);
            return on === document.body || on.closest('#map') && !document.getElementById('ring').hidden
              || style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 1; }"""
        )
        assert seen, reached[-1]
    for wanted in ("theme", "before", "after", "search", "only", "rows", "find", "path"):
        assert wanted in reached, (wanted, reached)
    assert any(each.startswith("cell") for each in reached)


def test_the_map_is_there_as_a_table_too(show, plan):
    page = show(plan)
    page.get_by_text("As a table").click()
    table = page.locator("#branches")
    assert table.locator("tbody tr").count() == 2
    table.get_by_role("button", name="model", exact=True).click()
    assert table.locator("tbody tr").count() == 4
    assert crumbs(page) == ["everything", "model"]


def test_search_finds_all_words_and_says_how_many(show, plan):
    page = show(plan)
    page.fill("#search", "exp_avg_sq layers bias")
    assert paths(page) == [f"optimizer.state[model.layers[{index}].bias]['exp_avg_sq']" for index in range(3)]
    assert page.locator("#count").inner_text() == f"3 of {counted(len(plan.inventory.tensors), 'tensor')}"
    page.fill("#search", "stays")
    assert all("step" in path for path in paths(page))
    page.fill("#search", "no such thing")
    assert paths(page) == []
    page.fill("#search", "")
    page.select_option("#only", "shared")
    assert paths(page) == [f"model.caches[{index}]" for index in range(4)]


def test_columns_sort_both_ways_and_back(show, plan):
    page = show(plan)
    nbytes = {str(slot.path): slot.nbytes for slot in plan.inventory.tensors}
    unsorted = paths(page)
    header = page.locator("#columns").get_by_role("button", name="bytes")
    header.click()
    down = [nbytes[path] for path in paths(page)]
    assert down == sorted(nbytes.values(), reverse=True)[: len(down)]
    assert page.locator("[aria-sort=descending]").inner_text().startswith("bytes")
    header.click()
    up = [nbytes[path] for path in paths(page)]
    assert up == sorted(nbytes.values())[: len(up)]
    header.click()
    assert paths(page) == unsorted


def test_before_and_after_have_the_colors_of_the_devices(show, plan):
    page = show(plan)
    bar = page.locator("#totals table").first
    assert page.locator("#sides [aria-pressed=true]").inner_text() == "after"
    assert page.locator("#map .cell.d1").count()
    assert bar.locator("tr").all_inner_texts()[1].split("\t")[0] == "twin:0"
    assert readable_bytes(plan.nbytes) in bar.locator("tr").nth(1).inner_text()
    page.locator("#sides").get_by_role("button", name="before").click()
    assert page.locator("#sides [aria-pressed=true]").inner_text() == "before"
    assert page.locator("#map .cell.d0").count()
    assert not page.locator("#map .cell.d1").count()
    assert readable_bytes(plan.inventory.nbytes) in bar.locator("tr").nth(0).inner_text()


def test_tensors_that_share_a_storage_light_up_and_are_linked(show, plan):
    page = show(plan)
    cell(page, "model").click()
    cell(page, "caches").click()
    page.locator("#map [role=treeitem]").first.hover()
    wait_for_lit(page, "#map", 4)
    page.locator("h1").hover()
    wait_for_lit(page, "#map", 0)
    page.fill("#search", "caches")
    page.locator("#rows-inside .row").nth(2).hover()
    wait_for_lit(page, "#rows-inside", 4)
    wait_for_lit(page, "#map", 4)
    page.locator("#rows-inside .row").nth(2).click()
    details = page.locator("#details")
    assert "Shares its storage with 3 tensors" in details.inner_text()
    details.get_by_role("button", name="model.caches[0]").click()
    assert details.locator("h3").inner_text() == "model.caches[0]"
    assert page.locator("#map .selected").count() == 1


def test_what_is_hidden_in_a_part_lights_that_part_up(show):
    state = {"large": torch.zeros(100_000), "parts": [*torch.zeros(4, 500)]}
    page = show(tm.survey(state))
    page.fill("#search", "parts")
    page.locator("#rows-inside .row").nth(0).hover()
    wait_for_lit(page, "#rows-inside", 4)
    wait_for_lit(page, "#map", 1)


def test_a_printed_path_fetches_its_tensor(show):
    model = Model()
    page = show(tm.verify(model, on="twin:0"))
    page.locator(".points summary").click()
    page.get_by_role("button", name="model.table").click()
    assert page.locator("#details h3").inner_text() == "model.table"
    page.get_by_role("button", name="model.device").click()  # no tensor: its holder's are found
    assert page.input_value("#search") == "model"
    assert paths(page)


def test_a_tied_weight_says_its_other_name(show, plan):
    page = show(plan)
    page.fill("#search", "words.weight parameter")
    page.locator("#rows-inside .row").first.click()
    assert "model.head.weight" in page.locator("#details").inner_text()


def test_the_list_is_gone_through_by_keyboard(show, plan):
    page = show(plan)
    page.locator("#rows").focus()
    page.keyboard.press("End")
    last = str(plan.inventory.tensors[len(plan.inventory.tensors) - 1].path)
    active = page.locator(f"#{page.locator('#rows').get_attribute('aria-activedescendant')}")
    assert "".join(active.locator(".path span").all_inner_texts()) == last
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert page.locator("#details h3").inner_text() == last


# The least contrast of any text with what is behind it; eight cells are given the colours of eight devices.
CONTRAST = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const numbers = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const linear = (value) => (value /= 255) <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const luminance = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const behind = (at) => {
    const colour = numbers(getComputedStyle(at).backgroundColor);
    return colour[3] === 255 ? colour : behind(at.parentElement);
  };
  const cells = [...document.querySelectorAll("#map .cell.closed")].slice(0, 8);
  cells.forEach((cell, index) => { cell.className = `cell closed d${index}`; });
  const found = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = walk.nextNode()); ) {
    const at = node.parentElement;
    if (!node.data.trim() || !at.checkVisibility() || at.closest("script, style, option")) continue;
    const both = [numbers(getComputedStyle(at).color), behind(at)].map(luminance).sort((one, other) => other - one);
    found.push([(both[0] + 0.05) / (both[1] + 0.05), `${at.tagName}.${at.className}`, node.data.slice(0, 30)]);
  }
  found.sort((one, other) => one[0] - other[0]);
  return { cells: cells.length, least: found[0], many: found.length };
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_words_can_be_read_on_their_background(show, scheme):
    """WCAG AA, on every device's colour."""
    page = show(hostile_plan(), color_scheme=scheme)
    cases = [page.evaluate(CONTRAST)]
    page = show(tm.plan(*in_mid_training(), to="twin:0"), color_scheme=scheme)
    cases.append(page.evaluate(CONTRAST))
    assert cases[1]["cells"] == 8
    for case in cases:
        assert case["many"] > 20
        assert case["least"][0] >= 4.5, case["least"]


def test_light_and_dark_follow_the_system_and_the_button(show, plan):
    background = "getComputedStyle(document.body).backgroundColor"
    page = show(plan, color_scheme="dark")
    dark = page.evaluate(background)
    page.locator("#theme").click()
    light = page.evaluate(background)
    assert light != dark
    assert page.locator("#theme").get_attribute("aria-label") == "Switch to dark colors"
    assert show(plan, color_scheme="light").evaluate(background) == light
    page.locator("#theme").click()
    assert page.evaluate(background) == dark


def test_a_phone_needs_no_scrolling_sideways(show, plan):
    nouns = [plan, tm.move(*in_mid_training(), to="twin:0"), hostile_plan(), *nouns_without_a_state().values()]
    for noun in nouns:
        page = show(noun, width=390, is_mobile=True, has_touch=True)
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        assert page.evaluate("document.body.scrollWidth") == 390


def test_hostile_names_do_nothing(show):
    page = show(hostile_plan())
    assert HOSTILE in page.locator("h1").inner_text()
    page.locator("#map [role=treeitem][tabindex='0']").focus()
    for key in ("Enter", "Enter", "Enter", "Escape", "Enter"):
        page.keyboard.press(key)
    page.get_by_text("As a table").click()
    page.fill("#search", HOSTILE)
    assert paths(page)
    page.locator("#rows-inside .row").first.click()
    for find in page.locator(".points .find").all():
        find.click()
    assert page.evaluate("window.hurt") is None
    assert page.locator("img, #map b, main script").count() == 0


def test_fifty_thousand_tensors_open_and_can_be_used(show):
    plan = planned(50_000)
    page = show(plan)
    total = len(plan.inventory.tensors)
    assert total == 50_000
    assert page.locator("#rows-inside .row").count() < 100
    assert page.locator("#map .cell").count() < 2000
    assert page.locator("#rows").get_attribute("aria-rowcount") == "50001"
    page.locator("#rows").focus()
    page.keyboard.press("End")
    assert str(plan.inventory.tensors[total - 1].path) in paths(page)
    page.fill("#search", "model[4999].weight grad")
    assert paths(page) == ["model[4999].weight.grad"]
    page.locator("#rows-inside .row").click()  # the map goes down through the runs that have it
    assert page.locator("#map .selected").count() == 1
    assert any(" to " in crumb for crumb in crumbs(page))


@pytest.mark.parametrize("make", ZOO.values(), ids=ZOO)
def test_the_page_of_every_state_of_the_zoo_opens(make, show):
    inventory = tm.survey(*make().objects)
    page = show(inventory)
    if inventory.tensors:
        assert page.locator("html[data-ready]").count() == 1
        assert page.locator("#count").inner_text() == counted(len(inventory.tensors), "tensor")


def test_without_scripts_all_but_the_map_and_the_list_can_be_read(show):
    page = show(tm.verify(Model(), on="twin:0"), java_script_enabled=False)
    assert page.locator("#map, #rows, #theme").filter(visible=True).count() == 0
    words = page.locator("main").inner_text()
    assert "PROBLEMS (13)" in words.upper()
    assert "Largest tensors" in words
    assert "model.words.weight" in words
    page.locator(".points summary").click()  # what is folded opens
    assert page.get_by_text("model.table", exact=True).first.is_visible()


def test_a_notebook_runs_the_page_in_its_frame(show, plan):
    page = show(f"<!doctype html><title>notebook</title><body>{plan._repr_html_()}</body>")
    frame = page.frame_locator("iframe")
    frame.locator("#map .cell").first.wait_for()
    assert frame.locator("h1").inner_text() == html.unescape(report(plan).page().title)
