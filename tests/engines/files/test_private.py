"""A private round by file: card, one file out, one file back, and what stays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from odcl import Privacy
from odcl.engines.files import Task, fit_site
from odcl.engines.files.combine import assign, combine_uploads
from odcl.engines.files.last_step import receive
from odcl.privacy import looks
from tests.engines.files import world
from tests.privacy.test_noise import entropy_of

PRIVATE_UPLOAD = looks.private_upload


@pytest.fixture(autouse=True)
def _entropy(monkeypatch):
    entropy = entropy_of(0)
    monkeypatch.setattr(looks, "private_upload", lambda *a: PRIVATE_UPLOAD(*a, entropy))


def private_task(epsilon=4.0, *, classes=False, **changes) -> Task:
    plain = world.class_task() if classes else world.task()
    bounds = None if classes else (-12.0, 20.0)
    privacy = Privacy(epsilon, 1e-6, target_range=bounds)
    return replace(plain, method=replace(plain.method, privacy=privacy), **changes)


@pytest.mark.parametrize("classes", [False, True], ids=["numbers", "classes"])
def test_a_private_round_by_file_from_card_to_models(tmp_path, classes):
    private_task(classes=classes).write(tmp_path / "task.toml")
    task = Task.read(tmp_path / "task.toml")
    assert task == private_task(classes=classes)
    tables = world.frames(6, 400, classes=classes)
    uploads = world.send(task, tables, tmp_path / "in")
    combine_uploads(task, uploads, out=tmp_path / "round")
    site = "north"
    down = next((tmp_path / "round").rglob(f"{site}.download"))
    models = receive(task, uploads / f"{site}.upload", down, tables[site])
    if not classes:
        rows = models.table.rows
        z = np.column_stack([rows.X, np.ones(len(rows.X))]) @ models.models[0]
        assert np.sqrt(np.mean((z - rows.y) ** 2)) < 0.6
    table = models.estimator().coefficients()
    assert len(table)


def test_limits_that_decide_by_rows_are_off():
    task = private_task(smallest_cell=7, minimum_rows=9)
    assert (task.smallest_cell, task.minimum_rows) == (1, 1)
    frame = world.frames(1, 30)["north"]
    frame.loc[0, "c"] = "q"
    sent = fit_site(task, frame, site="north")
    assert sent.released.rows.n_rows.tolist() == [30]
    assert not sent.released.withheld.levels


def test_what_the_guarantee_does_not_cover_is_no_task():
    with pytest.raises(ValueError, match="huber"):
        private_task(risk=world.Risk("huber", 0.0, True))


def test_late_private_uploads_wait_for_a_new_round(tmp_path):
    task, tables = private_task(), world.frames(4, 100)
    uploads = world.send(task, tables, tmp_path / "in")
    combine_uploads(task, uploads, out=tmp_path / "round")
    late = world.send(task, {"lake": tables["north"]}, tmp_path / "late")
    with pytest.raises(ValueError, match=r"new round.*--late"):
        assign(tmp_path / "round", late / "lake.upload")


@pytest.mark.parametrize("classes", [False, True], ids=["numbers", "classes"])
def test_a_late_site_sends_nothing_of_its_rows_and_spends_nothing(tmp_path, classes):
    task, tables = private_task(classes=classes), world.frames(6, 400, classes=classes)
    last, table = tables.popitem()
    uploads = world.send(task, tables, tmp_path / "in")
    combine_uploads(task, uploads, out=tmp_path / "round")
    ledger, place = tmp_path / "site.ledger", tmp_path / f"{last}.upload"
    sent = {}
    for name, frame in {"own": table, "other": table.iloc[50:]}.items():
        when = {"created": "2026-01-01T00:00:00.000000Z"}
        one = fit_site(task, frame, site=last, ledger=ledger, late=True, **when)
        sent[name] = one.content
    assert sent["own"] == sent["other"]  # nothing in it is of the rows
    assert not ledger.exists()
    place.write_bytes(sent["own"])
    assign(tmp_path / "round", place).write(tmp_path / f"{last}.download")
    models = receive(task, place, tmp_path / f"{last}.download", table)
    assert len(models.users) == 1
    if not classes:
        rows = models.table.rows
        z = np.column_stack([rows.X, np.ones(len(rows.X))]) @ models.models[0]
        assert np.sqrt(np.mean((z - rows.y) ** 2)) < 0.6
    assert len(models.estimator().coefficients())
