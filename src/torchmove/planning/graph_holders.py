"""Who holds a graph that prevents a move (R033): the variables, attributes and items that lead to its results."""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from torch import Tensor

from torchmove.formatting import counted, listed
from torchmove.internals.graphs import ends_of_live_graphs
from torchmove.internals.guards import plain_torch
from torchmove.planning.plan import Plan, Refusal
from torchmove.surveying.paths import ATTRIBUTE, ITEM
from torchmove.surveying.variables import SHELL, Variable, find_variables


@plain_torch
def with_graph_holders(plan: Plan) -> Plan:
    """The plan, with refusals that name what holds the graphs, as far as the variables of the program lead to it."""
    found = [each for each in plan.inventory.diagnostics if each.diagnostic.code == "R033"]
    leaves = {id(each.subject): each for each in found if issubclass(type(each.subject), Tensor)}
    if not leaves or not any(refusal.code == "R033" for refusal in plan.refusals):
        return plan
    with suppress(Exception):  # the names are only information
        holders = _holders([each.subject for each in leaves.values()], plan)
        if holders:
            paths = {str(each.path) for each in leaves.values()}
            return replace(plan, refusals=tuple(_naming(each, holders, paths) for each in plan.refusals))
    return plan


def _naming(refusal: Refusal, holders: Sequence[Variable], paths: set[str]) -> Refusal:
    if refusal.code != "R033" or refusal.path not in paths:
        return refusal
    why = f"a forward pass has used it and its graph can still run backward, held by {listed([*_names(holders)])}"
    return refusal._replace(why=why, remedy=f"{'; '.join(_deletions(holders))}, or call backward() first")


def _holders(leaves: Sequence[Tensor], plan: Plan) -> list[Variable]:
    ends = {id(each) for each in ends_of_live_graphs(leaves)}
    found = list(
        find_variables(lambda kind: issubclass(kind, Tensor), lambda value: id(value) in ends, plan.inventory.holders)
    )
    # A notebook keeps its results in several places of its own, to which the calls around the cell lead too.
    results = {id(each.value) for each in found if _is_result(each)}
    return [each for each in found if id(each.value) not in results or _is_result(each) or _is_users(each)]


def _is_users(variable: Variable) -> bool:
    return not variable.where and _root(variable) != "get_ipython"


# ---------------------------------------------------------------- names

# What a shell keeps of the results of earlier lines; in a notebook as Out[8], _8 and _.
_RESULT = re.compile(r"_{1,3}|_\d+|Out|_oh")


def _is_result(variable: Variable) -> bool:
    return _RESULT.fullmatch(_root(variable)) is not None


def _root(variable: Variable) -> str:
    return str(next(variable.path.steps()).what)


def _names(holders: Sequence[Variable]) -> Iterator[str]:
    """The name of each, and one for all in the same container."""
    inside: defaultdict[tuple[int, str], list[Variable]] = defaultdict(list)
    for each in holders:
        inside[id(each.holder) if _is_container(each) else id(each), each.where].append(each)
    for first, *others in inside.values():
        where = f" in {first.where}" if first.where else ""
        yield f"{first.path.before}{where} ({counted(len(others) + 1, 'tensor')})" if others else str(first)


def _is_container(variable: Variable) -> bool:
    return issubclass(type(variable.holder), (list, tuple, dict, set, deque))


def _deletions(holders: Sequence[Variable]) -> list[str]:
    """The lines that delete them."""
    by_place: defaultdict[str, list[Variable]] = defaultdict(list)
    for each in holders:
        by_place[each.where].append(each)
    lines: list[str] = []
    for where, some in by_place.items():
        own = [*dict.fromkeys(map(_deleted, (each for each in some if not _is_result(each))))]
        deleted = [name for name in own if not name.endswith(_CLEAR)]
        line = [f"del {', '.join(deleted)}"] if deleted else []
        line += [name for name in own if name.endswith(_CLEAR)]
        if any(map(_is_result, some)):
            line.append(_FORGET if where != SHELL else "import builtins; del builtins._")
        lines.append("; ".join(line) + (f" in {where}" if where not in ("", SHELL) else ""))
    return lines


_CLEAR = ".clear()"
# `%reset -f out` alone leaves what IPython keeps of `_`.
_FORGET = "get_ipython().displayhook.flush(); get_ipython().user_ns_hidden.update(_='', __='', ___='')"


def _deleted(variable: Variable) -> str:
    """What `del` deletes, or the call that clears the container."""
    path, kind = variable.path, type(variable.holder)
    if issubclass(kind, (list, set, deque)):
        return f"{path.before}{_CLEAR}"
    if path.before is None or (path.how in (ATTRIBUTE, ITEM) and not issubclass(kind, tuple)):
        return str(path)
    return str(path.before)
