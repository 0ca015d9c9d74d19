"""Fits of a federation: what a site knows of its own users, and a server of all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from odcl._typing import Floats, Ints
from odcl.data.scaling import Scaling
from odcl.data.schema import TableSchema
from odcl.exchange.upload import Uploads
from odcl.fitted.columns import UserColumns
from odcl.fitted.value import Fitted, InputColumns, Newcomers, settings_of
from odcl.local.receive import Received
from odcl.method import Method
from odcl.mixed.layout import model_map, model_spread, without_rows
from odcl.server.assign_models import GroupStatistics, groups_of, groups_of_uploads
from odcl.server.combine import combine_clusters
from odcl.server.result import ServerStep

if TYPE_CHECKING:
    from odcl.engines.files.last_step import SiteModels


def server_fitted(
    uploads: Uploads,
    step: ServerStep,
    method: Method,
    resolved: Method,
    *,
    schema: TableSchema,
    scaling: Scaling,
) -> Fitted:
    """The fit as the server knows it from the uploads alone.

    Models are those of the users' data terms where these were sent (for squared loss that is what
    users have themselves), else their groups'. ``schema`` and ``scaling`` say how a table becomes
    the rows that users fitted.
    """
    assert uploads.risk is not None
    risk = uploads.risk
    if step.mixture is None:
        everybody = np.zeros(len(uploads), dtype=np.intp)
        pooled = combine_clusters(uploads, everybody, resolved.combine).centers[0]
        received = Received(step.models, np.full(len(uploads), np.nan), "none")
    else:
        from odcl.server.assign import models_by_terms

        pooled = without_rows(step.mixture, risk)[0][-1]
        received = models_by_terms(uploads, step.mixture)
    rows = uploads.n_samples.astype(np.intp)
    return Fitted.of_step(
        step,
        InputColumns.of_schema(schema, schema.user),
        scaling,
        risk=risk,
        method=resolved,
        users=UserColumns.of(uploads.users, rows, received, step.labels, step.probabilities),
        uploads=uploads,
        newcomers=Newcomers.of(groups_of_uploads(uploads, step, resolved), pooled),
        settings=settings_of(risk, method, schema.user),
    )


def site_fitted(site: SiteModels) -> Fitted:
    """The fit of a site's own users."""
    task, groups, schema = site.task, site.download.groups, site.table.schema
    risk, mixture = task.risk, groups.mixture
    labels, received = site.labels, site.received
    if mixture is not None:  # every site knows all groups, and nothing of other sites' features
        offset, change = model_map(mixture, risk)
        centers = offset + mixture.centers @ change.T
        tau2: float | None = float(np.diag(model_spread(mixture, risk)).mean())
        members = np.maximum(groups.sizes, 1)
        some = members.astype(np.float64)
        sizes = (tau2 or 0.0, tau2 or 0.0, np.nan, 0.0)
        own = GroupStatistics(centers, members, some, np.ones(len(some)), *sizes)
        newcomers = Newcomers.of(own, without_rows(mixture, risk)[0][-1])
    else:
        centers, labels, tau2, newcomers = _own_groups(site)
    columns = UserColumns(
        site.users,
        labels,
        site.probability,
        site.rows.n_rows,
        site.models,
        received.covariance,
        received.noise,
        received.dof,
    )
    return Fitted(
        InputColumns.of_schema(schema),
        task.scaling,
        risk,
        task.resolved,
        groups.rule,
        f"{groups.reason} {groups.diagnosis}",
        centers,
        mixture,
        tau2,
        newcomers,
        columns,
        site.uploads,
        has_users=site.table.has_users,
        whole=False,
        settings=settings_of(risk, task.method),
    )


def _own_groups(site: SiteModels) -> tuple[Floats, Ints, float | None, Newcomers]:
    """Other methods: a site knows the groups of its own users. Models, labels, tau2, and more."""
    from odcl.local.predict import one_for_all

    task, given, told = site.task, site.download.downloads, site.download.groups
    numbers, labels = np.unique(site.labels, return_inverse=True)
    first = [int(np.flatnonzero(site.labels == k)[0]) for k in numbers]
    centers = given.model[first]
    step = ServerStep(
        *(site.users, labels, centers, given.model, told.rule, told.reason, ""),
        tau2=given.tau2,
    )
    groups = groups_of(site.rows, task.risk, site.local, step, task.resolved)
    newcomers = Newcomers.of(groups, one_for_all(site.rows, task.risk))
    return centers, labels, given.tau2, newcomers
