"""A number that shapes alone do not give. It can be added up, averaged and printed; a decision by it cannot be made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from torchmove.rehearsal.stage import CannotGoOn


class Guess(float):
    """Instead of `loss.item()`: one, to whatever is done with it, so that its reciprocal and its logarithm exist."""

    def __new__(cls, value: float = 1.0) -> Guess:
        return super().__new__(cls, value)

    def _decide(self, *_: object) -> NoReturn:
        raise CannotGoOn("this branch depends on a value that is not computed with shapes alone")

    __bool__ = __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = _decide
    __int__ = __round__ = __floor__ = __ceil__ = __trunc__ = _decide
    __hash__ = float.__hash__


def _calculating(name: str) -> Callable[..., Any]:
    calculate = getattr(float, name)

    def calculated(self: Guess, *others: Any) -> Any:
        try:
            found = calculate(float(self), *map(_plain, others))
        except ArithmeticError:  # a division by zero, which the real number may not be
            return Guess()
        return Guess(found) if type(found) is float else found

    return calculated


def _plain(each: Any) -> Any:
    return float(each) if isinstance(each, Guess) else each


for _name in ("add", "sub", "mul", "truediv", "pow", "mod", "floordiv"):
    for _side in ("", "r"):
        setattr(Guess, f"__{_side}{_name}__", _calculating(f"__{_side}{_name}__"))
for _name in ("neg", "pos", "abs"):
    setattr(Guess, f"__{_name}__", _calculating(f"__{_name}__"))
