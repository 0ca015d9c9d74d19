"""Sites that come after the round: placed without anybody else."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from odcl.engines.files import assign, combine_uploads, fit_site, receive
from odcl.engines.files.keys import make_keys, read_key
from tests.engines.files.world import class_task, frames, send, task, time, with_keys
from tests.helpers import files_below, refusal

TABLES = frames(8, 40)
FIRST = {site: TABLES[site] for site in list(TABLES)[:6]}


@pytest.fixture
def a_round(tmp_path):
    combine_uploads(task(), send(task(), FIRST, tmp_path / "uploads"), out=tmp_path / "round")
    return tmp_path / "round"


def late(table, tmp_path, site="late", given=None):
    file = tmp_path / f"{site}.upload"
    fit_site(given or task(), table, site=site, created=time(3)).write(file)
    return file


@pytest.mark.parametrize("site", ["mill", "dale"])
def test_a_late_site_joins_its_group_and_the_round_stays_as_it_is(site, a_round, tmp_path):
    before = files_below(a_round)
    file = late(TABLES[site], tmp_path, site)
    found = assign(a_round, file)
    assert files_below(a_round) == before
    found.write(tmp_path / "late.download")
    assert found.users.downloads.group.tolist() == [["mill", "dale"].index(site)]
    assert 0.3 < found.users.distance[0] < 2
    got = receive(task(), file, tmp_path / "late.download", TABLES[site])
    assert got.labels.tolist() == found.users.downloads.group.tolist()
    X = np.column_stack([TABLES[site].a, TABLES[site].b, TABLES[site].c == "q"])
    assert_allclose(got.models[0, :2], [[3, -2], [-3, 2]][found.users.downloads.group[0]], atol=0.3)
    assert np.std(TABLES[site].y - X @ got.models[0, :3]) < 1


def test_late_wards_are_told_of_their_own_groups_and_no_others(tmp_path):
    """Three sites of one group, two of the other, and a late site with wards of both."""
    five = {site: TABLES[site] for site in list(TABLES)[:5]}
    combine_uploads(task(), send(task(), five, tmp_path / "uploads"), out=tmp_path / "round")
    frame = pd.concat([TABLES[s].assign(ward=w) for w, s in (("a", "dale"), ("b", "mill"))])
    fit_site(task(), frame, site="late", user="ward", created=time(3)).write(tmp_path / "l.upload")
    found = assign(tmp_path / "round", tmp_path / "l.upload")
    assert found.users.downloads.group.tolist() == [
        1,
        0,
    ]  # numbered by first site, east
    found.write(tmp_path / "late.download")
    back = tmp_path / "late.download"
    got = receive(task(), tmp_path / "l.upload", back, frame, user="ward")
    assert got.labels.tolist() == [1, 0]
    assert got.download.groups.sizes.tolist() == got.download.groups.sites.tolist() == [3, 2]
    told = got.download.downloads
    assert told.group_size.tolist() == [2, 3]
    assert_array_equal(told.probability, found.users.downloads.probability)
    assert_allclose(got.models[:, 0], [-3, 3], atol=0.3)


def test_a_late_site_that_fits_nowhere_is_told_so_with_its_distance(a_round, tmp_path):
    strange = TABLES["mill"].assign(y=30 * TABLES["mill"].a - 70)
    file = late(strange, tmp_path)
    found = assign(a_round, file)
    found.write(tmp_path / "late.download")
    assert found.users.none_of_these.tolist() == [True]
    assert found.users.downloads.group.tolist() == [-1]
    assert found.users.distance[0] > 10
    got = receive(task(), file, tmp_path / "late.download", strange)
    assert_allclose(got.models[0], [30, 0, 0, -70], atol=0.5)  # its own model
    assert got.estimator().labels_.tolist() == [-1]


def test_a_member_placed_late_gets_nearly_the_model_it_has(a_round, tmp_path):
    """South's term is in the center already: placed anew under another name it moves little."""
    file = late(TABLES["south"], tmp_path)
    found = assign(a_round, file)
    found.write(tmp_path / "late.download")
    again = receive(task(), file, tmp_path / "late.download", TABLES["south"])
    member = receive(
        task(),
        tmp_path / "uploads" / "south.upload",
        a_round / "south.download",
        TABLES["south"],
    )
    assert_array_equal(again.models, member.models)


def test_a_site_of_the_round_is_not_late(a_round, tmp_path):
    refusal(assign, a_round, tmp_path / "uploads" / "south.upload", match="in the round already")


def test_an_upload_of_another_task_is_not_placed(a_round, tmp_path):
    file = late(TABLES["mill"], tmp_path, given=task(name="other"))
    refusal(assign, a_round, file, match="another task")
    refusal(assign, tmp_path / "uploads", file, match="holds no round")


def test_a_round_that_was_changed_places_nobody(a_round, tmp_path):
    file = late(TABLES["mill"], tmp_path)
    groups = a_round / "round.groups"
    content = bytearray(groups.read_bytes())
    content[-1] ^= 1
    groups.write_bytes(content)
    refusal(assign, a_round, file, match="was changed since")


def test_a_round_whose_card_was_changed_places_nobody(a_round, tmp_path):
    """Not even by a word that no digest of what was agreed on would see."""
    file, card = late(TABLES["mill"], tmp_path), a_round / "task.toml"
    card.write_text(card.read_text() + "# seen\n")
    refusal(assign, a_round, file, match="task.toml was changed since")


def test_a_site_whose_users_send_nothing_is_late_all_the_same(a_round, tmp_path):
    given, tiny = task(minimum_rows=5), TABLES["mill"][:3]
    combine_uploads(given, send(given, FIRST, tmp_path / "more"), out=tmp_path / "again")
    file = late(tiny, tmp_path, given=given)
    found = assign(tmp_path / "again", file)
    found.write(tmp_path / "late.download")
    assert len(found.users.downloads.group) == 0
    got = receive(given, file, tmp_path / "late.download", tiny)
    assert got.labels.tolist() == [0]


def test_classes_and_signatures(tmp_path):
    """The late site's key is on a newer card of the same task."""
    tables = frames(8, 60, classes=True)
    first = {site: tables[site] for site in list(tables)[:6]}
    given, keys = with_keys(class_task(), first, tmp_path / "keys")
    sent = send(given, first, tmp_path / "uploads", keys=keys)
    combine_uploads(given, sent, out=tmp_path / "round", key=keys["coordinator"])
    own = read_key(make_keys("mill", tmp_path / "mill")[0])
    given = given.with_keys("mill", own.public)
    file = tmp_path / "mill.upload"
    fit_site(given, tables["mill"], site="mill", key=own).write(file)
    refusal(assign, tmp_path / "round", file, match="private key")
    key = keys["coordinator"]
    refusal(assign, tmp_path / "round", file, key=key, match="the card lists no site 'mill'")
    refusal(assign, tmp_path / "round", file, key=key, task=class_task(name="x"), match="another")
    found = assign(tmp_path / "round", file, key=key, task=given)
    found.write(tmp_path / "mill.download")
    got = receive(given, file, tmp_path / "mill.download", tables["mill"])
    assert got.estimator().predict_proba(tables["mill"]).shape == (60, 2)
