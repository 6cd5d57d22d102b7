"""The figures of speed.py as docs/performance.json, as tables in docs/performance.md, and as the plot beside them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from speed_plot import plot

from torchmove.formatting import readable_bytes
from torchmove.reporting.machine_reports import TITLES

Figures = Mapping[str, Any]
BEGIN, END = "<!-- speed -->", "<!-- /speed -->"


def write(figures: Figures, docs: Path) -> None:
    """Parts that were not measured this time keep the figures they have."""
    store = docs / "performance.json"
    known = json.loads(store.read_text()) if store.exists() else {}
    merged = {**known, **figures}
    page = replaced((docs / "performance.md").read_text(), tables(merged))
    store.write_text(json.dumps(merged, indent=1) + "\n")
    (docs / "performance.svg").write_text(plot(merged))
    (docs / "performance.md").write_text(page)


def replaced(page: str, part: str) -> str:
    """The page with the part between the two marks exchanged, and nothing else."""
    if page.count(BEGIN) != 1 or page.count(END) != 1 or page.index(BEGIN) > page.index(END):
        raise ValueError(f"the page needs {BEGIN} and {END}, once each and in this order")
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n{part}\n{END}{rest.split(END)[1]}"


def tables(figures: Figures) -> str:
    shown = "![Gigabytes a second, and seconds by size](performance.svg)"
    parts = [PARTS[name](figures[name]) for name in PARTS if name in figures]
    return "\n\n".join([shown, *parts])


def _transformer(part: Figures) -> str:
    device = part["device"]
    there, back = (part["extra_bytes"][leg] for leg in ("there", "back"))
    return _section(
        "A transformer with AdamW",
        f"{_size(part)} in {part['tensors']} tensors, in mid-training. {_measured(part, 'transformer')}",
        _ways(part, TITLES),
        f"Movers: {part['movers']['there']} to {device}, {part['movers']['back']} to the CPU. Peak memory beyond "
        f"the state, in the first moves of the process: {_extra(there)} on the way to {device}, {_extra(back)} on the "
        "way back. A thread read the resident memory of the host every 5 ms.",
    )


def _small(part: Figures) -> str:
    stages = part["us_a_tensor"]
    rows = [
        (stage, _digits(stages["there"][stage]), _digits(stages["back"].get(stage, 0))) for stage in stages["there"]
    ]
    names = {
        "usual": "`Module.to` and a loop over the state",
        "move": "`tm.move`",
        "usual_best": "`Module.to` and a loop over the state, at best",
        "move_best": "`tm.move`, at best",
    }
    return _section(
        "Many small tensors",
        f"{part['tensors']} tensors, {_size(part)} together: small linear layers with AdamW in mid-training. "
        f"{_measured(part, 'small')} Medians and best of {part['turns']} turns. The processor bounds this move, "
        "and other programs on a shared machine slow it down.",
        _ways(part, names),
        "The stages of `tm.move`, in microseconds per tensor, in the best of several turns:",
        _table(("stage", f"to {part['device']}", "to the CPU"), rows),
    )


def _sizes(part: Figures) -> str:
    rows = part["rows"]
    within = sum(leg for row in rows for leg in row["within"].values())
    return _section(
        "Move time by size",
        "Models without an optimizer, in one tensor and in eight; milliseconds, the best of several turns. "
        + _measured(part, "sizes"),
        _table(
            ("bytes", "tensors", f"`Module.to` {part['device']}", "`tm.move`", "`Module.to` cpu", "`tm.move`"),
            [(readable_bytes(row["bytes"]), row["tensors"], *_milliseconds(row)) for row in rows],
        ),
        f"`tm.move` takes no longer than 1.1 times `Module.to` and 2 ms in {within} of {2 * len(rows)} cases"
        + ("." if within == 2 * len(rows) else "; the others are marked with a *."),
    )


def _milliseconds(row: Figures) -> Iterable[str]:
    for leg, seconds in row["seconds"].items():
        yield _digits(seconds["usual"] * 1e3)
        yield _digits(seconds["move"] * 1e3) + ("" if row["within"][leg] else " *")


def _peers(part: Figures) -> str:
    names = {
        "usual": "`Module.to` and a loop over the state",
        "lightning": "Lightning: `Module.to`, `_optimizers_to_device`",
        "accelerate": "Accelerate: `Module.to`, `move_to_device`, `load_state_dict`",
        "move": "`tm.move`",
    }
    missing = [f"{name} {why}." for name, why in part["missing"].items()]
    return _section(
        "Other libraries",
        f"A transformer with AdamW in mid-training, {_size(part)}. {_measured(part, 'peers')}",
        _ways(part, names),
        *missing,
    )


def _digests(part: Figures) -> str:
    return _section(
        "Cost of verification",
        f"A transformer with AdamW in mid-training, {_size(part)}. {_measured(part, 'digests')}",
        _ways(part, {name: f'`verify="{name}"`' for name in ("quick", "bytes", "off")}, beside="quick"),
    )


def _park(part: Figures) -> str:
    seconds, nbytes, link = part["seconds"], part["device_bytes"], part["link_gb_per_second"]
    wakes = {name: f"wake {name}" for name in ("changed", "half changed", "unchanged")} | {"first": "first wake"}
    rows = [
        (name, *(cell for each in (name, wakes[name]) for cell in _rate(seconds[each], nbytes, link)))
        for name in ("first", "changed", "half changed", "unchanged")
    ]
    swaps = part["swap"]["seconds"]
    times = part["usual_seconds"] / seconds["first"]
    unchanged, half = (seconds[name] / seconds["changed"] for name in ("unchanged", "half changed"))
    return _section(
        "Parking",
        f"A transformer with AdamW in mid-training, {_size(part)}. {_measured(part, 'park')} `Module.to` and a loop "
        f"over the state took {_digits(part['usual_seconds'])} s to the CPU: the first park is {_digits(times)} times "
        f"as fast, pinning included. An unchanged state takes {unchanged:.1%} of the time of a changed one; with "
        f"{part['half_bytes'] / nbytes:.0%} of the bytes changed, {half:.0%}. GB/s are those of the whole state.",
        _table(("state", "park, s", "GB/s", "of the link", "wake, s", "GB/s", "of the link"), rows),
        f"Peak host memory beyond the state: {readable_bytes(part['host_bytes'] - nbytes)}. Of "
        f"{readable_bytes(nbytes)} the device got {readable_bytes(part['freed_bytes'])} back. After 20 more cycles the "
        f"host had {readable_bytes(max(0, part['grown_host_bytes']))} more in use, the device "
        f"{readable_bytes(max(0, part['grown_device_bytes']))}.",
        *_unchanged(part["unchanged_stages"]),
        *([_shards(part["shards"], seconds)] if "shards" in part else []),
        f"Two models of {part['swap']['bytes'] / 1e9:.0f} GB, one moved out and the other in, in seconds:",
        _table(
            ("", "one after the other", "`tm.swap`", "times as fast"),
            [
                (title, *map(_digits, (swaps[f"in turn{rest}"], swaps[f"at once{rest}"])), _digits(faster))
                for title, rest in (("the one moved out has changed", ""), ("it is unchanged", ", unchanged"))
                for faster in [swaps["in turn"] / swaps[f"at once{rest}"]]
            ],
        ),
    )


def _unchanged(stages: Figures) -> list[str]:
    rows = [(name, _digits(seconds * 1e3)) for name, seconds in stages.items()]
    said = "The stages of a park of an unchanged state, in milliseconds, best of several:"
    return [said, _table(("stage", "ms"), [*rows, ("total", _digits(sum(stages.values()) * 1e3))])]


def _shards(shards: Figures, seconds: Figures) -> str:
    said = ", ".join(f"{name} {shards[name] / seconds[name]:.2f}" for name in shards)
    return f"The same state sharded by FSDP on one rank takes, relative to the times above: {said}."


def _rate(seconds: float, nbytes: int, link: float | None) -> list[str]:
    rate = nbytes / seconds / 1e9
    return [_digits(seconds), _digits(rate), "" if link is None else f"{rate / link:.0%}"]


PARTS = {
    "transformer": _transformer,
    "small": _small,
    "sizes": _sizes,
    "peers": _peers,
    "digests": _digests,
    "park": _park,
}


# ---------------------------------------------------------------- pieces


def _section(title: str, *paragraphs: str) -> str:
    return "\n\n".join([f"### {title}", *paragraphs])


def _measured(part: Figures, name: str) -> str:
    return f"`python benchmarks/speed.py --parts {name}` on {part['machine']}, {part['date']}."


def _ways(part: Figures, titles: Mapping[str, str], beside: str = "`Module.to`") -> str:
    linked = "link" in part["ways"]
    columns = ["", *(column for to in (part["device"], "cpu") for column in _columns(to, beside, linked=linked))]
    rows = [
        (title, *(cell for leg in ("there", "back") for cell in _cells(name, part["ways"][name][leg], linked=linked)))
        for name, title in titles.items()
        if name in part["ways"]
    ]
    return _table(columns, rows)


def _columns(to: str, beside: str, *, linked: bool) -> list[str]:
    return [f"to {to}, s", "GB/s", f"x {beside}", *(["of the link"] if linked else [])]


def _cells(name: str, leg: Figures, *, linked: bool) -> list[str]:
    times, share = leg["times_as_fast"], leg["share_of_link"]
    seconds = "" if name == "link" else _digits(leg["seconds"])  # it carried other bytes
    figures = [seconds, _digits(leg["gb_per_second"]), "" if times is None else _digits(times)]
    return figures + ([f"{share:.0%}"] if linked else [])


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def _size(part: Figures) -> str:
    return f"{_digits(part['bytes'] / 1e9)} GB"


def _extra(extra: Figures) -> str:
    host, device = ("not known" if each is None else readable_bytes(each) for each in (extra["host"], extra["device"]))
    return f"{host} on the host and {device} on the device"


def _digits(number: float) -> str:
    """Three digits, and no exponent."""
    if number >= 100:
        return f"{number:.0f}"
    text = f"{number:#.3g}"
    return re.sub(r"\.$", "", f"{number:.6f}".rstrip("0")) if "e" in text else text
