"""What speaks for a fit lies beside its model: declared, checked when read, true of the fit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from odcl import ODCLClassifier, ODCLRegressor, compare
from odcl.artifact.arrays import json_bytes
from odcl.artifact.folder import Artifact, open_artifact, write_artifact
from odcl.runs.evidence import (
    MOST_ROWS,
    WORDS,
    Evidence,
    evidence_files,
    read_evidence,
)
from tests.helpers import features_of, people


def fitted(**settings):
    frame = people(n_users=12, n=40)
    X, y, users = features_of(frame), frame["y"].to_numpy(), frame["user"].to_numpy()
    return ODCLRegressor(**settings).fit(X, y, users), compare(ODCLRegressor(), X, y, users)


def written(found, path, **changes):
    """The two files as an artifact, words changed."""
    files = evidence_files(found)
    words = json.loads(files[WORDS]) | changes
    write_artifact(path, Artifact("model", files | {WORDS: json_bytes(words)}))
    return path


def read(path, n_users=12):
    with open_artifact(path, kind="model") as stored:
        return read_evidence(stored, n_users)


def test_what_is_written_is_read(tmp_path):
    model, comparison = fitted()
    found = Evidence.of(model.fitted_, comparison, command=("odcl", "fit"), holdout="0.2")
    back = read(written(found, tmp_path / "run"))
    assert (back.command, back.holdout) == (("odcl", "fit"), "0.2")
    assert (back.bytes_up, back.bytes_down) == (model.result_.bytes_up, model.result_.bytes_down)
    assert [one.n_groups for one in back.weighed.options] == [
        one.n_groups for one in found.weighed.options
    ]
    for a, b in zip(back.weighed.options, found.weighed.options, strict=True):
        assert a.score == b.score
        assert_array_equal(a.labels, b.labels)
    for name, scores in comparison.scores.items():
        assert_array_equal(back.comparison.scores[name], scores)
    held = comparison.held
    few = np.concatenate([np.flatnonzero(held.owner == i)[:MOST_ROWS] for i in range(12)])
    assert_array_equal(back.comparison.held.seen, held.seen[few])
    assert_array_equal(back.comparison.held.predicted["odcl"], held.predicted["odcl"][few])


def test_of_every_user_so_many_held_out_rows_are_kept_and_no_more(tmp_path, monkeypatch):
    model, comparison = fitted()
    assert np.bincount(comparison.held.owner).tolist() == [8] * 12
    for most in (1, 3, 8):
        monkeypatch.setattr("odcl.runs.evidence.MOST_ROWS", most)
        back = read(written(Evidence.of(model.fitted_, comparison), tmp_path / f"run-{most}"))
        assert np.bincount(back.comparison.held.owner).tolist() == [most] * 12


def test_the_log_loss_of_classes_is_written_and_read(tmp_path):
    frame = people(n_users=12, n=40)
    X, y, users = features_of(frame), frame["y"] > 3, frame["user"]
    model = ODCLClassifier().fit(X, y, users=users)
    comparison = compare(ODCLClassifier(), X, y, users=users)
    back = read(written(Evidence.of(model.fitted_, comparison), tmp_path / "run")).comparison
    assert str(back) == str(comparison)
    for name, scores in comparison.log_loss.items():
        assert_array_equal(back.log_loss[name], scores)


def test_a_model_without_evidence_has_none(tmp_path):
    model, _ = fitted()
    model.save(tmp_path / "run")
    assert read(tmp_path / "run").weighed is None


@pytest.mark.parametrize(
    "changes",
    [
        {"command": [1]},
        {"bytes_up": -1},
        {"table": {"name": 3}},
        {"weighed": {"measure": "magic", "options": [], "chosen": None}},
        {"weighed": {"measure": "evidence", "options": [], "chosen": 3}},
        {"comparison": {"metric": "luck"}},
        {"notices": None},
    ],
)
def test_words_that_are_not_ours_are_refused_by_the_name_of_their_file(tmp_path, changes):
    model, comparison = fitted()
    written(Evidence.of(model.fitted_, comparison), tmp_path / "run", **changes)
    with pytest.raises(ValueError, match=r"evidence\.json"):
        read(tmp_path / "run")


def test_evidence_of_more_users_than_there_are_is_refused(tmp_path):
    model, comparison = fitted()
    written(Evidence.of(model.fitted_, comparison), tmp_path / "run")
    with pytest.raises(ValueError, match=r"evidence\.json"):
        read(tmp_path / "run", n_users=5)


@pytest.mark.parametrize(
    ("clusterer", "measure"),
    [("auto", "evidence"), ("silhouette", "silhouette"), ("convex", "lambda")],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_every_rule_tells_what_it_weighed_and_which_it_took(clusterer, measure):
    model, _ = fitted(clusterer=clusterer)
    weighed = model.result_.step.weighed
    assert weighed.measure == measure
    counts = [one.n_groups for one in weighed.options]
    assert counts == sorted(counts)
    chosen = weighed.options[weighed.chosen]
    assert chosen.n_groups == model.n_clusters_
    assert_array_equal(chosen.labels, model.labels_)
    for one in weighed.options:
        if one.labels is not None:
            assert len(np.unique(one.labels[one.labels >= 0])) <= one.n_groups


def test_users_in_another_order_have_their_alternatives_with_them():
    model, _ = fitted()
    step = model.result_.step
    order = np.arange(12)[::-1]
    for one, other in zip(step.weighed.options, step.take(order).weighed.options, strict=True):
        assert_array_equal(other.labels, one.labels[order])


def test_a_report_of_a_model_in_python_is_one_file(tmp_path):
    model, comparison = fitted()
    model.report(tmp_path / "page.html", comparison=comparison)
    assert [file.name for file in tmp_path.iterdir()] == ["page.html"]
    text = (tmp_path / "page.html").read_text()
    assert "held-out rows" in text
    ODCLRegressor.load(_saved(model, tmp_path)).report(tmp_path / "again.html")  # without a result
    assert Evidence().comparison is None


def _saved(model, tmp_path) -> Path:
    model.save(tmp_path / "run")
    return tmp_path / "run"
