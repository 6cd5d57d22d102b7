"""Every architecture of torchvision and transformers, built small and without weights.

A configuration is shrunk by the names of its numbers, its parts too. What that does not fit is shrunk less and less:
each architecture has several tries, within a bound of time and memory, and the first that can be built is taken.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

os.environ["HF_HUB_OFFLINE"] = "1"  # nothing is downloaded


class Architecture(NamedTuple):
    """Its name, and the ways to build it, the smallest first."""

    name: str
    tries: list[Callable[[], nn.Module]]


class NotBuilt(Exception):
    """No try has led to a model; says why the last one did not."""


class OverTime(Exception):
    """It took too long."""


def build(architecture: Architecture, *, seconds: float, mib: int) -> nn.Module:
    why = "no class of it is known"
    for attempt in architecture.tries:
        try:
            with bounded(seconds, mib):
                return attempt()
        except OverTime:
            why = f"took longer than {seconds:g} s"
        except MemoryError:
            why = f"takes more than {mib} MiB"
        except Exception as error:  # whatever a library raises at numbers that do not fit together
            too_large = "allocate memory" in str(error)
            why = f"takes more than {mib} MiB" if too_large else f"{type(error).__name__}: {first_line(error)}"
    raise NotBuilt(why)


@contextlib.contextmanager
def bounded(seconds: float, mib: int) -> Iterator[None]:
    """Breaks off what takes too long or too much. Memory is what the process may map beyond what it has mapped."""

    def over(*_: object) -> None:
        raise OverTime

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGALRM, over)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (mib << 20), hard))
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, hard))
        signal.signal(signal.SIGALRM, before)


def first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), "")[:100]


# ---------------------------------------------------------------- torchvision


def of_torchvision() -> Iterator[Architecture]:
    from torchvision import models

    for family in (models, models.detection):
        for name in models.list_models(module=family):
            bare = {"weights_backbone": None} if family is models.detection else {}
            yield Architecture(f"torchvision {name}", [partial(models.get_model, name, **bare)])


# ---------------------------------------------------------------- transformers


def of_transformers() -> Iterator[Architecture]:
    """One for each type of model, with the head that it is trained with where it has one."""
    from transformers.models.auto import configuration_auto, modeling_auto

    kinds = [name for name in vars(modeling_auto) if name.startswith("MODEL_") and name.endswith("_MAPPING_NAMES")]
    kinds.sort(key=_preference)
    for model_type, config_name in configuration_auto.CONFIG_MAPPING_NAMES.items():
        found = [vars(modeling_auto)[kind].get(model_type) for kind in kinds]
        names = [name if isinstance(name, str) else name[0] for name in found if name]
        ways = [(names[0], _small), (names[0], _shallow), (names[0], _narrow), (names[-1], _small)] if names else []
        if ways:
            tries = [partial(_made, config_name, name, shrink) for name, shrink in ways]
            yield Architecture(f"transformers {model_type}", tries)


_TRAINED = (
    "CAUSAL_LM",
    "SEQ_TO_SEQ",
    "SPEECH_SEQ_2_SEQ",
    "MULTIMODAL_LM",
    "PRETRAINING",
    "MASKED_LM",
    "CTC",
    "DETECTION",
)


def _preference(kind: str) -> int:
    """Heads first, for they are tied; the bare model last but before the backbones and what is made of them."""
    ranks = [rank for rank, word in enumerate(_TRAINED) if word in kind]
    return ranks[0] if ranks else len(_TRAINED) + (kind == "MODEL_MAPPING_NAMES") + 2 * ("BACKBONE" in kind)


def _made(config_name: str, model_name: str, shrink: Callable[[Any], Any]) -> nn.Module:
    import transformers

    config = shrink(getattr(transformers, config_name)())
    return getattr(transformers, model_name)(config)  # type: ignore[no-any-return]


WIDTH, HEADS, LAYERS, WORDS, PLACES = 32, 2, 2, 128, 64

# What a number becomes, by the end of its name. The first that fits counts.
_SIZES: dict[str, int] = {
    "vocab_size": WORDS,
    "n_words": WORDS,
    "max_position_embeddings": PLACES,
    "n_positions": PLACES,
    "num_hidden_layers": LAYERS,
    "layers": LAYERS,
    "n_layer": LAYERS,
    "depth": LAYERS,
    "num_blocks": LAYERS,
    "key_value_heads": HEADS,
    "kv_heads": HEADS,
    "heads": HEADS,
    "n_head": HEADS,
    "head_dim": WIDTH // HEADS,
    "d_kv": WIDTH // HEADS,
    "hidden_size": WIDTH,
    "d_model": WIDTH,
    "n_embd": WIDTH,
    "embed_dim": WIDTH,
    "embedding_size": WIDTH,
    "emb_dim": WIDTH,
    "intermediate_size": 2 * WIDTH,
    "ffn_dim": 2 * WIDTH,
    "d_ff": 2 * WIDTH,
    "experts": 4,
    "num_queries": 8,
}
_AS_LONG_AS_A_LIST = {"num_feat_extract_layers"}
_DEEP = ("vocab_size", "layers", "n_layer", "depth", "experts")


def _small(config: Any) -> Any:
    return _shrunk(config, _SIZES)


def _shallow(config: Any) -> Any:
    """Widths stay: in some architectures they have to fit each other in ways of their own."""
    return _shrunk(config, {name: size for name, size in _SIZES.items() if name in _DEEP})


def _narrow(config: Any) -> Any:
    return _shrunk(config, {"vocab_size": WORDS})


def _shrunk(config: Any, sizes: dict[str, int]) -> Any:
    """The configuration made again, with only what changes said: what follows from that it works out anew."""
    changes: dict[str, Any] = {}
    for name, value in vars(config).items():
        if name in type(config).sub_configs and value is not None:
            changes[name] = _shrunk(value, sizes)
        elif type(value) is int and name not in _AS_LONG_AS_A_LIST:
            size = next((size for end, size in sizes.items() if name.endswith(end)), value)
            changes |= {name: size} if 0 < size < value else {}
            if name.endswith("token_id") and value >= WORDS:
                changes[name] = 0
    return type(config)(**changes)
