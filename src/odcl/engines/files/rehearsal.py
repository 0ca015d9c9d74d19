"""What a private round would cost, tried on a table at hand: nothing leaves, nothing is kept."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from odcl._typing import Floats
from odcl.data.federation import Federation
from odcl.engines.files.task import Task
from odcl.engines.in_process import fit
from odcl.errors import InputError
from odcl.local.fit import fit_users
from odcl.local.predict import linear_predictors


def rehearse(task: Task, rows: Federation, *, draws: int = 5) -> dict[str, list[float]]:
    """Errors on every fourth row of each user, held out, by what is sent; private ones by draw.

    ``rows`` are those of :func:`~odcl.engines.files.site.read_site`. Of numbers the root mean
    squared error, else the mean loss. Users stand for sites where a group needs several of these.
    """
    if task.method.privacy is None:
        raise InputError("The card asks for exact uploads, and a rehearsal is of private ones.")
    rows = rows.take(np.flatnonzero(rows.n_rows >= 4))
    if rows.n_users < 2:
        raise InputError("A rehearsal needs several users of four rows or more: name their column.")
    out = (np.arange(len(rows.y)) - rows.offsets[:-1][rows.row_user]) % 4 == 3
    train, held = rows.select_rows(~out), rows.select_rows(out)
    y, squared = task.risk.loss.encode(held.y), task.risk.loss.name == "squared"

    def lost(theta: Floats) -> float:
        z = linear_predictors(held.X, theta, held.row_user, task.risk)
        mean = float(task.risk.loss.value(z, y).mean())
        return (2 * mean) ** 0.5 if squared else mean

    exact = replace(task.method, privacy=None)
    return {
        "own rows alone": [lost(fit_users(train, task.risk).theta)],
        "exact uploads": [lost(fit(train, task.risk, exact).models)],
        "private uploads": [lost(fit(train, task.risk, task.method).models) for _ in range(draws)],
    }
