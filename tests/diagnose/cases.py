"""Federations whose truth is known, with the advice that they deserve."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

import odcl
from odcl import KMeansPP, Method, Risk
from odcl.data.synthetic import SyntheticFederation
from tests.helpers import logistic_labels, offsets_of

SEEDS = range(100, 105)  # of the verdicts; thresholds were set on other seeds


def simplex(k: int, dim: int) -> np.ndarray:
    """Points all at distance 1 from one another, (k, dim); k <= dim + 1."""
    if k == 1:
        return np.eye(1, dim)
    corners = (np.eye(k) - 1 / k) / np.sqrt(2)
    return np.pad(corners @ np.linalg.svd(corners)[2][: k - 1].T, ((0, 0), (0, dim - k + 1)))


@dataclass(frozen=True)
class Case:
    """Groups ``distance`` apart in every pair, users of a group differing by ``tau``."""

    advice: str
    sizes: tuple[int, ...]
    dim: int
    distance: float
    n: int | tuple[int, int]  # rows of every user, or of seven users in ten and of the others
    tau: float = 0.0
    loss: str = "squared"
    l2: float = 0.0
    method: dict[str, Any] = field(default_factory=dict)

    @property
    def risk(self) -> Risk:
        return Risk(self.loss, self.l2)

    def federation(self, seed: int, n: int | None = None) -> SyntheticFederation:
        rng = np.random.default_rng(seed)
        groups = np.repeat(np.arange(len(self.sizes)), self.sizes)
        m, dim = len(groups), self.dim
        turn = np.linalg.qr(rng.standard_normal((dim, dim)))[0]
        centers = self.distance * simplex(len(self.sizes), dim) @ turn + rng.standard_normal(dim)
        optima = centers[groups] + self.tau * rng.standard_normal((m, dim))
        rows = n or self.n
        if isinstance(rows, tuple):
            counts = rng.choice(rows, size=m, p=[0.7, 0.3])
        else:
            counts = np.full(m, rows)
        X = rng.standard_normal((counts.sum(), dim))
        z = (X * np.repeat(optima, counts, axis=0)).sum(axis=1)
        classes = self.loss == "logistic"
        y = logistic_labels(z, rng) if classes else z + rng.standard_normal(len(z))
        offsets = offsets_of(counts)
        return SyntheticFederation(X, y, offsets, np.arange(m), groups=groups, optima=optima)

    def result(self, seed: int, **more: Any) -> Any:
        return odcl.fit(self.federation(seed), self.risk, Method(**self.method | more))

    def diagnosed(self, seed: int, **more: Any) -> Any:
        """The diagnosis with the rows at hand, which methods that send models need."""
        f = self.federation(seed)
        return odcl.fit(f, self.risk, Method(**self.method)).diagnose(f, **more)


KMEANS = {"clusterer": KMeansPP(3)}
CASES = {
    "one group": Case("one-model", (60,), 8, 1, 40),
    "one group, four asked for": Case(
        "one-model", (60,), 8, 1, 40, method={"clusterer": KMeansPP(4)}
    ),
    "everybody different": Case("mixed", (60,), 8, 1, 60, tau=1.0),
    "every user its own group": Case("mixed", (1,) * 40, 40, 3, 100),
    "clear groups": Case("one-shot", (20, 20, 20), 8, 3, 40),
    "clear groups, the paper's method": Case("one-shot", (20, 20, 20), 8, 3, 60, method=KMEANS),
    "groups that overlap": Case("collect", (30, 30, 30), 6, 1.0, 14, method={"clusterer": 3}),
    "fewer rows than parameters": Case("one-shot", (20, 20, 20), 20, 3, 15),
    "uneven rows, plain mean": Case("default", (20, 20, 20), 8, 3, (15, 300), method=KMEANS),
    "uneven rows": Case("one-shot", (20, 20, 20), 8, 3, (15, 300)),
    "users of a group differ": Case("one-shot", (20, 20, 20), 8, 4, 60, tau=0.2),
    "users of a group differ a lot": Case("local", (20, 20, 20), 8, 8, 60, tau=1.0),
    "two groups of two": Case("one-shot", (40, 16, 2, 2), 8, 3, 60),
    "logistic, few rows": Case("one-shot", (20, 20, 20), 5, 5, 60, loss="logistic", l2=1e-4),
    "logistic, many rows": Case("one-shot", (20, 20, 20), 5, 4, 300, loss="logistic", l2=1e-2),
    "logistic, one group": Case("one-model", (60,), 5, 2, 100, loss="logistic", l2=1e-2),
}
