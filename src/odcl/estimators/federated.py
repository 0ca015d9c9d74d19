"""Models of a federation as estimators: `odcl predict` takes them like any other.

A site holds its own users' models; a server those of all users, as far as it knows them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from odcl.data.scaling import Scaling
from odcl.data.schema import TableSchema
from odcl.estimators.for_newcomers import Known
from odcl.exchange.upload import Uploads
from odcl.method import Method
from odcl.mixed.differences import inside_text
from odcl.risk.risk import Risk
from odcl.server.assign_models import GroupStatistics, groups_of, groups_of_uploads
from odcl.server.combine import combine_clusters
from odcl.server.result import ServerStep

if TYPE_CHECKING:
    from odcl.data.federation import Federation
    from odcl.engines.files.last_step import SiteModels
    from odcl.engines.in_process import Result


def site_estimator(site: SiteModels) -> Any:
    """A fitted ODCLRegressor or ODCLClassifier of a site's own users."""
    task, given, schema = site.task, site.download, site.table.schema
    model = _estimator(
        *(task.risk, task.method, schema, task.scaling),
        classes=task.classes,
        columns=schema.features,
    )
    model._has_users, model._whole = site.table.has_users, False
    model.method_ = task.resolved
    model.users_, model.uploads_ = site.users, site.uploads
    model.n_rows_, model.probability_ = site.rows.n_rows, site.probability
    model.theta_, received = site.models, site.received
    model.covariance_, model.noise_, model.dof_ = received.covariance, received.noise, received.dof
    model.rule_ = given.groups.rule
    model.reason_ = f"{given.groups.reason} {given.groups.diagnosis}"
    model.mixture_ = given.groups.mixture
    if model.mixture_ is None:
        _own_groups(model, site)
    else:
        _all_groups(model, site)
    model.n_clusters_ = len(model.cluster_theta_)
    return model


def server_estimator(
    uploads: Uploads,
    step: ServerStep,
    method: Method,
    resolved: Method,
    *,
    schema: TableSchema,
    scaling: Scaling,
) -> Any:
    """A fitted estimator of all users, as the server knows them that took their uploads.

    Models are those of the users' data terms where these were sent (for squared loss that is what
    users have themselves), else their groups'. ``schema`` and ``scaling`` say how a table becomes
    the rows that users fitted.
    """
    assert uploads.risk is not None
    risk = uploads.risk
    model = _estimator(
        *(risk, method, schema, scaling),
        classes=schema.classes,
        columns=(schema.user, *schema.features),
        users=schema.user,
    )
    model._has_users, model._whole = True, True
    model.method_ = resolved
    model.users_, model.uploads_ = uploads.users, uploads
    model.n_rows_ = uploads.n_samples.astype(np.intp)
    nothing = np.full(len(uploads), np.nan)
    model.probability_ = nothing if step.probabilities is None else step.probabilities
    model.labels_, model.cluster_theta_ = step.labels, step.centers
    model.n_clusters_, model.tau2_ = step.n_clusters, step.tau2
    model.mixture_, model.rule_ = step.mixture, step.rule
    model.covariance_ = model.noise_ = model.dof_ = None
    if step.mixture is None:
        everybody = np.zeros(len(uploads), dtype=np.intp)
        model.theta_ = step.models
        pooled = combine_clusters(uploads, everybody, resolved.combine).centers[0]
    else:
        from odcl.mixed.layout import without_rows
        from odcl.server.assign import models_by_terms

        own = models_by_terms(uploads, step.mixture)
        model.theta_, model.covariance_ = own.models, own.covariance
        model.noise_, model.dof_ = own.noise, own.dof
        pooled = without_rows(step.mixture, risk)[0][-1]
    groups = groups_of_uploads(uploads, step, resolved)
    model._for_newcomers = Known(groups, pooled)
    inside = inside_text(model.mixture_, model.risk_, model._units)
    model.reason_ = f"{step.reason} {inside}".rstrip()
    return model


def _estimator(
    risk: Risk,
    method: Method,
    schema: TableSchema,
    scaling: Scaling,
    *,
    classes: Sequence[Any] | None,
    columns: Sequence[str],
    users: str | None = None,
) -> Any:
    """An estimator with what a federation agreed on beforehand."""
    from odcl.estimators.public import ODCLClassifier, ODCLRegressor

    kind = ODCLRegressor if classes is None else ODCLClassifier
    model: Any = kind(
        loss=risk.loss, l2=risk.l2, fit_intercept=risk.intercept, method=method, users=users
    )
    if classes is not None:
        model.classes_ = np.array(classes)
    model.schema_, model.scaling_, model.design_ = schema, scaling, schema.design
    model.risk_, model._target_name = risk, schema.target
    model.feature_names_in_ = np.array(columns, dtype=object)
    model.n_features_in_ = len(columns)
    return model


def result_estimator(result: Result, federation: Federation) -> Any:
    """A fitted estimator of a round in this process, whose columns are in their own units."""
    from odcl.data.scaling import Scaling
    from odcl.estimators.public import ODCLClassifier, ODCLRegressor

    risk, p = result.risk, federation.n_features
    kind = ODCLClassifier if risk.loss.classification else ODCLRegressor
    model: Any = kind(
        loss=risk.loss,
        l2=risk.l2,
        fit_intercept=risk.intercept,
        method=result.method,
        random_state=result.seed,
    )
    if risk.loss.classification:
        model.classes_ = np.arange(max(risk.n_outputs + 1, 2))
    model.design_, model.schema_, model._target_name = None, None, ""
    model.n_features_in_ = p
    scaling = Scaling(np.zeros(p), np.ones(p), np.arange(p), p)
    return model._keep_result(result, federation, scaling)


def _all_groups(model: Any, site: SiteModels) -> None:
    """Mixed groups: every site knows all of them, and nothing of other sites' features."""
    from odcl.mixed.layout import model_map, model_spread, without_rows

    mixture, risk = model.mixture_, site.task.risk
    offset, change = model_map(mixture, risk)
    model.cluster_theta_ = offset + mixture.centers @ change.T
    model.labels_ = site.labels
    model.tau2_ = float(np.diag(model_spread(mixture, risk)).mean())
    members = np.maximum(site.download.groups.sizes, 1)
    some = members.astype(np.float64)
    rest = (model.tau2_, model.tau2_, np.nan, 0.0)
    groups = GroupStatistics(model.cluster_theta_, members, some, np.ones(len(some)), *rest)
    model._for_newcomers = Known(groups, without_rows(mixture, risk)[0][-1])


def _own_groups(model: Any, site: SiteModels) -> None:
    """Other methods: a site knows the groups of its own users."""
    from odcl.local.predict import one_for_all

    task, given = site.task, site.download.downloads
    numbers, labels = np.unique(site.labels, return_inverse=True)
    first = [int(np.flatnonzero(site.labels == k)[0]) for k in numbers]
    centers = given.model[first]
    step = ServerStep(
        *(site.users, labels, centers, given.model, model.rule_, model.reason_, ""),
        tau2=given.tau2,
    )
    model.cluster_theta_, model.labels_, model.tau2_ = centers, labels, given.tau2
    groups = groups_of(site.rows, task.risk, site.local, step, task.resolved)
    model._for_newcomers = Known(groups, one_for_all(site.rows, task.risk))
