"""Files that cannot be taken: one clear line each, and the accepted rest is unharmed."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from odcl.artifact.arrays import ArraySpec, header_bytes
from odcl.engines.files import combine_uploads, fit_site, receive
from odcl.engines.files.collect import collect, open_upload
from odcl.engines.files.envelope import MOST_BYTES, Refused, envelope_bytes, read_envelope
from odcl.report.by_file import inspect_file
from tests.engines.files.world import (
    class_task,
    file_of,
    frames,
    header_of,
    send,
    task,
    time,
    with_keys,
)
from tests.helpers import files_below, full_disk, refusal

TABLES = frames()


@pytest.fixture(scope="module")
def uploads(tmp_path_factory):
    """The good uploads of all sites."""
    return files_below(send(task(), TABLES, tmp_path_factory.mktemp("sent") / "uploads"))


def folder_of(files, folder):
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def said(change):
    """Damage that changes the manifest, and makes its digest anew."""

    def damage(content):
        header, numbers = header_of(content)
        meta = header["__metadata__"]
        words = json.loads(meta["manifest"])
        change(words)
        meta["manifest"] = json.dumps(words, separators=(",", ":"))
        meta["sha256"] = hashlib.sha256(meta["manifest"].encode()).hexdigest()
        return file_of(header, numbers)

    return damage


def numbers_of(**changes):
    """Damage by a site that knows what it does: other numbers, everything else as it should be."""

    def damage(content):
        given = task()
        sent = fit_site(given, TABLES["south"], site="south", created=time())
        uploads = replace(
            sent.uploads, **{k: v(getattr(sent.uploads, k)) for k, v in changes.items()}
        )
        words = {"users": 1, "withheld": {"levels": [], "classes": [], "users": 0}}
        arrays = uploads.to_arrays()
        return envelope_bytes("upload", given.stamp, "south", arrays, words, created=time())

    return damage


def header(change):
    def damage(content):
        found, numbers = header_of(content)
        change(found)
        return file_of(found, numbers)

    return damage


def first(value):
    def change(array):
        array = array.copy()
        array.reshape(-1)[0] = value
        return array

    return change


def other_task(content):
    return fit_site(task(name="other"), TABLES["south"], site="south", created=time()).content


def other_round(content):
    return fit_site(task(round=2), TABLES["south"], site="south", created=time()).content


def other_card(content):
    return fit_site(task(minimum_rows=2), TABLES["south"], site="south", created=time()).content


def larger(words):
    words["contents"]["factor"][1] = [1, 10**9]


FAULTS = {
    "empty": (lambda c: b"", "it is empty"),
    "truncated": (lambda c: c[:-5], "has 1083 bytes|needs|bytes"),
    "cut in the header": (lambda c: c[:100], "ends too early, or is no file of odcl"),
    "a byte more": (lambda c: c + b"\0", "bytes"),
    "no header": (lambda c: c[:4], "no file of odcl"),
    "foreign": (lambda c: b"PK\3\4" + bytes(2000), "no file of odcl"),
    "text": (lambda c: b"site,value\nsouth,1\n" * 50, "no file of odcl"),
    "another task": (other_task, "belongs to another task, 'other', and not to 'stay'"),
    "another round": (other_round, "belongs to round 2 of 'stay', and this is 1"),
    "another card": (other_card, "another version of the card"),
    "old version": (said(lambda w: w.update(format=0)), "has format 0"),
    "future version": (said(lambda w: w.update(format=2, odcl="9.9")), "has format 2.*'9.9'"),
    "no manifest": (header(lambda h: h.pop("__metadata__")), "no manifest"),
    "a manifest that was changed": (
        header(lambda h: h["__metadata__"].update(sha256="0" * 64)),
        "manifest was changed",
    ),
    "another kind": (said(lambda w: w.update(kind="download", created=None)), "not an upload"),
    "declared larger than it is": (
        header(lambda h: h["factor"].update(shape=[1, 10**9])),
        "needs",
    ),
    "a manifest that disagrees": (said(larger), "manifest disagrees with its arrays"),
    "other numbers": (lambda c: c[:-1] + bytes([c[-1] ^ 1]), "not those that its manifest names"),
    "a space in the header": (
        lambda c: c[:8] + c[8:].replace(b'{"dtype"', b'{ "dtype"', 1)[: len(c) - 8],
        "damaged",
    ),
    "NaN": (numbers_of(means=first(np.nan)), "means holds numbers that are not finite"),
    "infinite": (numbers_of(factor=first(np.inf)), "factor holds numbers that are not finite"),
    "beyond numbers": (numbers_of(means=first(1e200)), "means holds numbers beyond"),
    "no rows": (numbers_of(n_samples=first(0.0)), "a user has 0 rows"),
    "negative rows": (numbers_of(n_samples=first(-3.0)), "a user has -3 rows"),
    "half a row": (numbers_of(n_samples=first(2.5)), "a user has 2.5 rows"),
    "absurdly many rows": (numbers_of(n_samples=first(1e15)), r"a user has 1e\+15 rows"),
    "a term of more rows than there are": (
        numbers_of(observations=first(25.0)),
        "a data term of 25 observations, and it has 24 rows",
    ),
    "a term of less than no row": (numbers_of(observations=first(-1.0)), "-1 observations"),
    "a field more": (
        numbers_of(n_samples=lambda n: n, theta=lambda _: np.ones(1)),
        "theta should not be there",
    ),
    "a field less": (numbers_of(means=lambda _: None), "means is not there"),
    "another shape": (numbers_of(means=lambda m: m[:, :-1]), "means has shape"),
    "more users than it says": (said(lambda w: w["words"].update(users=2)), "has shape"),
    "half a user": (
        said(lambda w: w["words"].update(users=0.5)),
        "users is 0.5, and",
    ),
    "a path for a site": (said(lambda w: w.update(site="../../etc")), "cannot be the name"),
    "no time": (said(lambda w: w.update(created=None)), "uploads have a time"),
    "a time to come": (
        lambda c: (
            fit_site(
                task(), TABLES["south"], site="south", created="2126-01-31T12:00:00.000000Z"
            ).content
        ),
        "still to come",
    ),
    "the coordinator's name": (said(lambda w: w.update(site="coordinator")), "coordinator's name"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_file_that_cannot_be_taken_is_named_with_the_reason(fault, uploads, tmp_path):
    damage, reason = FAULTS[fault]
    files = {**uploads, "south.upload": damage(uploads["south.upload"])}
    found = collect(task(), folder_of(files, tmp_path / "uploads"))
    assert sorted(found.uploads) == sorted(set(TABLES) - {"south"})
    (one,) = found.set_aside
    assert one.name == "south.upload"
    assert len(str(one).splitlines()) == 1
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(one.reason)


@pytest.mark.parametrize(("hours", "taken"), [(12, True), (48, False)])
def test_clocks_may_differ_by_a_day_and_no_more(hours, taken, uploads, tmp_path):
    place = folder_of(uploads, tmp_path / "uploads")
    created = (datetime.now(UTC) + timedelta(hours=hours)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    one = fit_site(task(), TABLES["south"], site="south", created=created)
    one.write(place / "south.upload")
    assert ("south" in collect(task(), place).uploads) == taken


def test_fewer_rows_than_the_card_asks_for_are_refused_on_arrival_too(tmp_path):
    """A site may run other software than ours."""
    given = task(minimum_rows=24)
    send(given, {"south": TABLES["south"]}, tmp_path)
    few = fit_site(task(), TABLES["north"][:23], site="north").uploads
    words = {"users": 1, "withheld": {"levels": [], "classes": [], "users": 0}}
    arrays = few.to_arrays()
    content = envelope_bytes("upload", given.stamp, "north", arrays, words, created=time())
    (tmp_path / "north.upload").write_bytes(content)
    found = collect(given, tmp_path)
    assert list(found.uploads) == ["south"]
    assert "a user has 23 rows" in found.set_aside[0].reason


def test_the_rest_of_a_round_is_as_if_the_bad_file_were_not_there(uploads, tmp_path):
    others = {name: content for name, content in uploads.items() if name != "south.upload"}
    bad = {**others, "south.upload": b"", "notes.txt": b"hello", "lake (1).upload": b"?"}
    combine_uploads(task(), folder_of(others, tmp_path / "good"), out=tmp_path / "one")
    combined = combine_uploads(task(), folder_of(bad, tmp_path / "bad"), out=tmp_path / "two")
    one, two = files_below(tmp_path / "one"), files_below(tmp_path / "two")
    downloads = [name for name in one if name.endswith(".download")]
    assert len(downloads) == 5
    assert all(one[name] == two[name] for name in downloads)
    assert [s.name for s in combined.set_aside] == ["lake (1).upload", "notes.txt", "south.upload"]
    report = (tmp_path / "two" / "report.txt").read_text()
    assert "south.upload: it is empty" in report


def test_a_renamed_file_is_not_taken_for_another_site(uploads, tmp_path):
    files = {**uploads, "south.upload": uploads["north.upload"]}
    del files["north.upload"]
    found = collect(task(), folder_of(files, tmp_path / "uploads"))
    (one,) = found.set_aside
    assert one.name == "south.upload"
    assert "upload of 'north' under another name" in one.reason


def test_links_pipes_and_folders_are_not_followed(uploads, tmp_path):
    place = folder_of(uploads, tmp_path / "uploads")
    os.symlink(place / "north.upload", place / "far.upload")
    os.mkfifo(place / "pipe.upload")
    (place / "folder.upload").mkdir()
    found = collect(task(), place)
    assert {one.name for one in found.set_aside} == {"far.upload", "pipe.upload", "folder.upload"}
    assert all("not a plain file" in one.reason for one in found.set_aside)
    assert len(found.uploads) == 6


def test_the_newer_of_two_uploads_wins_and_equal_ones_lose(uploads, tmp_path):
    place = folder_of(uploads, tmp_path / "uploads")
    newer = fit_site(task(), TABLES["south"][3:], site="south", created=time(1))
    newer.write(place / "south (1).upload")
    found = collect(task(), place)
    assert found.uploads["south"].uploads.n_samples.tolist() == [21]
    (one,) = found.set_aside
    assert one.name == "south.upload"
    assert "south (1).upload is a newer upload of south" in one.reason
    assert found.notices == ("south has 2 uploads: the newest, south (1).upload, is taken",)
    same = fit_site(task(), TABLES["south"][3:], site="south", created=time())
    same.write(place / "south (1).upload")
    found = collect(task(), place)
    assert "south" not in found.uploads
    assert {one.name for one in found.set_aside} == {"south.upload", "south (1).upload"}


def test_a_copy_of_an_upload_is_no_second_one(uploads, tmp_path):
    files = {**uploads, "south (copy).upload": uploads["south.upload"]}
    found = collect(task(), folder_of(files, tmp_path / "uploads"))
    assert len(found.uploads) == 6
    assert not found.set_aside


def test_sites_that_differ_in_capitals_only_are_both_set_aside(uploads, tmp_path):
    place = folder_of(uploads, tmp_path / "uploads")
    fit_site(task(), TABLES["south"], site="South", created=time()).write(place / "South.upload")
    found = collect(task(), place)
    assert {one.name for one in found.set_aside} == {"south.upload", "South.upload"}


def test_a_file_that_is_too_large_is_not_read(tmp_path):
    file = tmp_path / "south.upload"
    with open(file, "wb") as stream:
        stream.truncate(MOST_BYTES + 1)  # a hole: no disk is used
    with pytest.raises(Refused, match="are not read"):
        read_envelope(file)


def test_memory_is_not_taken_for_what_a_header_claims(tmp_path):
    head = header_bytes({"factor": ("float64", (10**9, 10**6))})
    (tmp_path / "south.upload").write_bytes(head + bytes(64))
    with pytest.raises(Refused, match="and 64 are there"):
        read_envelope(tmp_path / "south.upload")


def test_a_curvature_that_is_not_positive_semidefinite_is_refused(tmp_path):
    given, tables = class_task(short_terms=True), frames(classes=True)
    sent = fit_site(given, tables["south"], site="south", created=time())
    A = sent.uploads.gaussian_curvature.copy()
    A[0, -1] -= (0.1 + np.linalg.eigvalsh(A[0, -1])[0]) * np.eye(A.shape[-1])
    bad = replace(sent.uploads, gaussian_curvature=A).to_arrays()
    words = {"users": 1, "withheld": {"levels": [], "classes": [], "users": 0}}
    content = envelope_bytes("upload", given.stamp, "south", bad, words, created=time())
    (tmp_path / "south.upload").write_bytes(content)
    with pytest.raises(Refused, match="gaussian_curvature is not positive semidefinite"):
        open_upload(given, tmp_path / "south.upload")


def test_nothing_that_moves_a_cursor_is_shown(tmp_path):
    """Names of files, tasks and levels come from outside: they are spelled out."""
    words = {"users": 0, "withheld": {"levels": ["a\x1b[2Jb"], "classes": [], "users": 0}}
    nobody = {name: array[:0] for name, array in some_uploads().to_arrays().items()}
    content = envelope_bytes("upload", task().stamp, "south", nobody, words, created=time())
    (tmp_path / "south.upload").write_bytes(content)
    refusal(inspect_file, tmp_path / "south.upload", match="and not printable text")
    (tmp_path / "a\x1b[2J\n.upload").write_bytes(b"")
    odd, _ = collect(task(), tmp_path).set_aside
    assert odd.name == "a\\x1b[2J\\n.upload"


def some_uploads():
    return fit_site(task(), TABLES["south"], site="south").uploads


def test_any_reader_of_the_format_opens_a_file(tmp_path):
    safetensors = pytest.importorskip("safetensors")
    sent = fit_site(task(), TABLES["south"], site="south", created=time())
    sent.write(tmp_path / "south.upload")
    with safetensors.safe_open(tmp_path / "south.upload", framework="numpy") as file:
        assert json.loads(file.metadata()["manifest"])["site"] == "south"
        np.testing.assert_array_equal(file.get_tensor("means"), sent.uploads.means)


def test_too_few_sites_are_no_round(uploads, tmp_path):
    place = folder_of({"south.upload": uploads["south.upload"]}, tmp_path / "uploads")
    message = refusal(combine_uploads, task(), place, out=tmp_path / "round")
    assert "1 upload can be taken, and at least 2 sites are needed" in message
    one = refusal(combine_uploads, task(), place, out=tmp_path / "round", min_sites=1)
    assert "at least 2 sites are needed" in one  # from one site, its term could be worked out
    place = folder_of(uploads, tmp_path / "all")
    refusal(combine_uploads, task(), place, out=tmp_path / "round", min_sites=7, match="at least 7")
    assert not (tmp_path / "round").exists()


def test_where_too_little_is_left_each_file_is_named_with_its_reason(uploads, tmp_path):
    files = {**uploads, "south.upload": b"", "north.upload": uploads["north.upload"][:99]}
    place = folder_of(files, tmp_path / "uploads")
    with pytest.raises(ValueError, match="at least 6") as caught:
        combine_uploads(task(), place, out=tmp_path / "round", min_sites=6)
    first, second = caught.value.__notes__
    assert first.startswith("north.upload is set aside: it is damaged or was changed (its header")
    assert second == "south.upload is set aside: it is empty."


# -- signatures ------------------------------------------------------------------------------------


@pytest.fixture
def signed(tmp_path):
    given, keys = with_keys(task(), TABLES, tmp_path / "keys")
    return given, keys, send(given, TABLES, tmp_path / "uploads", keys=keys)


def test_signed_files_go_there_and_back(signed, tmp_path):
    given, keys, place = signed
    combined = combine_uploads(given, place, out=tmp_path / "round", key=keys["coordinator"])
    assert len(combined.taken) == 6
    assert not combined.set_aside
    file = tmp_path / "round" / "south.download"
    assert receive(given, place / "south.upload", file, TABLES["south"]).labels.tolist() == [1]


def test_a_wrong_missing_or_unknown_signature_is_refused(signed, tmp_path):
    given, keys, place = signed
    fit_site(task(), TABLES["north"], site="north", created=time()).write(place / "north.upload")
    forged = fit_site(task(), TABLES["south"], site="south", key=keys["lake"], created=time())
    forged.write(place / "south.upload")
    header, numbers = header_of((place / "east.upload").read_bytes())
    wrong = header["__metadata__"]["signature"]
    header["__metadata__"]["signature"] = wrong[:-1] + ("0" if wrong[-1] != "0" else "1")
    (place / "east.upload").write_bytes(file_of(header, numbers))
    fit_site(task(), TABLES["west"], site="nowhere", key=keys["west"], created=time()).write(
        place / "nowhere.upload"
    )
    found = collect(given, place)
    assert {one.name: one.reason for one in found.set_aside} == {
        "north.upload": "it is not signed, and the card asks for signatures",
        "south.upload": "it is signed with a key that the card does not list for south",
        "east.upload": "its signature is wrong: it is not what east signed",
        "nowhere.upload": "the card lists no site 'nowhere'",
    }


def test_a_download_that_the_coordinator_did_not_sign_is_refused(signed, tmp_path):
    given, keys, place = signed
    combine_uploads(given, place, out=tmp_path / "round", key=keys["coordinator"])
    plain = send(task(), TABLES, tmp_path / "plain")
    combine_uploads(task(), plain, out=tmp_path / "unsigned")
    file = tmp_path / "unsigned" / "south.download"
    refusal(receive, given, place / "south.upload", file, TABLES["south"], match="not signed")


def test_who_has_no_key_or_another_one_cannot_sign(signed, tmp_path):
    given, keys, place = signed
    refusal(fit_site, given, TABLES["south"], site="south", match="private key")
    refusal(fit_site, given, TABLES["south"], site="south", key=keys["lake"], match="another key")
    refusal(
        combine_uploads, given, place, out=tmp_path / "r", key=keys["lake"], match="another key"
    )


def test_a_replaced_key_is_good_beside_the_old_one_until_that_is_taken_off(signed, tmp_path):
    given, _, place = signed
    both, more = with_keys(given, ["south"], tmp_path / "new keys")
    assert both.digest == given.digest
    again = fit_site(both, TABLES["south"], site="south", key=more["south"], created=time(1))
    again.write(place / "south (new).upload")
    found = collect(both, place)
    assert found.uploads["south"].file.key == more["south"].public
    assert len(found.uploads) == 6
    new_only = replace(both, sites={**both.sites, "south": (more["south"].public,)})
    (one,) = collect(new_only, place).set_aside
    assert one.name == "south.upload"
    assert "does not list" in one.reason


# -- the site's side -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def a_round(uploads, tmp_path_factory):
    place = tmp_path_factory.mktemp("round")
    combine_uploads(task(), folder_of(uploads, place / "uploads"), out=place / "round")
    return place


def test_a_download_for_another_site_or_upload_is_refused(a_round, tmp_path):
    sent, back = a_round / "uploads" / "south.upload", a_round / "round"
    table = TABLES["south"]
    refusal(receive, task(), sent, back / "north.download", table, match="refused: it is for 'nor")
    fit_site(task(), table, site="south", created=time(9)).write(tmp_path / "south.upload")
    other = tmp_path / "south.upload"
    refusal(receive, task(), other, back / "south.download", table, match="refused: it answers an")
    refusal(receive, task(), sent, sent, table, match="and not a download")
    refusal(receive, task(name="x"), sent, back / "south.download", table, match="another task")


def test_a_table_that_the_upload_was_not_made_from_is_refused(a_round):
    sent, back = a_round / "uploads" / "south.upload", a_round / "round" / "south.download"
    message = refusal(receive, task(), sent, back, TABLES["north"])
    assert "The table is not the one that" in message
    refusal(receive, task(), sent, back, TABLES["south"][:5], match="not the one")


@pytest.mark.parametrize("column", ["a", "y"])
def test_one_value_that_was_corrected_makes_another_table(column, a_round):
    sent, back = a_round / "uploads" / "south.upload", a_round / "round" / "south.download"
    table = TABLES["south"].copy()
    table.loc[table.index[3], column] += 0.01
    refusal(receive, task(), sent, back, table, match="not the one that .* differs")


def other_download(a_round, path, **changes):
    """South's download with other numbers, by a coordinator that knows how to write one."""
    good = read_envelope(a_round / "round" / "south.download")
    arrays = good.arrays(
        {name: ArraySpec(s, (t,)) for name, (t, s) in good.header.contents.items()}
    )
    for name, change in changes.items():
        name = name.replace("__", ".")
        arrays[name] = np.asarray(change(arrays[name]), dtype=arrays[name].dtype)
    path.write_bytes(envelope_bytes("download", task().stamp, "south", arrays, good.words))
    return path


WRONG_DOWNLOADS = {
    "nothing is wrong": ({}, ""),
    "a group below none": ({"group": lambda a: a - 3}, "a group that is not there"),
    "a group beyond the last": ({"group": lambda a: a + 1}, "a group that is not there"),
    "a group of less than nobody": ({"group_size": lambda a: -a}, "a group that is not there"),
    "more than certain": ({"probability": lambda a: a + 0.5}, "not between 0 and 1"),
    "less than impossible": ({"probability": lambda a: -a}, "not between 0 and 1"),
    "shares beyond one": ({"mixture__weights": lambda a: 1.01 * a}, "weights that are no prob"),
    "scales that share more": ({"mixture__shares": lambda a: 1.01 * a}, "shares that are no prob"),
    "a unit of zero": ({"mixture__scale": lambda a: 0 * a}, "scale holds numbers"),
    "a column twice": ({"mixture__kept": lambda a: 0 * a}, "there twice"),
    "two users for one": (
        dict.fromkeys(
            ("model", "group", "group_size", "probability"), lambda a: np.repeat(a, 2, axis=0)
        ),
        "is for 2 users",
    ),
    "sizes of more groups than there are": (
        dict.fromkeys(("sizes", "sites"), lambda a: np.append(a, 1)),
        "shape",
    ),
    "sizes below zero": ({"sizes": lambda a: a - 9}, "negative sizes"),
}


@pytest.mark.parametrize("fault", WRONG_DOWNLOADS)
def test_a_download_that_no_round_can_give_is_refused(fault, a_round, tmp_path):
    changes, reason = WRONG_DOWNLOADS[fault]
    back = other_download(a_round, tmp_path / "south.download", **changes)
    sent = a_round / "uploads" / "south.upload"
    if reason:
        refusal(receive, task(), sent, back, TABLES["south"], match=reason)
    else:
        assert receive(task(), sent, back, TABLES["south"]).labels.tolist() == [1]


def test_the_same_rows_in_another_order_are_the_same_table(tmp_path):
    """Where columns depend on each other, the first row decides on the signs of a triangle."""
    tables = {site: table.assign(b=2 * table.a) for site, table in TABLES.items()}
    place = send(task(), tables, tmp_path / "uploads")
    combine_uploads(task(), place, out=tmp_path / "round")
    sent, back = place / "south.upload", tmp_path / "round" / "south.download"
    one = receive(task(), sent, back, tables["south"])
    for upward in (True, False):
        rows = tables["south"].sort_values("a", ascending=upward)[["y", "c", "b", "a"]]
        two = receive(task(), sent, back, rows)
        np.testing.assert_allclose(two.models, one.models, rtol=1e-9, atol=1e-9)


def test_a_download_with_a_bit_flipped_anywhere_is_refused(a_round, tmp_path):
    sent, good = a_round / "uploads" / "south.upload", a_round / "round" / "south.download"
    content, rng = good.read_bytes(), np.random.default_rng(0)
    for at in rng.integers(0, len(content), size=60):
        bad = bytearray(content)
        bad[at] ^= 1 << rng.integers(8)
        (tmp_path / "south.download").write_bytes(bad)
        with pytest.raises(ValueError, match="is refused"):
            receive(task(), sent, tmp_path / "south.download", TABLES["south"])


def test_a_full_disk_leaves_no_half_upload(tmp_path, monkeypatch):
    sent = fit_site(task(), TABLES["south"], site="south")
    monkeypatch.setattr("odcl.files._flush", full_disk)
    with pytest.raises(OSError, match="No space left"):
        sent.write(tmp_path / "south.upload")
    assert files_below(tmp_path) == {}
