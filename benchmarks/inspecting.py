"""What it costs to look into a large checkpoint: seconds and peak memory of a fresh process.

    python benchmarks/inspecting.py [--gigabytes 20] [--tensors 1000] [--folder /tmp] [--json]

torch.save itself writes the file, from tensors without memory, with a hole for each tensor's data: it takes next to no
room on the disk. The process is a new Python that imports torch and torchmove, inspects the file and turns what it
found into JSON. `import` is what it had cost until then.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch._subclasses import FakeTensorMode

INSPECT = """
import json, re, sys, time

def peak_mib():  # getrusage would count the process that started this one
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024

begin = time.perf_counter()
from torchmove.checkpoints import inspect
imported, imported_mib = time.perf_counter() - begin, peak_mib()
begin = time.perf_counter()
contents = inspect(sys.argv[1])
inspected = time.perf_counter() - begin
length = len(contents.to_json())
print(json.dumps({
    "import_seconds": imported,
    "import_mib": imported_mib,
    "inspect_seconds": inspected,
    "peak_mib": peak_mib(),
    "tensors": len(contents.entries),
    "bytes": contents.nbytes,
    "devices": contents.devices(),
}))
"""


def write(path: Path, nbytes: int, tensors: int) -> None:
    """A model and its AdamW state, on a GPU that need not be there."""
    each = nbytes // tensors // 4
    with FakeTensorMode(), torch.serialization.skip_data(materialize_fake_tensors=True):
        layers = range(tensors // 3)
        model = {f"layers.{layer}.weight": torch.empty(each, device="cuda") for layer in layers}
        state = {
            layer: {name: torch.empty(each, device="cuda") for name in ("exp_avg", "exp_avg_sq")} for layer in layers
        }
        groups = [{"lr": 1e-3, "params": list(layers)}]
        torch.save({"model": model, "optimizer": {"state": state, "param_groups": groups}}, path)


def measure(path: Path) -> dict[str, Any]:
    command = [sys.executable, "-c", INSPECT, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=20)
    parser.add_argument("--tensors", type=int, default=1_000)
    parser.add_argument("--folder", help="where the file is made for a while")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder) / "checkpoint.pt"
        write(path, int(options.gigabytes * 1e9), options.tensors)
        on_disk = os.stat(path).st_blocks * 512
        found = {"file_bytes": path.stat().st_size, "on_disk_bytes": on_disk, **measure(path)}
    if options.json:
        print(json.dumps(found))
        return
    print(f"{found['file_bytes'] / 1e9:.1f} GB in {found['tensors']} tensors on {', '.join(found['devices'])}")
    print(f"import   {found['import_seconds']:.2f} s, {found['import_mib']:.0f} MiB")
    print(f"inspect  {found['inspect_seconds']:.2f} s, peak {found['peak_mib']:.0f} MiB of the whole process")


if __name__ == "__main__":
    main()
