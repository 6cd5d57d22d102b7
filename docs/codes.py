"""Write docs/codes.md from the table in torchmove.codes: python docs/codes.py"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torchmove.codes import FILES, FINDINGS, NOTES, REFUSALS, Code

PAGE = Path(__file__).with_suffix(".md")

# The heading, column headings and rows of each part.
PARTS: list[tuple[str, tuple[str, ...], Mapping[str, Code]]] = [
    (
        "Refusals: the state cannot move as requested; nothing was changed",
        ("code", "problem", "fix"),
        REFUSALS,
    ),
    (
        "Refusals of checkpoint files: the file is damaged, or cannot be written as requested; nothing was written",
        ("code", "problem", "fix"),
        FILES,
    ),
    ("Notes: they do not prevent a move", ("code", "note"), NOTES),
    (
        "Findings: problems that verify found",
        ("code", "problem", "fix"),
        FINDINGS,
    ),
]


def page() -> str:
    head = "# Codes\n\nEvery refusal, note and finding has a code. A code never changes its meaning.\n"
    return "\n".join([head, *(part(*each) for each in PARTS)])


def part(title: str, columns: tuple[str, ...], rows: Mapping[str, Code]) -> str:
    cells = [(anchored(code), *text)[: len(columns)] for code, text in sorted(rows.items())]
    return f"## {title}\n\n" + "".join(map(line, [columns, ("---",) * len(columns), *cells]))


def anchored(code: str) -> str:
    return f'<a id="{code}"></a>{code}'


def line(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |\n"


if __name__ == "__main__":
    PAGE.write_text(page())
    print(f"{PAGE.name}: {sum(len(rows) for _, _, rows in PARTS)} codes")
