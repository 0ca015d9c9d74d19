"""Folds of users."""

from __future__ import annotations

import numpy as np

from odcl.wide.moments import FOLDS, user_folds


def test_a_users_fold_depends_on_its_id_alone():
    ids = np.arange(500)
    fold = user_folds(ids)
    some = np.random.default_rng(0).permutation(500)[:100]
    assert (user_folds(ids[some]) == fold[some]).all()
    assert (user_folds(ids.astype(str)) == fold).all()


def test_folds_are_about_equally_large():
    counts = np.bincount(user_folds(np.arange(5000)), minlength=FOLDS)
    assert len(counts) == FOLDS
    assert abs(counts - 1000).max() < 5 * np.sqrt(1000)
