"""Reasons to refuse a checkpoint. Inner code says why; whoever knows the file adds its name, once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from torchmove.errors import CheckpointRefused
from torchmove.planning.plan import Refusal

# What to do instead, where the reason itself does not say something better.
_REMEDIES = {
    "R060": "name a device that a checkpoint can be saved from: cpu, cuda:0",
    "R061": "look at the path, its permissions and the room on the disk",
    "R062": "name a file of torch.save, a .safetensors file, or the index of a sharded checkpoint",
    "R063": "load it with the function of torch that is for it, and torch.save the state_dict",
    "R064": "save a state_dict; or, if you trust the file, torch.serialization.add_safe_globals, in Python",
    "R065": "get the file again from where it was saved; it is not as it was written",
    "R066": "get the file again from where it was saved, and do not load this one",
    "R067": "do not load this file, unless you know who made it and why",
    "R068": "get the index again, and the files that it names, into one folder",
    "R069": "name another place",
    "R070": "use the checkpoint as it is",
    "R071": "load it yourself where it was saved, and torch.save a state_dict of it",
    "R072": "try again, while nobody writes to the file; if it stays so, the disk or the memory is faulty",
    "R073": "name a file, or for a folder a folder",
}


class Unfit(Exception):
    """One reason, not yet with the name of the file. `inside` says where in the file, if that is known."""

    def __init__(self, code: str, why: str, remedy: str = "", *, inside: str = "") -> None:
        super().__init__(why)
        self.code, self.why, self.remedy, self.inside = code, why, remedy or _REMEDIES[code], inside


@contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Whatever stands in the way in here is refused under the name of this file."""
    try:
        yield
    except Unfit as unfit:
        raise refused(path, unfit) from None
    except OSError as error:
        raise refused(path, Unfit("R061", error.strerror or type(error).__name__)) from error
    except (MemoryError, RecursionError) as error:
        raise refused(path, Unfit("R067", "it asks for more memory than there is, or for too deep a stack")) from error


def refused(path: str | os.PathLike[str], unfit: Unfit) -> CheckpointRefused:
    where = f"{in_a_line(os.fspath(path))} {unfit.inside}".rstrip()
    return CheckpointRefused([Refusal(unfit.code, where, in_a_line(unfit.why), unfit.remedy)])


def in_a_line(text: str, most: int = 300) -> str:
    """Names come from outside: no line breaks, no control characters, no end of pages."""
    clean = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text[: most + 1])
    return clean if len(clean) <= most else f"{clean[:most]}..."
