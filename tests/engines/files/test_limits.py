"""What may leave a site: cells, users and rows that are too few stay."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal

from odcl import Method, ODCLRegressor
from odcl.engines.files import Feature, combine_uploads, fit_site, receive
from odcl.engines.files.envelope import read_envelope
from odcl.engines.files.site import Withheld, read_site, release
from tests.engines.files.world import class_task, frames, send, task, time
from tests.helpers import refusal

TABLES = frames(6, 40)


def released(given, frame, user=None):
    return release(read_site(given, frame, user))


def test_rows_of_a_level_seen_too_few_times_are_withheld_and_named():
    frame = TABLES["south"].copy()
    frame["c"] = ["p"] * 37 + ["q"] * 3
    sent = fit_site(task(), frame, site="south")
    assert sent.uploads.n_samples.tolist() == [37]
    assert sent.released.levels == ("c=q",)
    assert sent.released.withheld == Withheld(("c=q",), (), 0)
    assert "withheld: rows of c=q, seen fewer than 5 times" in sent.released.sentences(5)[0]
    alone = fit_site(task(), frame[:37], site="south")
    assert_array_equal(sent.uploads.factor, alone.uploads.factor)
    assert released(task(smallest_cell=3), frame).levels == ()


@pytest.mark.parametrize("order", ["cd", "dc"])
def test_leaving_out_one_cell_may_make_another_too_small(order):
    """Also one that was looked at before: the card's order of columns protects nobody."""
    features = (Feature("a"), *(Feature(name, ("p", "q")) for name in order))
    frame = TABLES["south"].assign(c=["q"] * 4 + ["p"] * 36, d=["q"] * 6 + ["p"] * 34)
    found = released(task(features=features), frame)
    assert found.levels == ("c=q", "d=q")
    assert found.withheld_rows == 6
    assert found.rows.n_rows.tolist() == [34]


def test_levels_are_those_of_their_own_category():
    """A category of three levels before another one, whose rare level is the one to withhold."""
    features = (Feature("c", ("p", "q", "r")), Feature("a"), Feature("d", ("p", "q", "r")))
    c, d = np.resize(["p", "q", "r"], 40), np.resize(["r", "q", "q"], 40)
    d[:3] = "p"
    found = released(task(features=features), TABLES["south"].assign(c=c, d=d))
    assert found.levels == ("d=p",)
    assert found.rows.n_rows.tolist() == [37]


def test_a_user_with_a_rare_class_sends_nothing():
    """Without the rows of its rare class it would look as if it never had any."""
    given = replace(class_task(features=(Feature("a"),), short_terms=True), smallest_cell=5)
    wards = pd.DataFrame(
        {
            "ward": ["A"] * 20 + ["B"] * 20 + ["C"] * 20,
            "a": np.linspace(-1, 1, 60),
            "y": (["yes"] * 3 + ["no"] * 17) + (["yes"] * 8 + ["no"] * 12) + ["no"] * 20,
        }
    )
    found = released(given, wards, "ward")
    assert found.users.tolist() == [1, 2]  # never seen is no small cell
    assert found.classes == ("yes",)
    assert found.few == {"a class with too few rows": 1}
    three = released(replace(given, smallest_cell=3), wards, "ward")
    assert three.users.tolist() == [0, 1, 2]  # three rows are not fewer than three


def test_terms_of_users_with_few_rows_stay_unless_the_card_says_so():
    frame = pd.concat([TABLES["south"][:3].assign(ward="A"), TABLES["south"][3:].assign(ward="B")])
    given = task(smallest_cell=1)
    sent = fit_site(given, frame, site="south", user="ward").uploads
    assert sent.n_samples.tolist() == [3, 37]
    assert sent.observations.tolist() == [1, 37]  # of the first, the average of its rows
    assert not sent.factor[0].any()
    assert sent.factor[1].any()
    given = task(smallest_cell=1, short_terms=True)
    assert fit_site(given, frame, site="south", user="ward").uploads.factor[0].any()


def test_users_with_fewer_rows_than_the_card_asks_for_send_nothing():
    frame = pd.concat([TABLES["south"][:3].assign(ward="A"), TABLES["south"][3:].assign(ward="B")])
    found = released(task(smallest_cell=1, minimum_rows=10), frame, "ward")
    assert found.users.tolist() == [1]
    assert found.few == {"fewer than 10 rows": 1}


def test_a_limit_is_met_by_as_many_rows_as_it_names():
    """Three rows where the card asks for three may leave, and five rows of a level in a cell."""
    frame = pd.concat([TABLES["south"][:3].assign(ward="A"), TABLES["south"][3:].assign(ward="B")])
    found = released(task(smallest_cell=1, minimum_rows=3), frame, "ward")
    assert found.users.tolist() == [0, 1]
    assert found.few == {}
    five = TABLES["south"].assign(c=["q"] * 5 + ["p"] * 35)
    assert released(task(smallest_cell=5), five).rows.n_rows.tolist() == [40]
    assert released(task(smallest_cell=6), five).rows.n_rows.tolist() == [35]


def test_rows_withheld_are_counted_at_the_user_they_belong_to():
    """A ward's rare level takes its own rows out of the upload, and nobody else's.

    Rows of a ward that sends nothing are not among those withheld from the upload.
    """
    rows = TABLES["south"]
    frame = pd.concat(
        [
            rows[:16].assign(ward="A", c=["q"] * 8 + ["p"] * 8),
            rows[16:36].assign(ward="B", c=["q"] * 2 + ["p"] * 18),
            rows[36:].assign(ward="C", c=["q"] * 1 + ["p"] * 3),
        ]
    )
    found = released(task(minimum_rows=5), frame, "ward")
    assert found.users.tolist() == [0, 1]
    assert found.rows.users.tolist() == ["A", "B"]
    assert found.rows.n_rows.tolist() == [16, 18]
    assert {*found.levels} == {"c=q", "c=p"}  # the other one at C
    assert found.withheld_rows == 2
    assert found.withheld.users == 1


def test_users_who_sent_nothing_get_their_models_all_the_same(tmp_path):
    given = task(smallest_cell=1, minimum_rows=5)
    sent = send(given, {s: TABLES[s] for s in list(TABLES)[1:]}, tmp_path / "uploads")
    frame = pd.concat(
        [TABLES["north"][:3].assign(ward="few"), TABLES["north"][3:].assign(ward="many")]
    )
    fit_site(given, frame, site="north", user="ward", created=time()).write(sent / "north.upload")
    combine_uploads(given, sent, out=tmp_path / "round")
    got = receive(
        given, sent / "north.upload", tmp_path / "round" / "north.download", frame, user="ward"
    )
    assert got.users.tolist() == ["few", "many"]
    assert got.labels.tolist() == [0, 0]  # group 0 is that of the first site
    np.testing.assert_allclose(got.models[0], got.models[1], atol=0.5)


def test_users_who_sent_nothing_and_those_who_did_get_each_their_own_model(tmp_path):
    """Two wards of either group; the second and the third have too few rows to send."""
    given = task(smallest_cell=1, minimum_rows=10)
    sent = send(given, {s: TABLES[s] for s in list(TABLES)[2:]}, tmp_path / "uploads")
    wards = {"a": ("north", 30), "b": ("north", 8), "c": ("south", 9), "d": ("south", 32)}
    frame = pd.concat([TABLES[s][-n:].assign(ward=w) for w, (s, n) in wards.items()])
    torn = pd.DataFrame({"a": [1.15, 1.2], "b": 0.0, "c": "p", "y": 4.5, "ward": "e"})
    frame = pd.concat([frame, torn])  # where both groups expect the same
    fit_site(given, frame, site="big", user="ward", created=time()).write(sent / "big.upload")
    combine_uploads(given, sent, out=tmp_path / "round")
    back = tmp_path / "round" / "big.download"
    got = receive(given, sent / "big.upload", back, frame, user="ward")
    assert got.users.tolist() == list("abcde")
    assert got.rows.n_rows.tolist() == [30, 8, 9, 32, 2]
    assert got.labels[:4].tolist() == [0, 0, 1, 1]  # big is the first site, a its first ward
    np.testing.assert_allclose(got.models[:4, 0], [3, 3, -3, -3], atol=0.7)
    model = got.estimator()
    sure = model.assign(torn.drop(columns=["y", "ward"]), torn.y).probability
    assert 0.5 < sure < 0.99 < got.probability[:4].min()
    assert got.probability[4] == pytest.approx(sure, rel=1e-12)
    predicted = model.predict(frame)
    for ward in wards:
        own = (frame.ward == ward).to_numpy()
        assert np.std(predicted[own] - frame.y[own]) < 1


def test_with_other_methods_users_who_sent_nothing_are_named_and_have_no_model(tmp_path):
    given = task(method=Method("kmeans:2"), smallest_cell=1, minimum_rows=10)
    sent = send(given, {s: TABLES[s] for s in list(TABLES)[2:]}, tmp_path / "uploads")
    wards = {"a": ("north", 6), "b": ("south", 30), "c": ("south", 25), "d": ("south", 7)}
    wards["e"] = ("north", 30)
    frame = pd.concat([TABLES[s][-n:].assign(ward=w) for w, (s, n) in wards.items()])
    fit_site(given, frame, site="big", user="ward", created=time()).write(sent / "big.upload")
    combined = combine_uploads(given, sent, out=tmp_path / "round")
    back = tmp_path / "round" / "big.download"
    got = receive(given, sent / "big.upload", back, frame, user="ward")
    assert got.users.tolist() == ["b", "c", "e"]
    assert got.left_out.tolist() == ["a", "d"]
    np.testing.assert_allclose(got.models[:, 0], [-3, -3, 3], atol=0.5)
    assert got.labels.tolist() == combined.site_groups["big"].tolist()
    model = got.estimator()
    assert model.n_rows_.tolist() == [30, 25, 30]
    np.testing.assert_allclose(model.group_coef_[model.labels_][:, 0], [-3, -3, 3], atol=0.5)
    own = frame[frame.ward.isin(["b", "c", "e"])]
    assert np.std(model.predict(own) - own.y) < 1
    # A newcomer joins the group of the ward that it is like.
    for site, ward in (("east", 2), ("west", 0)):
        rows = TABLES[site]
        found = model.assign(rows.drop(columns="y"), rows.y)
        assert found.label == model.labels_[ward]
    refusal(model.diagnose, match="users of one site")


def test_a_value_that_is_missing_is_the_shift_of_its_feature_where_the_card_says_so():
    features = (
        Feature("a", None, 2.0, 3.0),
        Feature("b", None, 0.0, 2.0),
        Feature("c", ("p", "q")),
    )
    given = task(features=features, missing="mean")
    frame = TABLES["south"].copy()
    filled = frame.copy()
    frame.loc[frame.index[4], "a"] = np.nan
    filled.loc[filled.index[4], "a"] = 2.0
    one, two = (fit_site(given, table, site="south").uploads for table in (frame, filled))
    assert_array_equal(one.means, two.means)
    assert_array_equal(one.factor, two.factor)


def test_rows_that_were_withheld_take_part_in_their_users_own_model(tmp_path):
    """The upload is made again without them, and the model with them."""
    tables = {site: table.copy() for site, table in TABLES.items()}
    tables["south"]["c"] = ["p"] * 37 + ["q"] * 3
    sent = send(task(), tables, tmp_path / "uploads")
    combine_uploads(task(), sent, out=tmp_path / "round")
    back = tmp_path / "round" / "south.download"
    got = receive(task(), sent / "south.upload", back, tables["south"])
    assert got.rows.n_rows.tolist() == got.local.uploads.n_samples.tolist() == [40]
    again = receive(task(), sent / "south.upload", back, tables["south"][:37])
    assert again.rows.n_rows.tolist() == [37]  # the same upload, of fewer rows


def test_a_site_whose_users_may_send_nothing_still_receives_the_groups(tmp_path):
    given = task(smallest_cell=1, minimum_rows=5)
    tables = {**TABLES, "tiny": TABLES["north"][:3]}
    sent = send(given, tables, tmp_path / "uploads")
    assert read_envelope(sent / "tiny.upload").words["users"] == 0
    combined = combine_uploads(given, sent, out=tmp_path / "round")
    assert len(combined.step.users) == 6
    got = receive(given, sent / "tiny.upload", tmp_path / "round" / "tiny.download", tables["tiny"])
    assert got.models.shape == (1, given.dim)
    assert np.abs(got.estimator().predict(tables["tiny"]) - tables["tiny"].y).max() < 3


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (TABLES["south"].drop(columns="a"), "Column 'a' is not in the table"),
        (TABLES["south"].assign(c="r"), "Column 'c' has level 'r' in row 1"),
        (TABLES["south"].assign(a="x"), "Column 'a' holds text"),
        (TABLES["south"].assign(a=np.inf), "infinite"),
        (TABLES["south"].assign(y=np.nan), "Column 'y' has no value"),
    ],
    ids=["a column less", "a level more", "text", "infinite", "missing"],
)
def test_a_table_that_does_not_fit_the_card_is_named_column_by_column(frame, message):
    with pytest.raises(ValueError, match=message):
        read_site(task(), frame)


def test_a_class_that_the_card_does_not_list_is_refused():
    frame = frames(1, classes=True)["north"].assign(y="maybe")
    with pytest.raises(ValueError, match="'maybe' in row 1, which is none of the classes"):
        read_site(class_task(), frame)


def test_levels_that_the_card_does_not_list_count_as_other_where_it_says_so(tmp_path):
    """One new word at one site needs no new card, and leaves the site in no file."""
    given = task(features=(Feature("a"), Feature("b"), Feature("c", ("p", "q"), other=True)))
    assert given.columns == ("a", "b", "c=other", "c=q")
    north = TABLES["north"].copy()
    north.loc[:9, "c"] = ["prison", "street"] * 5
    renamed = north.replace({"c": {"prison": "other", "street": "other"}})
    found = read_site(given, north)
    assert found.counts.unseen == {("c", "prison"): 5, ("c", "street"): 5}
    assert_array_equal(found.rows.X, read_site(given, renamed).rows.X)
    sent = send(given, {**TABLES, "north": north}, tmp_path / "uploads")
    assert b"prison" not in (sent / "north.upload").read_bytes()
    combine_uploads(given, sent, out=tmp_path / "round")
    got = receive(given, sent / "north.upload", tmp_path / "round" / "north.download", north)
    got.estimator().save(tmp_path / "model")
    model = ODCLRegressor.load(tmp_path / "model")
    assert_array_equal(
        model.predict(north.assign(c="unheard")), model.predict(north.assign(c="other"))
    )
    assert not [p for p in (tmp_path / "model").iterdir() if b"prison" in p.read_bytes()]


def test_an_other_that_nobody_has_changes_no_model(tmp_path):
    """A level without rows: every prediction is that of the card without it."""
    models = []
    for other in (False, True):
        features = (Feature("a"), Feature("b"), Feature("c", ("p", "q"), other=other))
        given, here = task(features=features), tmp_path / str(other)
        here.mkdir()
        sent = send(given, TABLES, here / "uploads")
        combine_uploads(given, sent, out=here / "round")
        site = sent / "north.upload", here / "round" / "north.download"
        models.append(receive(given, *site, TABLES["north"]).estimator())
    with_other, without = (model.predict(TABLES["north"]) for model in models)
    np.testing.assert_allclose(with_other, without, atol=0.05)


def test_a_level_the_card_does_not_list_is_refused_with_the_entry_that_allows_it():
    frame = TABLES["south"].assign(c="r")
    assert "`other = true` at this column" in refusal(read_site, task(), frame)
    with pytest.raises(ValueError, match="only a category has levels"):
        task(features=(Feature("a", other=True),))


# -- the smallest group ----------------------------------------------------------------------------


def test_a_group_needs_enough_distinct_sites(tmp_path):
    """Six sites in groups of three: three are enough for two groups, four are not."""
    groups = {}
    for least in (1, 3, 4):
        sent = send(task(minimum_group=least), TABLES, tmp_path / f"uploads-{least}")
        combined = combine_uploads(task(minimum_group=least), sent, out=tmp_path / f"round-{least}")
        groups[least] = combined.groups.sites.tolist()
        # What the limit forbids is not what is not there.
        curbed = combined.step.groups_forbidden
        assert curbed == (least == 4)
        assert curbed == ("More groups were seen, and were not allowed" in combined.groups.reason)
        assert curbed == combined.groups.diagnosis.startswith("Judged without the groups")
    assert groups == {1: [3, 3], 3: [3, 3], 4: [6]}


def test_several_users_of_a_site_are_one_party(tmp_path):
    """Two sites with three wards each are six users of two sites: no group of three sites."""
    given, place = task(minimum_group=3), tmp_path / "uploads"
    place.mkdir()
    for site, wards in {"one": ("north", "east", "hill"), "two": ("south", "west", "lake")}.items():
        frame = pd.concat([TABLES[ward].assign(ward=ward) for ward in wards])
        sent = fit_site(given, frame, site=site, user="ward", created=time())
        sent.write(place / f"{site}.upload")
    message = refusal(combine_uploads, given, place, out=tmp_path / "round")
    assert "2 sites sent terms, and a group needs 3 by the card" in message


def test_a_site_counts_in_every_group_in_which_it_has_a_user(tmp_path):
    """Wards of both groups, 20 rows each, and at another site 30 rows of one and 8 of the other."""
    given = task(smallest_cell=1)
    sent = send(given, {s: TABLES[s] for s in ("east", "west")}, tmp_path / "uploads")
    for site, n in (("even", (20, 20)), ("odd", (30, 8))):
        parts = [TABLES[s][:m].assign(ward=s) for s, m in zip(("north", "south"), n, strict=True)]
        wards = fit_site(given, pd.concat(parts), site=site, user="ward", created=time())
        wards.write(sent / f"{site}.upload")
    groups = combine_uploads(given, sent, out=tmp_path / "round").groups
    assert groups.sizes.tolist() == [3, 3]  # users
    assert groups.sites.tolist() == [3, 3]  # east, even, odd; west, even, odd


def test_no_site_may_carry_more_than_half_of_a_groups_information(tmp_path):
    """One site with forty times the rows of the others would be the group's model."""
    big = frames(1, 1600)["north"]
    others = {site: TABLES[site] for site in ("east", "hill")}
    given = task(minimum_group=3)
    sent = send(given, {"north": big, **others}, tmp_path / "uploads")
    message = refusal(combine_uploads, given, sent, out=tmp_path / "round")
    assert "Not even one group of all 3 sites is admissible" in message
    even = send(given, {"north": TABLES["north"], **others}, tmp_path / "even")
    assert combine_uploads(given, even, out=tmp_path / "round").groups.sites.tolist() == [3]


def test_other_methods_count_sites_too(tmp_path):
    method = Method("kmeans:2", smallest_group=4)
    given = task(method=method)
    combined = combine_uploads(given, send(given, TABLES, tmp_path / "uploads"), out=tmp_path / "r")
    assert combined.groups.sites.tolist() == [6]
    assert "1 group of at least 4 parties left of 2 found" in combined.step.reason
