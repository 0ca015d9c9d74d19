"""Noise that holds up: the discrete Gaussian law, exactly, from the system's entropy.

Canonne, Kamath and Steinke (2020): rejection from the discrete Laplace law, in whole numbers alone.
Normal numbers in floating point give away what they were added to by their last bits, and whoever
knows a seed can take the noise off again: there is no seed.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np

from odcl._typing import Array, Bools, Ints

Entropy = Callable[[int], bytes]  # as many random bytes as asked for
MOST_SD = 2**26  # squares of 40 times as much are still whole numbers of 64 bits
_WORD = 2**64


def discrete_gaussian(sd: int, size: int, entropy: Entropy = os.urandom) -> Ints:
    """``size`` whole numbers z with probability proportional to exp(-z^2 / (2 sd^2))."""
    if not 1 <= sd <= MOST_SD:
        raise ValueError(f"Noise of standard deviation {sd:,}: 1 to {MOST_SD:,} are possible.")
    found, missing = np.zeros(size, np.int64), np.arange(size)
    while len(missing):
        z = _discrete_laplace(sd, len(missing), entropy)
        away = np.abs(z) - sd
        kept = _exponential_coins(away * away, 2 * sd * sd, entropy)
        found[missing[kept]] = z[kept]
        missing = missing[~kept]
    return found


def _discrete_laplace(scale: int, size: int, entropy: Entropy) -> Array:
    """Whole numbers z with probability proportional to exp(-|z| / scale)."""
    found, missing = np.zeros(size, np.int64), np.arange(size)
    while len(missing):
        n = len(missing)
        rest = _below(np.full(n, scale, np.uint64), entropy).astype(np.int64)
        kept = _exponential_coins(rest, scale, entropy)
        size_of = rest + scale * _runs(n, entropy)
        negative = _below(np.full(n, 2, np.uint64), entropy) == 1
        kept &= ~(negative & (size_of == 0))  # zero has no second sign
        found[missing[kept]] = np.where(negative, -size_of, size_of)[kept]
        missing = missing[~kept]
    return found


def _runs(size: int, entropy: Entropy) -> Array:
    """How often a coin of probability 1/e comes up before it does not, (size,)."""
    count, going = np.zeros(size, np.int64), np.arange(size)
    while len(going):
        going = going[_small_coins(np.ones(len(going), np.int64), 1, entropy)]
        count[going] += 1
    return count


def _exponential_coins(above: Array, below: int, entropy: Entropy) -> Bools:
    """Coins that come up with probability exp(-above / below), (n,)."""
    up: Bools = np.ones(len(above), np.bool_)
    whole = above // below
    for turn in range(int(whole.max(initial=0))):  # one coin of 1/e for each whole
        going = np.flatnonzero(up & (whole > turn))
        if not len(going):
            break
        up[going] = _small_coins(np.ones(len(going), np.int64), 1, entropy)
    going = np.flatnonzero(up)
    up[going] = _small_coins((above % below)[going], below, entropy)
    return up


def _small_coins(above: Array, below: int, entropy: Entropy) -> Bools:
    """The same for fractions up to one: coins of above / (k below) until one does not come up."""
    first, going, k = np.zeros(len(above), np.int64), np.arange(len(above)), 1
    while len(going):
        limit = np.full(len(going), below * k, np.uint64)
        going = going[_below(limit, entropy) < above[going].astype(np.uint64)]
        first[going] = k
        k += 1
    return np.asarray(first % 2 == 0)


def _below(limit: Array, entropy: Entropy) -> Array:
    """Whole numbers from 0 to below ``limit`` (n,), each as likely as the others."""
    found, missing = np.zeros(len(limit), np.uint64), np.arange(len(limit))
    while len(missing):
        drawn = np.frombuffer(entropy(8 * len(missing)), np.uint64)
        own = limit[missing]
        rest = (np.uint64(_WORD - 1) % own + np.uint64(1)) % own  # 2^64 modulo the limit
        fair = (rest == 0) | (drawn < np.uint64(0) - rest)
        found[missing[fair]] = (drawn % own)[fair]
        missing = missing[~fair]
    return found
