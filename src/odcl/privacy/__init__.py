"""Privacy for rows: every upload is (epsilon, delta)-differentially private by itself.

Here is the guarantee that a federation agrees on, and the public bounds it rests on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any

import numpy as np

from odcl._typing import Floats
from odcl.declared import OPTIONAL, Check, HasDefaults, check_fields, fields_to_json
from odcl.errors import InputError
from odcl.risk.risk import Risk, is_wide, most_parameters

LOSSES = ("squared", "logistic", "multinomial", "poisson")
NUMBERS = ("squared", "poisson")  # which have a range
UNITS = ("shift", "scale")
GRID_MARGIN = 1e-3  # of delta: what noise on a grid may differ from the Gaussian law by, and more
BINS = 11  # of residuals' sizes: beyond the target's reach, half of it, a quarter of it, ...
PAYS = 20  # rows times epsilon per parameter, from which on uploads pay: 20 to 40
# Where nothing is known yet, the standard deviation of the logits of usual rows, and of log-rates.
LOGIT, LOG_RATE = 2.5, 2.0

Epsilon = Annotated[float, Check("a number from 0.1 to 50", lambda value: 0.1 <= value <= 50)]
Delta = Annotated[float, Check("a number from 1e-15 to 0.01", lambda v: 1e-15 <= v <= 0.01)]
Above = Annotated[float, Check("a finite number above 0", lambda value: value > 0)]


@dataclass(frozen=True)
class Privacy(HasDefaults):
    """Every upload by itself is (epsilon, delta)-differentially private for one row more or less.

    The bounds are public: agreed on before anybody looks at rows, and never read off them. Rows
    beyond them count for less, as a whole.

    Parameters
    ----------
    epsilon, delta : the guarantee. ``delta`` is to be well below one over the number of rows.
    row_norm : the usual length of a row in units of ``scale``, with its 1 for the intercept; None:
        the square root of the number of parameters, which is right for standardized columns.
    target_range : the lowest and the highest target to expect; None for classes. Counts beyond it
        are taken to be at its ends.
    shift, scale : the centre and spread to expect of every feature; none: 0 and 1, as on a card,
        which has brought the rows to these units already.
    """

    epsilon: Epsilon = 2.0
    delta: Delta = 1e-6
    row_norm: Above | None = None
    target_range: tuple[float, float] | None = None
    shift: tuple[float, ...] = field(default=(), metadata=OPTIONAL)
    scale: tuple[Above, ...] = field(default=(), metadata=OPTIONAL)

    def __post_init__(self) -> None:
        for name in ("target_range", "shift", "scale"):
            given = getattr(self, name)
            if given is not None:
                object.__setattr__(self, name, tuple(map(float, given)))
        try:
            check_fields(self)
        except ValueError as error:
            raise ValueError(f"Privacy: {error}.") from None
        if self.target_range is not None and not self.target_range[0] < self.target_range[1]:
            raise ValueError(f"Privacy: target_range {self.target_range} is empty.")
        if len(self.shift) != len(self.scale):
            raise ValueError(
                f"Privacy: {len(self.shift)} numbers of shift, {len(self.scale)} of scale: every "
                "feature needs both."
            )

    @classmethod
    def within(cls, ranges: Iterable[tuple[float, float]], **settings: Any) -> Privacy:
        """By the public ranges of the features: the middle of each is 0, a quarter of it is 1."""
        ends = [*ranges]
        middle = tuple((low + high) / 2 for low, high in ends)
        return cls(shift=middle, scale=tuple((high - low) / 4 for low, high in ends), **settings)

    def to_json(self) -> dict[str, Any]:
        words = fields_to_json(self)  # the card's columns have these units already
        return words if self.scale else {k: v for k, v in words.items() if k not in UNITS}

    def __str__(self) -> str:
        return f"epsilon {self.epsilon:g}, delta {self.delta:g}"

    @property
    def sentences(self) -> tuple[str, ...]:
        """The guarantee, as somebody who answers for it can sign it, and what it does not cover."""
        return (
            "Whoever reads an upload, whatever else they know and whomever they work with, learns "
            "hardly more of any one row than if that row were not in the table: every upload, its "
            f"number of rows included, is ({self.epsilon:g}, {self.delta:g})-differentially "
            "private for one row more or less. Noise comes from the system's entropy.",
            "Not covered: somebody with several rows (with two, epsilon is "
            f"{epsilon_of(2 * self.mu, self.delta):.3g}), further uploads of the same rows (they "
            "add up), how many users there are, and the models that are made at home from exact "
            "rows: these stay there.",
        )

    def too_few(self, dim: int) -> int:
        """Rows of a user below which sending is likely to cost more than it gives."""
        return math.ceil(PAYS * dim / self.epsilon)

    def pays(self, dim: int) -> str:
        """From how many rows on it pays to send, in a sentence."""
        least = self.too_few(dim)
        return (
            f"Private uploads with epsilon {self.epsilon:g} pay from {least:,} to {2 * least:,} "
            f"rows per user on, for {dim} parameters; below, users may be better off alone."
        )

    def refuse_uncovered(self, risk: Risk, n_features: int) -> None:
        """Refuse what the guarantee does not cover, before anything is looked at."""
        loss = risk.loss.name
        if loss not in LOSSES:
            raise InputError(
                f"There are no private uploads for {loss} loss: use squared loss, whose residuals "
                "are cut for privacy anyway, classes or counts."
            )
        if risk.curves or is_wide(risk, n_features):
            what = "curves" if risk.curves else f"{risk.dim(n_features):,} parameters"
            most = "lines" if risk.curves else f"at most {most_parameters(risk)} parameters"
            raise InputError(f"There are no private uploads of models with {what}: use {most}.")
        if self.target_range is None and loss in NUMBERS:
            raise InputError(
                "Privacy needs the lowest and the highest target to expect, which everybody may "
                "know: target_range (--target-range LOW:HIGH). It is never read off the rows."
            )
        if self.target_range is not None and loss not in NUMBERS:
            raise InputError(
                "Classes have no range: leave target_range (--target-range) out, or choose a loss "
                "for numbers or counts."
            )
        if loss == "poisson" and self.target_range is not None and self.target_range[0] < 0:
            raise InputError(f"Counts are never below 0, and target_range is {self.target_range}.")
        if self.scale and len(self.scale) != n_features:
            raise InputError(
                f"Privacy has shift and scale of {len(self.scale)} features, and the rows have "
                f"{n_features}."
            )

    # -- what follows --------------------------------------------------------------------------

    @cached_property
    def mu(self) -> float:
        """The guarantee as that of one Gaussian look: what one row moves, over the noise."""
        return mu_of(self.epsilon, self.delta)

    def bounds(self, risk: Risk, n_features: int) -> Bounds:
        low, high = self.target_range or (0.0, 0.0)
        norm = self.row_norm or math.sqrt(risk.n_inputs(n_features))
        shift = np.array(self.shift) if self.scale else np.zeros(n_features)
        scale = np.array(self.scale) if self.scale else np.ones(n_features)
        squared, counts = (risk.loss.name == name for name in ("squared", "poisson"))
        usual = (high - low) / 4 if squared else LOG_RATE if counts else LOGIT
        if risk.n_outputs > 1:
            usual /= math.sqrt(2)  # of outputs, whose classes differ by sqrt(2)
        origin, reach = (low + high) / 2 * squared, (high - low) / (2 if squared else 1)
        return Bounds(shift, scale, norm, origin, reach, usual, (low, high), risk.intercept)


@dataclass(frozen=True, eq=False)
class Bounds:
    """Public bounds of rows [1, (x - shift) / scale] and of targets around their origin."""

    shift: Floats  # (n_features,)
    scale: Floats  # (n_features,)
    norm: float  # of a row
    origin: float  # of the target
    reach: float  # of the target, from its origin; of counts, from each other
    usual: float  # standard deviation of the predictors of usual rows, at most
    ends: tuple[float, float]  # of the target
    intercept: bool

    @property
    def wide(self) -> float:
        """The variance of a coefficient of which nothing is known but these bounds."""
        return (self.usual / self.norm) ** 2

    @property
    def rate(self) -> float:
        """A rate of counts to begin with: a quarter of the way from the lowest to the highest."""
        return self.ends[0] + (self.ends[1] - self.ends[0]) / 4 if self.intercept else 1.0

    def rows(self, X: Floats) -> Floats:
        """The design rows, (n_rows, n_inputs); the 1 of the intercept comes first."""
        z = (X - self.shift) / self.scale
        return np.column_stack([np.ones(len(z)), z]) if self.intercept else z


# -- accounting: from (epsilon, delta) to the noise of each look at the rows ---------------------
# A look with noise of standard deviation sd at a statistic that one row moves by s is a Gaussian
# mechanism with mu = s / sd. Looks may depend on those before them, and together they have mu^2 =
# the sum of their mu^2, exactly (Dong, Roth and Su, Gaussian differential privacy, 2022).


def delta_of(epsilon: float, mu: float) -> float:
    """The delta that a Gaussian mechanism has at ``epsilon``.

    Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu) (Balle and Wang, 2018).
    """
    from scipy.special import log_ndtr

    first = log_ndtr(mu / 2 - epsilon / mu)
    second = epsilon + log_ndtr(-mu / 2 - epsilon / mu)
    return float(math.exp(first) * -math.expm1(min(second - first, 0.0)))


def mu_of(epsilon: float, delta: float) -> float:
    """The largest mu that is (epsilon, delta)-private, with a margin for noise on a grid."""
    from scipy.optimize import brentq

    allowed = math.log(delta * (1 - GRID_MARGIN))

    def excess(log_mu: float) -> float:
        return math.log(max(delta_of(epsilon, math.exp(log_mu)), 1e-300)) - allowed

    return math.exp(brentq(excess, math.log(1e-6), math.log(1e3), xtol=1e-13))


def epsilon_of(mu: float, delta: float) -> float:
    """The smallest epsilon at which looks of ``mu`` together are (epsilon, delta)-private."""
    from scipy.optimize import brentq

    if delta_of(1e-9, mu) <= delta:
        return 0.0
    excess = lambda epsilon: math.log(max(delta_of(epsilon, mu), 1e-300) / delta)  # noqa: E731
    return float(brentq(excess, 1e-9, 10 * mu * (mu + 8), xtol=1e-9))
