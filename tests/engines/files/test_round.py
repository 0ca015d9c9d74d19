"""The round: whole whatever happens, and with a memory for replays and withdrawals."""

from __future__ import annotations

import json
import os
import shutil
import sys

import pytest

from odcl.engines.files import combine as combining
from odcl.engines.files import combine_uploads, fit_site
from odcl.engines.files import round as rounds
from odcl.engines.files.keys import make_keys, read_key
from odcl.files import locked
from tests.engines.files.world import frames, send, task, time
from tests.helpers import files_below, full_disk, refusal

TABLES = frames(8)
FIRST = {site: TABLES[site] for site in list(TABLES)[:6]}


@pytest.fixture
def grown(tmp_path):
    """A round of six sites, and two more uploads."""
    sent = send(task(), FIRST, tmp_path / "uploads")
    combine_uploads(task(), sent, out=tmp_path / "round")
    return send(task(), TABLES, sent), tmp_path / "round"


def test_more_uploads_update_the_round_and_a_warning_says_what_rounds_tell(grown):
    sent, place = grown
    combined = combine_uploads(task(), sent, out=place)
    assert sorted(combined.taken) == sorted(TABLES)
    assert {path.stem for path in place.glob("*.download")} == set(TABLES)
    (warning,) = combined.notices
    assert "changed by 2 sites (dale, mill joined)" in warning
    assert "subtract" in warning


def test_a_round_that_stays_as_it_is_warns_of_nothing(grown):
    sent, place = grown
    combine_uploads(task(), sent, out=place)
    assert combine_uploads(task(), sent, out=place).notices == ()


def test_a_download_names_no_other_site(grown):
    _, place = grown
    for site in FIRST:
        content = (place / f"{site}.download").read_bytes()
        assert site.encode() in content
        assert not any(other.encode() in content for other in FIRST if other != site)


def test_an_older_upload_of_a_site_is_a_replay(grown):
    sent, place = grown
    old = (sent / "south.upload").read_bytes()
    fit_site(task(), TABLES["south"][2:], site="south", created=time(5)).write(
        sent / "south.upload"
    )
    combine_uploads(task(), sent, out=place)
    (sent / "south.upload").write_bytes(old)
    combined = combine_uploads(task(), sent, out=place)
    (one,) = combined.set_aside
    assert one.name == "south.upload"
    assert "the round has taken a newer upload of south before: this one is a replay" in one.reason


def test_another_upload_of_the_same_time_does_not_replace_the_one_taken(grown):
    """A clock that stands still tells nobody which of two uploads is the newer."""
    sent, place = grown
    other = fit_site(task(), TABLES["south"][2:], site="south", created=time())
    other.write(sent / "south.upload")
    combined = combine_uploads(task(), sent, out=place)
    assert "south" not in combined.taken
    assert "replay" in combined.set_aside[0].reason


def test_an_older_upload_stays_a_replay_however_often_it_comes(grown):
    sent, place = grown
    old = (sent / "south.upload").read_bytes()
    newer = fit_site(task(), TABLES["south"][2:], site="south", created=time(5))
    newer.write(sent / "south.upload")
    combine_uploads(task(), sent, out=place)
    (sent / "south.upload").write_bytes(old)
    for _ in range(3):
        combined = combine_uploads(task(), sent, out=place)
        assert "south" not in combined.taken
        assert "this one is a replay" in combined.set_aside[0].reason
    newer.write(sent / "south.upload")
    assert "south" in combine_uploads(task(), sent, out=place).taken
    (sent / "south.upload").unlink()
    combine_uploads(task(), sent, out=place)
    combine_uploads(task(), sent, out=place, without=["south"])  # gone, and now withdrawn
    newer.write(sent / "south.upload")
    assert "has withdrawn" in combine_uploads(task(), sent, out=place).set_aside[0].reason


def test_an_upload_that_replaces_another_is_warned_of_like_a_site_that_joins(grown):
    sent, place = grown
    combine_uploads(task(), sent, out=place)
    anew = fit_site(task(), TABLES["south"][2:], site="south", created=time(5))
    anew.write(sent / "south.upload")
    (warning,) = combine_uploads(task(), sent, out=place).notices
    assert "changed by 1 site (south sent anew)" in warning
    assert "reveals what is new in its term" in warning


def test_a_site_that_withdraws_is_out_until_it_sends_a_newer_upload(grown):
    sent, place = grown
    combined = combine_uploads(task(), sent, out=place, without=["south"])
    assert "south" not in combined.taken
    assert "south" not in json.dumps(json.loads((place / "report.json").read_text())["sites"])
    assert not (place / "south.download").exists()
    (one,) = combine_uploads(task(), sent, out=place).set_aside
    assert "south has withdrawn, and comes back only with a newer upload" in one.reason
    fit_site(task(), TABLES["south"], site="south", created=time(7)).write(sent / "south.upload")
    assert "south" in combine_uploads(task(), sent, out=place).taken


def test_a_round_without_a_site_is_the_round_of_the_others(grown, tmp_path):
    sent, place = grown
    combine_uploads(task(), sent, out=place, without=["south"])
    (sent / "south.upload").unlink()
    combine_uploads(task(), sent, out=tmp_path / "anew")
    one, two = files_below(place), files_below(tmp_path / "anew")
    assert {name: one[name] for name in two if name.endswith(".download")} == {
        name: content for name, content in two.items() if name.endswith(".download")
    }


def test_only_sites_that_were_there_can_withdraw(grown):
    sent, place = grown
    refusal(combine_uploads, task(), sent, out=place, without=["moon"], match="no upload of 'moon'")
    refusal(combine_uploads, task(), sent, out=place, without=["../x"], match="cannot be the name")


def test_a_folder_that_is_no_round_or_another_tasks_is_not_replaced(grown, tmp_path):
    sent, place = grown
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("all my work")
    refusal(combine_uploads, task(), sent, out=tmp_path / "mine", match="holds no round")
    other = send(task(name="other"), FIRST, tmp_path / "others")
    refusal(combine_uploads, task(name="other"), other, out=place, match="round 1 of 'stay'")
    (place / "notes.txt").write_text("called south")
    refusal(combine_uploads, task(), sent, out=place, match="notes.txt")


def test_a_round_that_was_changed_by_hand_is_refused(grown):
    sent, place = grown
    state = place / "round.json"
    state.write_text(state.read_text().replace('"withdrawn": {}', '"withdrawn": {"a": "b"}'))
    refusal(combine_uploads, task(), sent, out=place, match="damaged or was changed")


# -- crashes ---------------------------------------------------------------------------------------

OPERATIONS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink")


def killed_at(work, number, place) -> bool:
    """Run ``work`` in a process of its own, which dies before a file operation; did it die?

    No handler and no ``finally`` runs: as if the power had failed.
    """
    child = os.fork()
    if child == 0:
        seen = 0

        def watch(event, args):
            nonlocal seen
            if event in OPERATIONS and args and str(args[0]).startswith(place):
                seen += 1
                if seen == number:
                    os._exit(9)

        sys.addaudithook(watch)
        try:
            work()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


@pytest.mark.skipif(os.name != "posix", reason="needs fork")
def test_a_crash_between_any_two_file_operations_leaves_the_old_or_the_new_round(
    grown, tmp_path, monkeypatch
):
    sent, place = grown
    old = files_below(place)
    calls = []
    monkeypatch.setattr(combining, "write_round", lambda *args: calls.append(args))
    combine_uploads(task(), sent, out=place)
    (arguments,) = calls

    def write():
        with locked(place):
            rounds.write_round(*arguments)

    number, states = 1, []
    while killed_at(write, number, str(tmp_path)):
        with locked(place):  # as the next command does
            pass
        now = files_below(place)
        states.append(now == old)
        if now != old:
            assert set(now) == {*old, "mill.download", "dale.download"}
            rounds.read_round(place)
        number += 1
    assert number > 30
    assert states == sorted(states, reverse=True)  # old ones first, then new ones
    write()
    assert len(files_below(place)) == len(old) + 2
    assert sorted(os.listdir(tmp_path)) == ["round", "uploads"]  # what was left is swept away


@pytest.mark.skipif(os.name != "posix", reason="needs fork")
def test_a_crash_leaves_no_half_upload_and_no_half_key(tmp_path):
    sent = fit_site(task(), TABLES["south"], site="south", created=time())
    number = 1
    while killed_at(lambda: sent.write(tmp_path / "south.upload"), number, str(tmp_path)):
        if (tmp_path / "south.upload").exists():
            assert (tmp_path / "south.upload").read_bytes() == sent.content
        number += 1
    assert number > 3
    number = 1
    while killed_at(lambda: make_keys("south", tmp_path / "keys"), number, str(tmp_path)):
        if (tmp_path / "keys").exists():
            shutil.rmtree(tmp_path / "keys")  # a pair is made anew, in an empty folder
        number += 1
    assert read_key(tmp_path / "keys" / "south.key").public


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_full_disk_or_an_interrupt_leaves_the_old_round(grown, tmp_path, monkeypatch, error):
    sent, place = grown
    old, listed = files_below(place), sorted(os.listdir(tmp_path))

    def fail(*_):
        raise error

    monkeypatch.setattr("odcl.files._flush_folder", fail)
    with pytest.raises(type(error)):
        combine_uploads(task(), sent, out=place)
    assert files_below(place) == old
    assert sorted(os.listdir(tmp_path)) == listed


def test_a_card_on_a_full_disk_is_as_it_was(tmp_path, monkeypatch):
    card = tmp_path / "task.toml"
    task().write(card)
    before = card.read_bytes()
    monkeypatch.setattr("odcl.files._flush", full_disk)
    with pytest.raises(OSError, match="No space"):
        task(name="x").write(card)
    assert files_below(tmp_path) == {"task.toml": before}
