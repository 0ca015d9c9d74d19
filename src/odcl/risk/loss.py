"""What a loss of a linear model tells of itself, row by row.

A model is stored flat: ``theta.reshape(n_inputs, n_outputs)`` holds one row per feature and, with
an intercept, a last row. All losses but the multinomial have one output.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from odcl._typing import Array, Floats


class Loss(ABC):
    """Row-wise loss of the linear predictor ``z`` (..., n, n_outputs) and target ``y`` (..., n)."""

    name: str
    classification = False
    n_outputs = 1
    has_dispersion = False  # is the noise scale a free parameter, to be estimated?
    has_data_terms = False  # do means and scatter of [X y] hold what a user's rows say?
    curvature_varies = True  # does the Hessian depend on the model?
    same_at_start = False  # one output, and rows with the same z have the same curvature?

    def settings(self) -> dict[str, Any]:
        """What the loss was made with: with its name, all that there is to know of it."""
        return {}

    def __repr__(self) -> str:
        words = ", ".join(f"{name}={value:g}" for name, value in self.settings().items())
        return f"{type(self).__name__}({words})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.settings() == self.settings()

    def __hash__(self) -> int:
        return hash((type(self), *self.settings().items()))

    @abstractmethod
    def encode(self, y: Array) -> Floats:
        """Check targets and turn them into the numbers the loss works on."""

    @abstractmethod
    def value(self, z: Floats, y: Floats) -> Floats:
        """Loss of each row, (..., n), never below zero."""

    @abstractmethod
    def slope(self, z: Floats, y: Floats) -> Floats:
        """First derivative in z, (..., n, n_outputs)."""

    @abstractmethod
    def curve(self, z: Floats, y: Floats) -> Floats:
        """Second derivative in z, (..., n, n_outputs, n_outputs)."""

    @abstractmethod
    def curve_bounds(self, y: Floats, reach: Floats) -> tuple[Floats, Floats]:
        """Least and largest eigenvalue of ``curve`` while |z_j| <= reach_j: two (n,) arrays."""

    def terms(self, z: Floats, y: Floats) -> tuple[Floats, Floats, Floats]:
        """``value``, ``slope`` and the curvature that Newton's method takes, at one go."""
        return self.value(z, y), self.slope(z, y), self.curve(z, y)

    def lean_terms(self, z: Floats, y: Floats) -> tuple[Floats, Floats, Floats]:
        """As ``terms``, with the curvature as ``bent`` takes it: without (q, q) numbers per row."""
        return self.terms(z, y)

    def bent(self, bend: Floats, v: Floats) -> Floats:
        """Each row's curvature times v, (..., n, n_outputs)."""
        return np.matmul(bend, v[..., None])[..., 0]

    def average_bend(self, bend: Floats) -> Floats:
        """The mean of each row's eigenvalues of the curvature, (..., n)."""
        return np.trace(bend, axis1=-2, axis2=-1) / self.n_outputs

    def mean(self, z: Floats) -> Floats:
        """Expected target (or class probabilities) at z."""
        return z

    def recedes(self, dz: Floats, y: Floats) -> tuple[Floats, Floats] | None:
        """What becomes of each row's loss along z + t dz: (least, most), (users, n) each.

        As t grows it never rises where least >= 0, and falls for ever where most > 0 as well. A
        user all of whose rows do the first and one the second has no finite minimiser without a
        penalty. None: the loss attains its minimum whatever the rows.
        """
        return None

    def one_sided(self, y: Floats, present: Array) -> Array:
        """Users whose targets alone rule out a finite free intercept (one class, no counts)."""
        return np.zeros(y.shape[0], dtype=bool)

    def resolution(self, z: Floats, y: Floats) -> Floats:
        """Steps in z, (..., n, n_outputs), that are small: a Newton step of such is the last.

        Where z is a log-odds or a log-rate, curvature changes by at most a factor exp(|dz|), so
        that a step of 1e-6 leaves an error of 1e-12. No row stands still to more digits than it
        has.
        """
        return 1e-6 + 1e-14 * np.abs(z)

    def scale(self, risk: Floats) -> Floats:
        """What falls of a risk are measured against, (users,), given the risk at the start."""
        return risk

    def start(self, y: Floats, weight: Floats) -> Floats:
        """A free intercept to start from, (users, n_outputs); weights sum to 1 a user."""
        return np.zeros((len(y), self.n_outputs))


def weighted_gram(Dt: Floats, curve: Floats, *, room: Floats | None = None) -> Floats:
    """sum_j x_j x_j^T (x) curve_j for a stack of users: (users, dim, dim).

    ``Dt`` is (users, n_inputs, n), a row a feature, ``curve`` (users, n, q, q); ``room`` takes
    the scaled design, to save asking for memory. One stacked product a pair of outputs: each
    user's numbers are the same alone and in any stack.
    """
    users, p, _ = Dt.shape
    q = curve.shape[-1]
    D = Dt.transpose(0, 2, 1)
    if q == 1:
        gram: Floats = np.matmul(np.multiply(Dt, curve[:, None, :, 0, 0], out=room), D)
        return gram
    H = np.empty((users, p, q, p, q))
    for a in range(q):
        for b in range(a + 1):
            block = np.matmul(np.multiply(Dt, curve[:, None, :, a, b], out=room), D)
            H[:, :, a, :, b] = block
            if a != b:
                H[:, :, b, :, a] = block.transpose(0, 2, 1)
    return H.reshape(users, p * q, p * q)


def symmetric(H: Floats) -> Floats:
    """Free of the last bit in which a product and its transpose differ: half of it can be sent."""
    return 0.5 * (H + H.transpose(0, 2, 1))
