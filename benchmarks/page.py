"""What a page costs: to make it, and to open it in Chromium until the map is drawn and the first rows are there.

    python benchmarks/page.py [--tensors 1000 50000] [--runs 5] [--json]

Each state is a model of small linear layers with gradients and AdamW in mid-training, planned to a GPU that need not be
there. Needs Chromium and `pip install -e '.[browser]'`. Best and worst of several runs; each opens a page of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from planning import planned, state
from playwright.sync_api import Browser, sync_playwright

# From the beginning of the navigation to the first frame after the page is ready, and a few things done by hand.
OPENED = """() => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(() => resolve({
  milliseconds: performance.now(),
  cells: document.querySelectorAll("#map .cell").length,
  rows: document.querySelectorAll("#rows-inside .row").length,
}))))"""
USED = """(work) => new Promise((resolve) => {
  const began = performance.now();
  if (work === "search") {
    const search = document.getElementById("search");
    search.value = "exp_avg 999";
    search.dispatchEvent(new Event("input"));
  } else if (work === "sort") document.querySelector("#columns button").click();
  else document.getElementById("rows").scrollTop = 400000;
  requestAnimationFrame(() => requestAnimationFrame(() => resolve(performance.now() - began)));
})"""


def measure(browser: Browser, tensors: int, runs: int) -> dict[str, Any]:
    plan = planned(*state(tensors))
    began = time.perf_counter()
    html = plan.to_html()
    making = time.perf_counter() - began
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        path.write_text(html, encoding="utf-8")
        seen = [opened(browser, path.as_uri()) for _ in range(runs)]
    return {
        "tensors": tensors,
        "to_html_seconds": making,
        "bytes": len(html.encode()),
        "open_seconds": [each["milliseconds"] / 1e3 for each in seen],
        "cells": seen[0]["cells"],
        "rows": seen[0]["rows"],
        **{f"{work}_seconds": min(each[work] for each in seen) / 1e3 for work in ("scroll", "sort", "search")},
    }


def opened(browser: Browser, address: str) -> dict[str, float]:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(address)
    page.wait_for_selector("html[data-ready]", state="attached")
    seen: dict[str, float] = page.evaluate(OPENED)
    seen |= {work: page.evaluate(USED, work) for work in ("scroll", "sort", "search")}
    page.close()
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tensors", type=int, nargs="+", default=[1_000, 50_000])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    with sync_playwright() as playwright:
        chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        rows = [measure(browser, tensors, options.runs) for tensors in options.tensors]
        browser.close()
    if options.json:
        print(json.dumps(rows))
        return
    print(
        f"{'tensors':>10} {'to_html':>9} {'size':>9} {'open, best, worst':>22} {'scroll':>8} {'sort':>8} {'search':>8}"
    )
    for row in rows:
        best, worst = min(row["open_seconds"]), max(row["open_seconds"])
        rest = " ".join(f"{row[f'{work}_seconds']:>6.2f} s" for work in ("scroll", "sort", "search"))
        print(
            f"{row['tensors']:>10} {row['to_html_seconds']:>7.2f} s {row['bytes'] / 1e6:>6.2f} MB "
            f"{best:>12.2f} s {worst:>5.2f} s {rest}"
        )


if __name__ == "__main__":
    main()
