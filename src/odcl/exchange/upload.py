"""What leaves a user: one upload, and these fields only. Rows never leave.

The declarations below are the privacy statement: the README's "What leaves a user" and the byte
counts are read off them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from odcl._typing import Array, Bools, Floats, Ints
from odcl.data.federation import group_rows
from odcl.exchange.message import Message, part
from odcl.privacy import BINS
from odcl.risk.risk import GAUSSIAN_WIDTHS, Risk

PLAIN = ("n_samples", "observations")  # checked in other ways
MOST_RANK = 256  # rows of a thin factor


@dataclass(frozen=True, eq=False)
class Uploads(Message):
    """The uploads of one or many users, one row per user.

    ``theta`` is there where the method looks at models, the data term (the last fields) where it
    looks at what the rows say; a user with fewer rows than parameters may keep the larger part of
    its term to itself (``observations``).

    A wide user (:func:`~odcl.risk.risk.is_wide`) sends moments in place of matrices:
    ``class_rows``, ``class_means`` and ``scatter`` for classes, ``means`` and ``thin_factor`` for
    squared loss. Each row of ``scatter`` has the covariance of the rows of its class and counts as
    one degree of freedom; together they are the scatter itself where a class has few enough rows.
    """

    n_samples: Floats = part("how many rows the user has", optional=False)
    theta: Floats | None = part("the user's model: its coefficients and intercept", "dim")
    risk: Risk | None = None  # known to everybody beforehand, not sent; None: nothing is known
    means: Floats | None = part(
        "the averages of the features and of the target: with its number of rows and the factor, "
        "all that squared loss needs of its rows",
        "width",
    )
    factor: Floats | None = part(
        "covariance of features and target. With fewer rows than parameters it reveals the span "
        "of the rows",
        "width",
        "width",
        triangular=True,
    )
    gaussian_curvature: Floats | None = part(
        "how sharply the rows determine a model of classes or counts, under priors of several "
        "widths. With fewer rows than parameters it reveals the span of the rows",
        "widths",
        "dim",
        "dim",
    )
    gaussian_slope: Floats | None = part(
        "where that model would be, weighed by its sharpness", "widths", "dim"
    )
    gaussian_constant: Floats | None = part("how well the rows agree with such a model", "widths")
    gaussian_line_curvature: Floats | None = part(
        "the same of a model without curves, which it is if no curve is found",
        *("widths", "lines", "lines"),
    )
    gaussian_line_slope: Floats | None = part("where that model would be", "widths", "lines")
    gaussian_line_constant: Floats | None = part("how well the rows agree with it", "widths")
    gaussian_ceiling: Floats | None = part("how well they would agree with a perfect one")
    gaussian_means: Floats | None = part("the averages of the features", "columns")
    gaussian_sds: Floats | None = part(
        "how far the features vary: with the averages, the units that this model is told in",
        "columns",
    )
    class_rows: Floats | None = part("how many rows of each class the user has", "classes")
    class_means: Array | None = part(
        "the averages of the features in each class. That of a class with one row is the row",
        *("classes", "features"),
        dtype="float32",
    )
    scatter: Array | None = part(
        "how the features vary within the classes: sums of differences between rows of a class. "
        "With few rows in a class it reveals their span, and with two both rows",
        *("draws", "features"),
        dtype="float32",
    )
    scatter_class: Array | None = part("the class of each of these sums", "draws", dtype="int16")
    thin_factor: Array | None = part(
        "covariance of features and target: at most 256 sums of differences between rows. With no "
        "more rows than that it reveals their span",
        *("rank", "width"),
        dtype="float32",
    )
    private_curvature: Floats | None = part(
        "how the features vary together, within public bounds and with noise that hides any row",
        *("dim", "dim"),
        signed=True,
    )
    private_curvature_sd: Floats | None = part("how much noise was added to private_curvature")
    private_slope: Floats | None = part(
        "how the target varies with the features around a rough model, within public bounds and "
        "with noise that hides any row",
        "dim",
    )
    private_offset: Floats | None = part(
        "that rough model, made from such numbers with noise alone", "dim"
    )
    private_center: Floats | None = part("where such numbers were taken last", "dim")
    private_sd: Floats | None = part("how much noise was added to private_slope")
    private_residuals: Floats | None = part(
        "how many targets lie how far from that model, with noise that hides any row", "bins"
    )
    observations: Floats | None = part(
        "how many rows the data term tells of: all; of a user with fewer rows than parameters "
        "their average as one, and of a user with one row none"
    )

    @classmethod
    def of(cls, theta: Any) -> Uploads:
        """Bare models, as in the paper: users are 0..n_users-1 with one sample each."""
        theta = np.asarray(theta, dtype=np.float64)
        if theta.ndim != 2:
            raise ValueError(
                f"Models must be a matrix with one row per user; got {theta.ndim} dimension(s)."
            )
        return cls(np.arange(len(theta)), np.ones(len(theta)), theta)

    @property
    def has_terms(self) -> bool:
        """Are the users' data terms there?"""
        fields = (self.factor, self.gaussian_curvature, self.class_means, self.thin_factor)
        return any(field is not None for field in fields) or self.private

    @property
    def private(self) -> bool:
        """Is everything in them, the numbers of rows included, private by noise?"""
        return self.private_curvature is not None

    @property
    def wide(self) -> bool:
        """Are they moments of wide users?"""
        return self.class_means is not None or self.thin_factor is not None

    @property
    def models(self) -> Floats:
        """``theta``; an error where it was not sent."""
        if self.theta is None:
            raise ValueError(
                "These uploads hold the users' data terms and not their models, which this method "
                "looks at: fit the users with the same method."
            )
        return self.theta

    @cached_property
    def seen(self) -> Floats:
        """The weight of the rows that the data terms tell of, (n_users,)."""
        if self.observations is None:
            return self.n_samples
        return np.where(self.observations > 0, self.n_samples, 0.0)

    @cached_property
    def told_rows(self) -> Floats:
        """The rows of each class that its mean tells of, (n_users, n_classes).

        Without short terms a class that keeps its mean to itself has zeros there.
        """
        assert self.class_rows is not None
        assert self.class_means is not None
        if self.observations is None:
            return self.class_rows
        return np.where(self.class_means.any(axis=2), self.class_rows, 0.0)

    @property
    def n_users(self) -> int:
        return len(self.users)

    @property
    def dim(self) -> int:
        for model in (self.theta, self.gaussian_slope, self.private_slope):
            if model is not None:
                return int(model.shape[-1])
        if self.risk is not None and self.class_means is not None:
            return self.risk.dim(int(self.class_means.shape[2]))
        if self.means is None or self.risk is None:
            raise ValueError("These uploads hold neither the users' models nor their data terms.")
        return int(self.means.shape[1]) - 1 + self.risk.intercept

    @cached_property
    def penalty(self) -> Floats:
        """Diagonal of the penalty's Hessian, (dim,)."""
        if self.risk is None:
            return np.zeros(self.dim)
        return self.risk.penalty(self.dim // self.risk.n_outputs - self.risk.intercept)

    def kept_back(self, name: str) -> Bools:
        if self.observations is None or name not in TERM_FIELDS or name == "class_rows":
            return super().kept_back(name)
        # Of an average there is no factor, of nothing there is nothing.
        whole = name in ("factor", "thin_factor", "gaussian_sds")
        return self.observations < (self.n_samples if whole else 1)

    def canonical_order(self) -> Ints:
        """Positions that put the users in canonical order (that of ``group_rows``)."""
        ids, codes = group_rows(self.users)
        if len(ids) < self.n_users:
            repeated = self.users[np.bincount(codes)[codes] > 1].tolist()[0]
            raise ValueError(
                f"User {repeated!r} uploaded more than once: each user has one model. Merge its "
                "rows, or give the uploads different ids."
            )
        return np.argsort(codes, kind="stable")

    def check(self) -> None:
        """Refuse what would spoil the other users' models, naming the user."""
        m, dim = self.n_users, self.dim
        sizes = upload_sizes(self.risk, dim)
        for name, values in self.present.items():
            pairs = zip(self.parts()[name].shape, values.shape[1:], strict=False)
            shape = (m, *(sizes.get(word, n) for word, n in pairs))
            if values.shape != shape or values.ndim != 1 + len(self.parts()[name].shape):
                raise ValueError(f"{name} has shape {values.shape}, and {m} uploads need {shape}.")
            if name not in PLAIN:
                self.refuse_non_finite(name, values)
        if self.gaussian_sds is not None and (self.gaussian_sds < 0).any():
            raise ValueError("gaussian_sds holds numbers below zero: they are standard deviations.")
        for name in ("private_sd", "private_curvature_sd"):
            sd = getattr(self, name)
            if sd is not None and not (sd > 0).all():
                raise ValueError(f"{name} holds numbers that are not above zero: it is noise.")
        if self.thin_factor is not None and self.thin_factor.shape[1] > MOST_RANK:
            raise ValueError(
                f"thin_factor has {self.thin_factor.shape[1]} rows per user: at most {MOST_RANK}."
            )
        bad = ~(np.isfinite(self.n_samples) & (self.n_samples > 0))
        if bad.any():
            raise ValueError(
                f"User {self.users[bad].tolist()[0]!r} uploaded {self.n_samples[bad][0]:g} as its "
                "number of samples: every upload needs a number > 0."
            )
        if self.observations is not None:
            bad = ~((self.observations >= 0) & (self.observations <= np.maximum(self.n_samples, 1)))
            if bad.any():
                raise ValueError(
                    f"User {self.users[bad].tolist()[0]!r} uploaded a data term of "
                    f"{self.observations[bad][0]:g} observations, and it has "
                    f"{self.n_samples[bad][0]:g} rows: a term tells of no more rows than there are."
                )
        self._check_classes()

    def _check_classes(self) -> None:
        """Refuse class moments that contradict each other."""
        if self.class_rows is None or self.scatter_class is None:
            return
        rows, of = self.class_rows, self.scatter_class
        bad = (rows < 0).any(axis=1) | (np.abs(rows.sum(axis=1) / self.n_samples - 1) > 1e-9)
        if bad.any():
            raise ValueError(
                f"User {self.users[bad].tolist()[0]!r} uploaded {rows[bad][0].sum():g} rows in its "
                f"classes, and it has {self.n_samples[bad][0]:g}: every row has one class."
            )
        own = np.take_along_axis(rows, np.clip(of, 0, rows.shape[1] - 1), axis=1) > 0
        bad = ~(((of >= 0) & (of < rows.shape[1]) & own) | (of == -1)).all(axis=1)
        if bad.any():
            raise ValueError(
                f"User {self.users[bad].tolist()[0]!r} uploaded scatter of a class it has no row "
                "of: each row of scatter names a class of the user, or -1 where it is empty."
            )


PRIVATE_FIELDS = tuple(name for name in Uploads.parts() if name.startswith("private_"))
TERM_FIELDS = tuple(n for n in Uploads.parts() if n not in (*PLAIN, "theta", *PRIVATE_FIELDS))


def upload_sizes(risk: Risk | None, dim: int) -> dict[str, int]:
    """What the words in the shapes of an upload's fields stand for."""
    features = dim if risk is None else dim // risk.n_outputs - risk.intercept
    sizes = {"dim": dim, "width": features + 1, "widths": len(GAUSSIAN_WIDTHS), "bins": BINS}
    sizes["columns"] = features + (0 if risk is None else len(risk.factors))
    sizes["lines"] = dim if risk is None else risk.dim(risk.n_lines(features))
    if risk is None or not risk.loss.classification:
        return sizes
    classes = risk.n_outputs + 1
    return sizes | {"classes": classes, "features": features, "draws": n_draws(classes, features)}


def n_draws(n_classes: int, n_features: int) -> int:
    """Rows of a wide user's scatter: as many as fit into 64 kB, from 4 or one per class to 32."""
    return min(max(16_384 // max(n_features, 1), 4, n_classes), 32)
