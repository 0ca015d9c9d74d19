"""The models that a site received, as an estimator: `odcl predict` takes it like any other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from odcl.estimators.for_newcomers import Known
from odcl.server.assign import Groups, groups_of
from odcl.server.step import ServerStep

if TYPE_CHECKING:
    from odcl.engines.files.last_step import SiteModels


def site_estimator(site: SiteModels) -> Any:
    """A fitted ODCLRegressor or ODCLClassifier of a site's own users."""
    from odcl.estimators.public import ODCLClassifier, ODCLRegressor

    task, given = site.task, site.download
    kind = ODCLRegressor if task.classes is None else ODCLClassifier
    model: Any = kind(
        loss=task.risk.loss,
        l2=task.risk.l2,
        fit_intercept=task.risk.intercept,
        method=task.method,
    )
    if task.classes is not None:
        model.classes_ = np.array(task.classes)
    model.schema_, model.scaling_ = site.table.schema, task.scaling
    model.has_users_, model.target_name_ = site.table.has_users, task.target
    model.design_ = site.table.schema.design
    model.feature_names_in_ = np.array(site.table.schema.features, dtype=object)
    model.n_features_in_ = len(model.feature_names_in_)
    model.risk_, model.method_ = task.risk, task.resolved
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


def _all_groups(model: Any, site: SiteModels) -> None:
    """Mixed groups: every site knows all of them, and nothing of other sites' features."""
    from odcl.mixed.house import model_map, model_spread, without_rows

    mixture, risk = model.mixture_, site.task.risk
    offset, change = model_map(mixture, risk)
    model.cluster_theta_ = offset + mixture.centers @ change.T
    model.labels_ = site.labels
    model.tau2_ = float(np.diag(model_spread(mixture, risk)).mean())
    members = np.maximum(site.download.groups.sizes, 1)
    some = members.astype(np.float64)
    rest = (model.tau2_, model.tau2_, np.nan, 0.0)
    groups = Groups(model.cluster_theta_, members, some, np.ones(len(some)), *rest)
    model.for_newcomers_ = Known(groups, None, without_rows(mixture, risk)[0][-1])


def _own_groups(model: Any, site: SiteModels) -> None:
    """Other methods: a site knows the groups of its own users."""
    from odcl.local.fit import fit_users
    from odcl.local.predict import one_for_all

    task, given = site.task, site.download.downloads
    numbers, labels = np.unique(site.labels, return_inverse=True)
    first = [int(np.flatnonzero(site.labels == k)[0]) for k in numbers]
    centers = given.model[first]
    step = ServerStep(
        *(site.users, labels, centers, given.model, model.rule_, model.reason_, ""),
        tau2=given.tau2,
    )
    local = fit_users(site.rows, task.risk, task.resolved.sends)
    model.cluster_theta_, model.labels_, model.tau2_ = centers, labels, given.tau2
    groups = groups_of(site.rows, task.risk, local, step, task.resolved)
    model.for_newcomers_ = Known(groups, None, one_for_all(site.rows, task.risk))
