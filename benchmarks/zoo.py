"""Move every architecture there is: away and back, in mid-training, and look whether it is the same.

    python benchmarks/zoo.py [--device twin|cuda] [--only PATTERN] [--seconds 20] [--mib 6144] [--jobs 1] [--json]

All classification and detection models of torchvision and every type of model of transformers that can be built small,
without weights and without a download; AdamW has made a step. Each goes to the device and back. Bits, objects and
sharing are compared with what they were. Then `.to()` takes the model there, and what it misses is counted.

`twin` is the second device of the tests, in ordinary memory. Needs `make test-ecosystem`'s environment.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import gc
import itertools
import json
import logging
import subprocess
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from zoo_built import Architecture, NotBuilt, build, first_line, of_torchvision, of_transformers
from zoo_missed import KINDS, STATE, missed, storage_of

import torchmove as tm

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
TRAINED_BYTES = 1 << 26  # of parameters; the optimizer of a larger model trains only so much of it


class Visit(NamedTuple):
    """How it went: built or not, moved, refused or failed, and why; and what `.to()` missed."""

    name: str
    outcome: str
    why: str = ""
    parameters: int = 0
    misses: dict[str, list[str]] = {}  # noqa: RUF012  it is never changed

    @property
    def library(self) -> str:
        return self.name.split()[0]


# ---------------------------------------------------------------- one architecture


def visit(architecture: Architecture, device: torch.device, *, seconds: float, mib: int) -> Visit:
    torch.manual_seed(0)
    try:
        model = build(architecture, seconds=seconds, mib=mib)
    except NotBuilt as error:
        return Visit(architecture.name, "not built", str(error))
    size = sum(parameter.numel() for parameter in model.parameters())
    try:
        optimizer = in_mid_training(model)
        before = Portrait.of(model, optimizer)
        for to in (device, torch.device("cpu")):
            tm.move(model, optimizer, to=to, progress=False)
            wrong = before.differs(model, optimizer, to)
            if wrong:
                return Visit(architecture.name, "failed", wrong, size)
        return Visit(architecture.name, "moved", parameters=size, misses=missed(model, optimizer, device))
    except tm.MoveRefused as error:
        codes = sorted({refusal.code for refusal in error.refusals})
        return Visit(architecture.name, "refused", f"{' '.join(codes)}: {error.refusals[0]}", size)
    except Exception as error:  # it is what this is looking for
        return Visit(architecture.name, "failed", f"{type(error).__name__}: {first_line(error)}", size)


def in_mid_training(model: nn.Module) -> Optimizer:
    """A step has been made, and gradients are there."""
    room, trained = TRAINED_BYTES, []
    for parameter in model.parameters():
        room -= parameter.nbytes
        if parameter.requires_grad and parameter.is_floating_point() and room >= 0:
            parameter.grad = torch.full_like(parameter, 0.01)
            trained.append(parameter)
    optimizer = AdamW(trained or [nn.Parameter(torch.zeros(1))])
    optimizer.step()
    return optimizer


class Portrait(NamedTuple):
    """What must stay, of all that the model and the optimizer show: torchmove's survey is not asked."""

    tensors: dict[str, Tensor]
    copies: dict[int, Tensor]  # of each, by its id
    sharing: frozenset[frozenset[str]]

    @classmethod
    def of(cls, model: nn.Module, optimizer: Optimizer) -> Portrait:
        tensors = dict(shown(model, optimizer))
        copies = {id(tensor): bits(tensor).clone() for tensor in tensors.values()}
        return cls(tensors, copies, sharing_of(model, tensors))

    def differs(self, model: nn.Module, optimizer: Optimizer, device: torch.device) -> str:
        """What is no longer so, now that it should be on a device; nothing, if all is well."""
        now = dict(shown(model, optimizer))
        for name, tensor in now.items():
            if self.tensors.get(name) is not tensor:
                return f"{name} is another object"
            if not torch.equal(bits(tensor), self.copies[id(tensor)]):
                return f"the bits of {name} changed on the way to {device}"
            if tensor.device != device and not name.endswith(" step"):
                return f"{name} is on {tensor.device}, not on {device}"
        same = now.keys() == self.tensors.keys() and sharing_of(model, now) == self.sharing
        return "" if same else f"what shares memory changed on the way to {device}"


def shown(model: nn.Module, optimizer: Optimizer) -> Iterator[tuple[str, Tensor]]:
    for name, parameter in model.named_parameters(remove_duplicate=False):
        yield name, parameter
        if parameter.grad is not None:
            yield f"{name} grad", parameter.grad
    yield from model.named_buffers(remove_duplicate=False)
    for index, state in enumerate(optimizer.state.values()):
        yield from ((f"{index} {key}", value) for key, value in state.items())


def sharing_of(model: nn.Module, tensors: dict[str, Tensor]) -> frozenset[frozenset[str]]:
    """The names that share a storage. On CUDA recurrent modules make their weights one piece, and shall."""
    recurrent = {
        id(each) for module in model.modules() if isinstance(module, nn.RNNBase) for each in module.parameters()
    }
    sharing: defaultdict[int, set[str]] = defaultdict(set)
    for name, tensor in tensors.items():
        if id(tensor) not in recurrent:
            sharing[storage_of(tensor)].add(name)
    return frozenset(map(frozenset, sharing.values()))


def bits(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8)


# ---------------------------------------------------------------- all of them


def print_visits(visits: list[Visit], device: str) -> None:
    for library in dict.fromkeys(each.library for each in visits):
        mine = [each for each in visits if each.library == library]
        outcomes = Counter(each.outcome for each in mine)
        moved = [each for each in mine if each.outcome == "moved"]
        print(f"\n{library}: {len(mine)} architectures, {len(mine) - outcomes['not built']} built")
        print(f"  moved to {device} and back, bit for bit: {outcomes['moved']}")
        print(f"  refused: {outcomes['refused']}   failed: {outcomes['failed']}   not built: {outcomes['not built']}")
        more = [each for each in moved if each.misses.keys() - {STATE}]
        print(f"  hold something besides the optimizer's state that .to() misses: {len(more)} of {len(moved)}")
        for kind in KINDS:
            those = [each for each in moved if kind in each.misses]
            print(f"    {kind}: {len(those)}" + "".join(f"\n      {_example(each, kind)}" for each in those[:3]))
    for outcome in ("refused", "failed", "not built"):
        those = [each for each in visits if each.outcome == outcome]
        print(f"\n{outcome}: {len(those)}", *(f"  {each.name}: {each.why}" for each in those), sep="\n")


def _example(each: Visit, kind: str) -> str:
    paths = each.misses[kind]
    return f"{each.name.split(maxsplit=1)[1]}: {paths[0]}" + (f" and {len(paths) - 1} more" if len(paths) > 1 else "")


def ready(name: str) -> torch.device:
    """The device; and libraries that keep quiet about weights that nobody wants to train."""
    from ecosystem.vision import make_importable

    make_importable()
    torch.set_num_threads(1)  # it is many small things
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    if name == "twin":
        from twin import install

        install()
    return torch.device(name, 0)


def all_visits(options: argparse.Namespace, device: torch.device) -> Iterator[Visit]:
    every = (each for each in (*of_torchvision(), *of_transformers()) if fnmatch.fnmatch(each.name, options.only))
    for architecture in itertools.islice(every, options.share, None, options.jobs):
        yield visit(architecture, device, seconds=options.seconds, mib=options.mib)
        gc.collect()


def shared_out(jobs: int) -> Iterator[Visit]:
    """The work of as many processes: each takes its share of the architectures and prints it as JSON."""
    command = [sys.executable, *sys.argv, "--json", "--share"]
    processes = [subprocess.Popen([*command, str(share)], stdout=subprocess.PIPE) for share in range(jobs)]
    for process in processes:
        told, _ = process.communicate()
        yield from (Visit(**each) for each in json.loads(told))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="twin", help="twin, or cuda")
    parser.add_argument("--only", default="*", help="names like this: 'transformers gpt*'")
    parser.add_argument("--seconds", type=float, default=20, help="to build one")
    parser.add_argument("--mib", type=int, default=6144, help="of memory to build one")
    parser.add_argument("--jobs", type=int, default=1, help="so many processes at once")
    parser.add_argument("--share", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    visits: list[Visit] = []
    # Ctrl-C: what there is so far. And what libraries print is no part of the answer.
    with contextlib.suppress(KeyboardInterrupt), contextlib.redirect_stdout(sys.stderr):
        if options.jobs > 1 and options.share is None:
            found = shared_out(options.jobs)
        else:
            options.share = options.share or 0
            found = all_visits(options, ready(options.device))
        for each in found:
            visits.append(each)
            print(f"\r{len(visits)} {each.name[:60]:60}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    if options.json:
        print(json.dumps([each._asdict() for each in visits]))
    else:
        print_visits(visits, options.device)
    return int(any(each.outcome == "failed" for each in visits))


if __name__ == "__main__":
    sys.exit(main())
