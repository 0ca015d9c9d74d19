"""A rehearsal of a private round: the figures of the round itself, and nothing sent or kept."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from odcl.engines.files.combine import combine_uploads
from odcl.engines.files.last_step import receive
from odcl.engines.files.rehearsal import rehearse
from odcl.engines.files.site import read_site
from odcl.errors import InputError
from odcl.privacy import looks
from tests.engines.files import world
from tests.engines.files.test_private import private_task


def held_out(frame):
    return np.arange(len(frame)) % 4 == 3


def together(tables):
    """The tables of all sites as one, whose users they are."""
    return pd.concat(frame.assign(site=name) for name, frame in tables.items())


@pytest.mark.parametrize("classes", [False, True], ids=["numbers", "classes"])
def test_a_rehearsal_has_the_errors_of_the_round_by_file(classes, tmp_path, monkeypatch):
    """On the same rows, without noise, which is drawn site by site."""
    monkeypatch.setattr(looks, "discrete_gaussian", lambda sd, size, entropy: np.zeros(size, int))
    task, tables = private_task(classes=classes), world.frames(6, 200, classes=classes)
    found = rehearse(task, read_site(task, together(tables), "site").rows, draws=2)
    known = {site: frame[~held_out(frame)] for site, frame in tables.items()}
    uploads = world.send(task, known, tmp_path / "in")
    combine_uploads(task, uploads, out=tmp_path / "round")
    lost = []
    for site, frame in tables.items():
        down = next((tmp_path / "round").rglob(f"{site}.download"))
        theta = receive(task, uploads / f"{site}.upload", down, known[site]).models[0]
        rows = read_site(task, frame[held_out(frame)]).rows
        z = np.column_stack([rows.X, np.ones(len(rows.X))]) @ theta
        lost.append(np.log1p(np.exp(-z * (2 * rows.y - 1))) if classes else (rows.y - z) ** 2)
    mean = np.concatenate(lost).mean()
    assert found["private uploads"] == pytest.approx([mean if classes else mean**0.5] * 2, rel=1e-9)
    assert found["own rows alone"] > found["exact uploads"]


def test_noise_costs_something_and_more_of_it_more(monkeypatch):
    """Noise has no seed; here it has one, so that the test does not depend on luck."""
    rng = np.random.default_rng(0)

    def drawn(sd, size, entropy):
        return np.rint(sd * rng.standard_normal(size)).astype(int)

    monkeypatch.setattr(looks, "discrete_gaussian", drawn)
    tables = world.frames(8, 200)
    lost = {}
    for epsilon in (0.2, 8.0):
        task = private_task(epsilon)
        rows = read_site(task, together(tables), "site").rows
        lost[epsilon] = np.mean(rehearse(task, rows, draws=3)["private uploads"])
    assert lost[0.2] > lost[8.0]


def test_what_cannot_be_rehearsed_is_said():
    task, tables = private_task(), world.frames(2, 40)
    with pytest.raises(InputError, match="exact uploads"):
        rehearse(world.task(), read_site(world.task(), together(tables), "site").rows)
    with pytest.raises(InputError, match="several users"):
        rehearse(task, read_site(task, tables["north"]).rows)
