"""Mixed groups of users whose uploads come in chunks: found on a sample, fitted to everybody."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from odcl._typing import Ints
from odcl.data.unusual import Limits
from odcl.exchange.upload import Uploads
from odcl.method import Method
from odcl.mixed.coordinates import Coordinates
from odcl.mixed.full_fit import everybody
from odcl.mixed.layout import model_map, model_spread
from odcl.mixed.mixture import Quadratics
from odcl.mixed.posterior import mixture_of
from odcl.mixed.search import search_sample
from odcl.mixed.streaming_em import Parameters, PassSums, pass_sums, shares_of
from odcl.risk.risk import GAUSSIAN_WIDTHS
from odcl.server.alternatives import of_fits
from odcl.server.columns import shared_coordinates, user_columns
from odcl.server.dispersion import DISPERSED, overdispersion
from odcl.server.mixed import (
    common_coordinates,
    curbed_text,
    found_text,
    outside_text,
    refuse_silence,
    seen_quadratics,
    with_own_groups,
)
from odcl.threads import one_thread

if TYPE_CHECKING:
    from odcl.server.stream import Chunks, Placed, StreamedStep, Survey


@dataclass(frozen=True, eq=False)
class MixedPlaces:
    """The likeliest group of every user, from its data term."""

    coordinates: Coordinates
    width: int  # of the Gaussian terms' prior
    parameters: Parameters
    limits: Limits  # users outside are placed, and take no part in what others are sent

    def place(self, uploads: Uploads) -> Placed:
        from odcl.server.stream import Placed

        with one_thread():
            r = shares_of(self.quadratics(uploads), self.parameters)
        labels = r.argmax(axis=1)
        return Placed(labels, r[np.arange(len(r)), labels])

    def sums(self, uploads: Uploads) -> PassSums:
        usual = ~self.limits.outside(user_columns(uploads)).in_features
        with one_thread():
            return pass_sums(self.quadratics(uploads.take(usual)), self.parameters)

    def quadratics(self, uploads: Uploads) -> Quadratics:
        own = not self.parameters.noise.common
        return seen_quadratics(uploads, self.coordinates, self.width, pure=own)


def _sums(uploads: Uploads, places: MixedPlaces) -> PassSums:
    return places.sums(uploads)


def stream_mixed(chunks: Chunks, looked: Survey, method: Method) -> StreamedStep:
    """Groups and differences by evidence on a sample; everybody takes part in what they are."""
    from odcl.server.stream import StreamedStep, Tally, added, tally

    like, smallest = looked.sample, method.smallest_group
    risk = like.risk
    assert risk is not None
    refuse_silence(looked.n_users, looked.speaking)
    at = common_coordinates(like, looked.total)
    limits = Limits.of(user_columns(like))
    outside = limits.outside(user_columns(like)).in_features
    apart, like = like.take(outside), like.take(~outside)
    fixed, dispersion = shared_coordinates(like, at), overdispersion(like, DISPERSED)
    widths = [0] if looked.total is not None else range(len(GAUSSIAN_WIDTHS))
    asked = dict(method.clusterer.params)  # max_groups, n_groups, spread
    tried = []
    for width in widths:
        q = seen_quadratics(like, at, width)
        q = replace(q, fixed=fixed, dispersion=dispersion)
        tried.append((search_sample(q, like.users, **asked), q, width))
    best, q, width = min(tried, key=lambda one: one[0].evidence)

    def placed(parameters: Parameters) -> MixedPlaces:
        return MixedPlaces(at, width, parameters, limits)

    def total(parameters: Parameters) -> PassSums:
        return added(chunks, partial(_sums, places=placed(parameters)))

    counted: list[Tally] = []

    def allowed(parameters: Parameters) -> bool:
        """Is every group the likeliest of enough users who said something?"""
        places, k = placed(parameters), parameters.n_groups
        counted.append(added(chunks, partial(tally, places=places, n_groups=k)))
        return bool(counted[-1].speaking.min() >= smallest)

    with one_thread():
        found = everybody(q, best, total, allowed)
    parameters = found.parameters
    everywhere: dict[str, Any] = {f.name: getattr(parameters, f.name) for f in fields(parameters)}
    told = replace(best, **everywhere, scales=found.scales, shares=found.shares)
    told = replace(told, curbed=parameters.n_groups < best.n_groups)
    curbed = curbed_text(told, smallest, parties=False)
    mixture, reason = mixture_of(told, at), found_text(told) + curbed
    if len(apart):
        mixture, more = with_own_groups(mixture, apart, method)
        allowed(mixture.parameters)
        reason += f" Of a sample,{outside_text(len(apart), more)}"
    counts = counted[-1]
    order: Ints = counts.order
    mixture = mixture.take(order)
    offset, change = model_map(mixture, risk)
    parameters, weighed = mixture.parameters, None
    # What has lost a group since is none of those that were looked at.
    if found.parameters.n_groups == best.n_groups:
        weighed = of_fits([fit for fit, *_ in tried], best, placed(parameters).place(like).labels)
    return StreamedStep(
        looked.n_users,
        counts.sizes[order],
        counts.rows[order],
        offset + mixture.centers @ change.T,
        "mixed groups",
        reason,
        "posterior mean of the groups' models",
        placed(parameters),
        float(np.diag(model_spread(mixture, risk)).mean()),
        "evidence",
        mixture,
        bool(curbed),
        found.passes,
        len(like),
        weighed,
        like.users,
    )
