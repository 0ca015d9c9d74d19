"""The losses: squared, Huber, logistic, multinomial, Poisson, and their names."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import expit, softmax

from odcl._typing import Array, Floats
from odcl.errors import listing
from odcl.risk.loss import Loss

# A rate beyond exp of this, 1e150, is no rate of anything; cut off there, sums and squares of such
# rates are still numbers that a line search can compare.
_LARGEST_LOG = 345.0


class Squared(Loss):
    """1/2 (y - z)^2."""

    name = "squared"
    has_dispersion = True
    has_data_terms = True
    curvature_varies = False

    def encode(self, y: Array) -> Floats:
        return _finite(y)

    def value(self, z: Floats, y: Floats) -> Floats:
        return 0.5 * (y - z[..., 0]) ** 2

    def slope(self, z: Floats, y: Floats) -> Floats:
        return z - y[..., None]

    def curve(self, z: Floats, y: Floats) -> Floats:
        return np.ones((*z.shape, 1))

    def curve_bounds(self, y: Floats, reach: Floats) -> tuple[Floats, Floats]:
        return np.ones_like(reach), np.ones_like(reach)


class Huber(Loss):
    """Squared up to a residual of ``delta``, linear beyond: outliers pull with bounded force."""

    name = "huber"
    has_dispersion = True
    has_data_terms = True  # of pseudo-targets
    curvature_varies = False  # only through the few rows that cross delta

    def __init__(self, delta: float = 1.345):
        if not delta > 0:
            raise ValueError(f"Huber's delta is where the loss turns linear: > 0, got {delta!r}.")
        self.delta = float(delta)

    def settings(self) -> dict[str, Any]:
        return {"delta": self.delta}

    def encode(self, y: Array) -> Floats:
        return _finite(y)

    def value(self, z: Floats, y: Floats) -> Floats:
        r = np.abs(y - z[..., 0])
        return np.where(r <= self.delta, 0.5 * r**2, self.delta * (r - 0.5 * self.delta))

    def slope(self, z: Floats, y: Floats) -> Floats:
        return np.clip(z - y[..., None], -self.delta, self.delta)

    def curve(self, z: Floats, y: Floats) -> Floats:
        inside: Floats = (np.abs(z - y[..., None]) <= self.delta).astype(np.float64)
        return inside[..., None]

    def terms(self, z: Floats, y: Floats) -> tuple[Floats, Floats, Floats]:
        # Rows beyond delta have no curvature; a trace of the reweighting matrix, which is positive
        # and majorises the loss, keeps the system solvable when few rows are inside.
        r = np.maximum(np.abs(z - y[..., None]), self.delta)
        trace = np.where(r <= self.delta, 1.0, 1e-3 * self.delta / r)
        return self.value(z, y), self.slope(z, y), trace[..., None]

    def curve_bounds(self, y: Floats, reach: Floats) -> tuple[Floats, Floats]:
        return (np.abs(y) + reach <= self.delta).astype(np.float64), np.ones_like(reach)

    def resolution(self, z: Floats, y: Floats) -> Floats:
        return 1e-8 * self.delta + 1e-14 * np.maximum(np.abs(z), np.abs(y)[..., None])

    def scale(self, risk: Floats) -> Floats:
        return np.minimum(risk, self.delta**2)  # an outlier's part of the risk says nothing

    def start(self, y: Floats, weight: Floats) -> Floats:
        """The weighted median: an outlier of any size does not move it."""
        order = np.argsort(y, axis=1, kind="stable")
        below = np.cumsum(np.take_along_axis(weight, order, axis=1), axis=1)
        middle = np.argmax(below >= 0.5 * below[:, -1:], axis=1)[:, None]
        return np.take_along_axis(y, np.take_along_axis(order, middle, axis=1), axis=1)


class Logistic(Loss):
    """log(1 + exp(-y z)) with labels -1 and +1 (0 and 1 are read as these)."""

    name = "logistic"
    classification = True
    same_at_start = True

    def encode(self, y: Array) -> Floats:
        y = np.asarray(y)
        values = np.unique(y.astype(np.float64) if y.dtype.kind in "biuf" else y)
        if not (set(values.tolist()) <= {0.0, 1.0} or set(values.tolist()) <= {-1.0, 1.0}):
            raise ValueError(
                f"Logistic loss needs labels 0/1 or -1/+1, got {listing(values.tolist(), 4)}. Use "
                "loss='multinomial' for more classes, or ODCLClassifier, which encodes any labels."
            )
        return np.where(y.astype(np.float64) > 0, 1.0, -1.0)

    def value(self, z: Floats, y: Floats) -> Floats:
        t = y * z[..., 0]
        # log(1 + e^-t) without overflow; np.logaddexp says the same at a tenth of the speed.
        return np.log1p(np.exp(-np.abs(t))) - np.minimum(t, 0.0)

    def slope(self, z: Floats, y: Floats) -> Floats:
        y = y[..., None]
        return -y * expit(-y * z)

    def curve(self, z: Floats, y: Floats) -> Floats:
        e = np.exp(-np.abs(z))
        return (e / (1.0 + e) ** 2)[..., None]

    def terms(self, z: Floats, y: Floats) -> tuple[Floats, Floats, Floats]:
        t = y * z[..., 0]
        e = np.exp(-np.abs(t))
        likelier = 1.0 / (1.0 + e)
        wrong = np.where(t < 0, likelier, e * likelier)  # probability of the other label
        value = np.log1p(e) + np.maximum(-t, 0.0)
        return value, (-y * wrong)[..., None], (e * likelier**2)[..., None, None]

    def curve_bounds(self, y: Floats, reach: Floats) -> tuple[Floats, Floats]:
        e = np.exp(-reach)
        return e / (1.0 + e) ** 2, np.full_like(reach, 0.25)

    def mean(self, z: Floats) -> Floats:
        p: Floats = expit(z)
        return p

    def recedes(self, dz: Floats, y: Floats) -> tuple[Floats, Floats]:
        t = y * dz[..., 0]
        return t, t

    def one_sided(self, y: Floats, present: Array) -> Array:
        return np.all((y > 0) | ~present, axis=1) | np.all((y < 0) | ~present, axis=1)

    def start(self, y: Floats, weight: Floats) -> Floats:
        p = np.clip(0.5 * (1.0 + (weight * y).sum(axis=1)), 1e-3, 1 - 1e-3)
        return np.log(p / (1 - p))[..., None]


class Multinomial(Loss):
    """Softmax over the federation's classes, with coefficients that sum to zero over them.

    The sum-to-zero models are ``Theta @ basis.T`` with an orthonormal ``basis`` of
    (n_classes, n_classes - 1), so the flat model has n_classes - 1 outputs, none redundant, and
    ||theta||^2 is that of all n_classes coefficient vectors. Targets are 0..n_classes-1.
    """

    name = "multinomial"
    classification = True

    def __init__(self, n_classes: int):
        if n_classes < 2:
            raise ValueError(f"A classifier needs at least two classes, got {n_classes}.")
        self.n_classes = int(n_classes)
        self.n_outputs = self.n_classes - 1
        self.basis = _sum_to_zero_basis(self.n_classes)

    def settings(self) -> dict[str, Any]:
        return {"n_classes": self.n_classes}

    def encode(self, y: Array) -> Floats:
        y = np.asarray(y)
        ok = y.dtype.kind in "biuf" and np.isin(y, np.arange(self.n_classes)).all()
        if not ok:
            raise ValueError(
                f"Multinomial loss with {self.n_classes} classes needs labels 0 to "
                f"{self.n_classes - 1}, got {listing(np.unique(y).tolist(), 4)}. ODCLClassifier "
                "encodes any."
            )
        return y.astype(np.float64)

    def _logits(self, z: Floats) -> Floats:
        return np.matmul(z, self.basis.T)

    def _one_hot(self, y: Floats) -> Floats:
        return (y[..., None] == np.arange(self.n_classes)).astype(np.float64)

    def value(self, z: Floats, y: Floats) -> Floats:
        return self.lean_terms(z, y)[0]

    def slope(self, z: Floats, y: Floats) -> Floats:
        return self.lean_terms(z, y)[1]

    def curve(self, z: Floats, y: Floats) -> Floats:
        return self._covariance(self.mean(z))

    def _covariance(self, p: Floats) -> Floats:
        """diag(p) - p p^T in the basis, (..., n, n_outputs, n_outputs).

        As the covariance of the basis under p: the difference would round to -1e-17 where one
        class is certain, and rows of size 1e4 would make a hole of it.
        """
        apart = self.basis - np.matmul(p, self.basis)[..., None, :]
        return np.matmul((p[..., None] * apart).swapaxes(-1, -2), apart)

    def terms(self, z: Floats, y: Floats) -> tuple[Floats, Floats, Floats]:
        value, slope, p = self.lean_terms(z, y)
        return value, slope, self._covariance(p)

    def lean_terms(self, z: Floats, y: Floats) -> tuple[Floats, Floats, Floats]:
        value, slope, p = softmax_terms(self._logits(z), self._one_hot(y), axis=-1)
        return value[..., 0], np.matmul(slope, self.basis), p

    def bent(self, bend: Floats, v: Floats) -> Floats:
        """(diag(p) - p p^T) v in the basis, from the probabilities p alone."""
        apart = self._logits(v)
        apart -= (bend * apart).sum(axis=-1, keepdims=True)
        apart *= bend
        return np.matmul(apart, self.basis)

    def average_bend(self, bend: Floats) -> Floats:
        return (bend * (1.0 - bend)).sum(axis=-1) / self.n_outputs

    def curve_bounds(self, y: Floats, reach: Floats) -> tuple[Floats, Floats]:
        # |a_c - a_l| <= sqrt(2) ||z||, so every p_c is at least this; the curvature on the
        # sum-to-zero space is at least the smallest p_c and at most 1/2.
        apart = np.exp(np.minimum(np.sqrt(2.0) * reach, _LARGEST_LOG))
        least = 1.0 / (1.0 + (self.n_classes - 1) * apart)
        return least, np.full_like(reach, 0.5)

    def mean(self, z: Floats) -> Floats:
        p: Floats = softmax(self._logits(z), axis=-1)
        return p

    def recedes(self, dz: Floats, y: Floats) -> tuple[Floats, Floats]:
        a = self._logits(dz)
        own = np.take_along_axis(a, y[..., None].astype(np.intp), axis=-1)
        rivals = np.where(self._one_hot(y) > 0, -np.inf, a).max(axis=-1)
        return own[..., 0] - rivals, own[..., 0] - a.min(axis=-1)

    def one_sided(self, y: Floats, present: Array) -> Array:
        """A class that a user never saw has an intercept of minus infinity."""
        return ~np.all(np.any(self._one_hot(y) * present[..., None], axis=1), axis=-1)


def softmax_terms(a: Floats, own: Floats, axis: int) -> tuple[Floats, Floats, Floats]:
    """Loss, slope and probabilities at the logits ``a``, which it spoils.

    Classes run along ``axis``, reduced to one entry in the loss; ``own`` is 1 for a row's class.
    """
    a -= (own * a).sum(axis=axis, keepdims=True)
    top = a.max(axis=axis, keepdims=True)  # never below 0, the own class's
    a -= top
    e = np.exp(a, out=a)
    slope = e * (1.0 - own)
    wrong = slope.sum(axis=axis, keepdims=True)
    total = wrong + np.exp(-top)
    # Small losses and slopes from small numbers: 1 minus a probability would round them off.
    value = top + np.where(top > 0, np.log(total), np.log1p(wrong))
    slope -= own * wrong
    slope /= total
    e /= total
    return value, slope, e


class Poisson(Loss):
    """exp(z) - y z plus what makes a perfect fit zero: half the deviance of counts y."""

    name = "poisson"
    has_dispersion = True
    same_at_start = True

    def encode(self, y: Array) -> Floats:
        y = _finite(y)
        if (y < 0).any():
            raise ValueError(
                f"Poisson loss needs counts >= 0, got {y.min():g}. Use loss='squared' for a target "
                "that can be negative."
            )
        return y

    def value(self, z: Floats, y: Floats) -> Floats:
        # y (e^u - 1 - u) with u = z - log y: the sum e^z - y z + ... would lose, for counts of
        # a million, the digits that tell whether a Newton step was a good one.
        some = y > 0
        count = np.where(some, y, 1.0)
        u = z[..., 0] - np.log(count)
        with np.errstate(over="ignore"):  # an overshooting step is worth inf and is cut back
            return np.where(some, np.maximum(count * (np.expm1(u) - u), 0.0), np.exp(z[..., 0]))

    def slope(self, z: Floats, y: Floats) -> Floats:
        return self.mean(z) - y[..., None]

    def curve(self, z: Floats, y: Floats) -> Floats:
        return self.mean(z)[..., None]

    def curve_bounds(self, y: Floats, reach: Floats) -> tuple[Floats, Floats]:
        return np.exp(-reach), np.exp(np.minimum(reach, _LARGEST_LOG))

    def mean(self, z: Floats) -> Floats:
        return np.exp(np.minimum(z, _LARGEST_LOG))

    def recedes(self, dz: Floats, y: Floats) -> tuple[Floats, Floats]:
        fall = -dz[..., 0]
        return np.where(y > 0, -np.abs(fall), fall), np.where(y > 0, 0.0, fall)

    def one_sided(self, y: Floats, present: Array) -> Array:
        return np.all((y == 0) | ~present, axis=1)

    def start(self, y: Floats, weight: Floats) -> Floats:
        return np.log(np.maximum((weight * y).sum(axis=1), 1e-3))[:, None]


LOSSES: dict[str, type[Loss]] = {
    kind.name: kind for kind in (Squared, Huber, Logistic, Multinomial, Poisson)
}
# The multinomial keeps a basis of n_classes^2 numbers: no file may ask for more than 200 MB.
MOST_CLASSES = 5000


def as_loss(loss: str | Loss, y: Array | None = None) -> Loss:
    """A loss by name, or itself. The multinomial counts the classes in ``y``: 0..max."""
    if isinstance(loss, Loss):
        return loss
    if loss not in LOSSES:
        raise ValueError(f"loss={loss!r} is not one of {', '.join(LOSSES)}, nor a Loss.")
    if loss != "multinomial":
        return LOSSES[loss]()
    if y is None:
        raise ValueError(
            "loss='multinomial' does not say how many classes: use Multinomial(n_classes)."
        )
    y = np.asarray(y)
    if y.dtype.kind not in "biuf" or not np.isfinite(y).all():
        raise ValueError(
            f"loss='multinomial' counts classes 0, 1, ... and got {listing(y.tolist(), 4)}. Number "
            "the labels first, or use ODCLClassifier, which encodes any."
        )
    return Multinomial(int(y.max()) + 1)


def loss_to_json(loss: Loss) -> dict[str, Any]:
    if type(loss) is not LOSSES.get(loss.name):
        raise ValueError(
            f"{loss!r} is a loss of your own class, which cannot be written without its code: use "
            f"one of {', '.join(LOSSES)}, or keep to one process."
        )
    return {"name": loss.name, **loss.settings()}


def loss_from_json(words: Any) -> Loss:
    """The loss that :func:`loss_to_json` wrote; a ValueError says what is wrong with the words."""
    if not isinstance(words, dict) or words.get("name") not in LOSSES:
        raise ValueError(f"{words!r} names no loss ({', '.join(LOSSES)}).")
    settings = {name: value for name, value in words.items() if name != "name"}
    kind = LOSSES[words["name"]]
    wanted: set[str] = {"huber": {"delta"}, "multinomial": {"n_classes"}}.get(kind.name, set())
    for name, value in settings.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{name} of the {kind.name} loss is {value!r}, and not a number.")
    if settings.keys() != wanted or not 2 <= settings.get("n_classes", 2) <= MOST_CLASSES:
        raise ValueError(f"The {kind.name} loss does not have the settings {settings}.")
    loss: Loss = kind(**settings)
    return loss


def _finite(y: Array) -> Floats:
    y = np.asarray(y, dtype=np.float64)
    if not np.isfinite(y).all():
        row = int(np.argmin(np.isfinite(y))) + 1
        raise ValueError(
            f"The target of row {row} is not a finite number: drop or fill such rows first."
        )
    return y


def _sum_to_zero_basis(n: int) -> Floats:
    """Helmert contrasts: column c sets class c+1 against the mean of those before it."""
    basis = np.zeros((n, n - 1))
    for c in range(1, n):
        basis[:c, c - 1] = -1.0
        basis[c, c - 1] = c
    return basis / np.linalg.norm(basis, axis=0)
