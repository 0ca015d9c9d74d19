"""Smallest integers that meet n / log n > ratio and T / log log T >= ratio, without rounding."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal, localcontext

from odcl.theory._domain import not_negative, whole


def smallest_n(ratio: float) -> int:
    """Smallest integer n >= 3 with n / log n > ratio (Theorem 1 asks both of n).

    n / log n falls up to e = 2.718 and grows from there, so that from 3 on a bisection is exact;
    the n = 2 that n / log n = 2.89 would allow is not in the theorem. ``ratio`` is 0 or larger, a
    right-hand side of :mod:`odcl.theory.conditions`; up to 3 / log 3 = 2.73 the answer is 3.
    """
    not_negative("ratio", ratio, "it is the right-hand side of a condition n / log n > ratio")
    return _first(3, lambda n: _reaches(n, ratio, logs=1))


def smallest_T(ratio: float, *, least: int = 16) -> int:
    """Smallest integer T >= least with T / log log T >= ratio (Lemma 7 and Theorem 2).

    T / log log T grows from 5.83 on. The paper asks for T >= 15, but its proof replaces
    log(log(T) / delta) by (1 + log(1 / delta)) log log T, which needs log log T >= 1, that is
    T >= e^e = 15.15: we start at 16. ``least`` is 6 or larger, ``ratio`` 0 or larger.
    """
    not_negative("ratio", ratio, "it is the right-hand side of a condition on T / log log T")
    why = "below 5.83 T / log log T falls, and there may be no smallest T"
    least = whole("least", least, why, least=6)
    return _first(least, lambda n: _reaches(n, ratio, logs=2))


def _first(least: int, holds: Callable[[int], bool]) -> int:
    """Smallest n >= least that holds, for a property that, once true, stays true."""
    high = least
    while not holds(high):
        high *= 2
    low = max(least, high // 2)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return high


def _reaches(n: int, ratio: float, *, logs: int) -> bool:
    """Whether n exceeds ratio times log n (or log log n), decided beyond doubt.

    In float64 neighbours n and n + 1 look alike from 1e15 on, and near a tie well before. Here
    digits are added until the gap is larger than its own rounding error. That ends, for log n is
    irrational and the two sides are never equal (nobody has proved it of log log n).
    """
    digits = 40
    while True:
        with localcontext(prec=digits):
            log = Decimal(n)
            for _ in range(logs):
                log = log.ln()
            gap = Decimal(n) - Decimal(float(ratio)) * log
            if abs(gap) > Decimal(n).scaleb(5 - digits):
                return gap > 0
        digits *= 2
