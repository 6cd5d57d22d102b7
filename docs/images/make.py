"""The pictures of docs/reports.md: a transformer in mid-training, planned to a GPU and moved to what this machine has.

    python docs/images/make.py

Needs Chromium and `pip install -e '.[browser]'`. Planning touches no device, so that the plan needs no GPU.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

import torch
from playwright.sync_api import Page, sync_playwright
from torch import nn

import torchmove as tm
from torchmove.chain import plan_for

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "examples"))
from second_device import second_device  # noqa: E402

WIDTH, WORDS, LAYERS = 192, 6000, 6
FREE_BYTES = 23 << 30


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.mlp = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        normed = self.norm(x)
        x = x + self.attention(normed, normed, normed, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(x)


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.device = torch.device("cpu")  # remembered, and out of date after a move
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight  # tied
        self.mask = torch.triu(torch.full((512, 512), float("-inf")), 1)  # never registered
        cache = torch.zeros(2 * LAYERS, 512, WIDTH)
        self.caches = list(cache)  # views of one piece of memory

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x, length = self.words(tokens), tokens.shape[1]
        for block in self.blocks:
            x = block(x, self.mask[:length, :length])
        return self.head(x)


def in_mid_training() -> tuple[nn.Module, torch.optim.Optimizer, nn.Module]:
    torch.manual_seed(0)
    model = Language()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(0, WORDS, (2, 32))
    nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
    optimizer.step()
    return model, optimizer, torch.optim.swa_utils.AveragedModel(model)


def chromium() -> str | None:
    """Where there is none of the system's, playwright's own is taken."""
    return os.environ.get("CHROMIUM") or shutil.which("chromium")


def taken(page: Page, html: str, name: str, opened: str, over: str) -> None:
    """With all that is under a name opened, if one is given, and the pointer over a cell of the map."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.html"
        path.write_text(html, encoding="utf-8")
        page.goto(path.as_uri())
        page.locator("#sides button").last.click()
        if opened:
            page.locator("#map .cell > .name").get_by_text(opened, exact=True).first.click()
        page.locator("#map .cell > .name").get_by_text(over, exact=True).last.hover()
        page.evaluate("scrollTo(0, 0)")
        page.screenshot(path=HERE / name)


def main() -> None:
    model, optimizer, average = in_mid_training()
    state = {"model": model, "optimizer": optimizer, "average": average}
    planned = plan_for(state, torch.device("cuda:0"), [average], lambda device: FREE_BYTES)
    best = model.state_dict()["blocks.0.norm.bias"]  # looks at the old memory still
    moved = tm.move(model, optimizer, average, to=second_device(), keep=[average])
    del best
    desktop, phone = {"viewport": {"width": 1240, "height": 1400}}, {"viewport": {"width": 390, "height": 1180}}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        light, dark = browser.new_page(**desktop), browser.new_page(**desktop, color_scheme="dark")
        taken(light, planned.to_html(), "report-light.png", "", "mask")
        taken(dark, moved.to_html(), "report-dark.png", "model", "[11]")
        taken(browser.new_page(**phone, is_mobile=True), planned.to_html(), "report-phone.png", "", "exp_avg")
        browser.close()


if __name__ == "__main__":
    main()
