"""Step 1 on a piece: rows of whole users -> their uploads; pieces of uploads -> whole ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from odcl._typing import Array
from odcl.data.federation import Federation, group_rows
from odcl.engines.partition.look import Job
from odcl.exchange.arrow import USER, uploads_from_arrow, uploads_to_arrow
from odcl.exchange.upload import Uploads
from odcl.local.fit import fit_users
from odcl.mixed.terms import DataTerms, merge_by_user

_NOBODY = {"int": 0, "float": 0.0, "bool": False, "text": ""}  # an id of each kind


def upload_rows(rows: pa.Table, job: Job) -> pa.Table:
    """What the users of these rows upload, one row per user, in canonical order."""
    return to_arrow(uploads_of(rows, job), job)


def merge_uploads(uploads: pa.Table, job: Job) -> pa.Table:
    """Uploads of some of each user's rows, added up: one row per user, in canonical order."""
    if not job.adds_up:
        raise ValueError(
            f"Uploads of the {job.risk.loss.name} loss are of all rows of a user, and do not add "
            "up: bring the rows of each user together first."
        )
    return to_arrow(merged(from_arrow(uploads, job)), job)


def to_arrow(uploads: Uploads | None, job: Job) -> pa.Table:
    if uploads is None:
        return no_uploads(job)
    return uploads_to_arrow(uploads, job.id_type)


def from_arrow(uploads: pa.Table, job: Job) -> Uploads:
    return uploads_from_arrow(uploads, job.risk, job.dim)


def federation_of(rows: pa.Table, job: Job) -> Federation | None:
    """The rows user by user, as the model sees them; None where there is no row to use."""
    encoded = job.encode(rows)
    if not len(encoded.codes):
        return None
    federation = encoded.federation()
    y: Array = np.asarray(federation.y, dtype=np.float64)
    return federation.with_X(job.scaling.apply(federation.X)).with_y(y)


def uploads_of(rows: pa.Table, job: Job) -> Uploads | None:
    federation = federation_of(rows, job)
    return None if federation is None else fitted(federation, job)


def fitted(federation: Federation, job: Job) -> Uploads:
    """Step 1 of Algorithm 1, as in memory."""
    return fit_users(
        federation,
        job.risk,
        job.method.sends,
        terms=job.method.clusterer.uses_terms,
        short_terms=job.method.short_terms,
        seed=job.seed,
    ).uploads


def merged(uploads: Uploads) -> Uploads:
    """Data terms of the same user as one."""
    ids, codes = group_rows(uploads.users)
    if len(ids) == len(uploads):
        return uploads.take(np.argsort(codes, kind="stable"))
    assert uploads.means is not None
    assert uploads.factor is not None
    terms = DataTerms(uploads.n_samples, uploads.means, uploads.factor)
    one = merge_by_user(terms, codes, len(ids))
    return replace(uploads, users=ids, n_samples=one.rows, means=one.mean, factor=one.factor)


def stand_in(job: Job) -> Federation:
    """Two rows of a user that is nobody: for the columns of tables without a user."""
    p = len(job.scaling.used)
    nobody = np.array([_NOBODY[job.schema.user_kind]])
    return Federation(np.zeros((2, p)), np.zeros(2), np.array([0, 2]), nobody)


def no_uploads(job: Job) -> pa.Table:
    """A table of uploads without a user."""
    uploads = fitted(stand_in(job), job).take(np.zeros(0, dtype=np.intp))
    table = uploads_to_arrow(uploads)
    return table.set_column(0, USER, pa.array([], job.id_type))
