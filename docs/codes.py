"""Write docs/codes.md from the table in torchmove.codes: python docs/codes.py"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torchmove.codes import FILES, FINDINGS, NOTES, REFUSALS, Code

PAGE = Path(__file__).with_suffix(".md")

# The heading of each part, the heads of its columns, and its rows.
PARTS: list[tuple[str, tuple[str, ...], Mapping[str, Code]]] = [
    (
        "Refusals: the state cannot move as asked, and nothing was touched",
        ("code", "what stands in the way", "what to do"),
        REFUSALS,
    ),
    (
        "Refusals of checkpoint files: the file is not sound, or cannot be written as asked, and nothing was written",
        ("code", "what stands in the way", "what to do"),
        FILES,
    ),
    ("Notes: worth knowing, not in the way", ("code", "what"), NOTES),
    (
        "Findings: verify found something that is not as it should be",
        ("code", "what", "what to do"),
        FINDINGS,
    ),
]


def page() -> str:
    head = "# Codes\n\nEvery refusal, note and finding has a code. Codes are never used for anything else.\n"
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
