"""A fit without the columns of curves that are closed: it is as if they had not been asked for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from odcl._typing import Floats, Ints
from odcl.data.curves import numbered
from odcl.exchange.upload import Uploads
from odcl.fitted.value import Fitted, Newcomers
from odcl.mixed.layout import Coordinates
from odcl.mixed.posterior import Mixture
from odcl.mixed.terms import triangle
from odcl.risk.risk import Risk
from odcl.server.columns import gaussian_parts
from odcl.server.mixed import MixedRule
from odcl.server.result import StreamedStep
from odcl.wide.moments import mixed_only


@dataclass(frozen=True, eq=False)
class OpenColumns:
    """The columns of a fit that are left when those of closed curves leave."""

    at: Coordinates
    risk: Risk  # with the open curves alone
    keep: Ints  # the columns, by position among all of them
    numbers: Ints  # the numbers of a model that belong to them

    @classmethod
    def of(cls, mixture: Mixture | None, risk: Risk, n_lines: int) -> OpenColumns | None:
        """None where no curve is closed; ``n_lines`` columns stand before the bends."""
        opened = () if mixture is None else mixture.coordinates.opened
        if mixture is None or len(opened) == len(risk.curves):
            return None
        at = mixture.coordinates
        keep = np.array([*range(n_lines), *(j for curve in opened for j in curve.columns)], np.intp)
        inputs = np.append(keep, risk.n_inputs(at.n_features) - 1)  # there is an intercept
        numbers = (inputs[:, None] * risk.n_outputs + np.arange(risk.n_outputs)).ravel()
        own = replace(risk, curves=numbered(opened, n_lines))
        return cls(at, own, keep, numbers)

    @cached_property
    def coordinates(self) -> Coordinates:
        """The fit's coordinates among fewer features; references of factors follow these."""
        at, keep = self.at, self.keep
        place = np.full(at.n_features + len(at.factors), -1)
        place[keep] = np.arange(len(keep))
        place[at.n_features :] = len(keep) + np.arange(len(at.factors))
        kept = place[at.kept]
        return replace(at, kept=kept, n_features=len(keep), curves=self.risk.curves)

    def step(self, step: StreamedStep) -> StreamedStep:
        """The server's step with models of these columns."""
        found, rule, some = step.found, step.rule, self.numbers
        mixture = mixed_only(found.mixture)
        assert mixture is not None
        if isinstance(rule, MixedRule):
            rule = replace(rule, coordinates=self.coordinates)
        found = replace(
            found,
            centers=found.centers[:, some],
            models=found.models[:, some],
            mixture=replace(mixture, coordinates=self.coordinates),
        )
        return replace(step, found=found, rule=rule)

    def uploads(self, sent: Uploads) -> Uploads:
        """What users sent of these columns: the rest of a term is dropped exactly."""
        keep, risk = self.keep, self.risk
        if sent.factor is not None and sent.means is not None:
            columns = np.append(keep, sent.means.shape[1] - 1)
            factor: Floats = triangle(np.ascontiguousarray(sent.factor[:, :, columns]))
            return replace(sent, risk=risk, means=sent.means[:, columns], factor=factor)
        of_lines = not risk.curves and sent.gaussian_line_curvature is not None
        A, b, constant = gaussian_parts(sent, lines=of_lines)
        assert A is not None
        assert b is not None
        n_features = self.at.n_features
        changed: dict[str, Any] = {}
        if of_lines:
            names = ("curvature", "slope", "constant")
            changed = {f"gaussian_line_{name}": None for name in names}
        else:
            inputs = b.shape[-1] // risk.n_outputs
            some = np.append(0, 1 + keep) + inputs * np.arange(risk.n_outputs)[:, None]
            A, b = A[..., some.ravel()[:, None], some.ravel()], b[..., some.ravel()]
        changed |= {"gaussian_curvature": A, "gaussian_slope": b, "gaussian_constant": constant}
        references = np.arange(n_features, n_features + len(risk.factors))
        for name in ("gaussian_means", "gaussian_sds"):
            changed[name] = getattr(sent, name)[:, np.append(keep, references)]
        return replace(sent, risk=risk, **changed)


def without_closed_curves(fitted: Fitted) -> Fitted:
    """The fit, whose models have no numbers for bends that nobody has."""
    mixture = fitted.mixed
    left = OpenColumns.of(mixture, fitted.risk, len(fitted.scaling.used))
    if left is None or mixture is None:
        return fitted
    some, users, known, sent = left.numbers, fitted.users, fitted.newcomers, fitted.uploads
    cov = users.covariance

    def newcomers() -> Newcomers:
        return Newcomers(
            lambda: replace(known.groups, centers=known.groups.centers[:, some]),
            lambda: known.pooled[some],
            lambda: known.tails,
        )

    return replace(
        fitted,
        risk=left.risk,
        scaling=replace(fitted.scaling, curves=left.risk.curves),
        centers=fitted.centers[:, some],
        mixture=replace(mixture, coordinates=left.coordinates),
        users=replace(
            users,
            model=np.ascontiguousarray(users.model[:, some]),
            covariance=None if cov is None else cov[:, some[:, None], some],
        ),
        uploads=None if sent is None else left.uploads(sent),
        newcomers=newcomers(),
    )
