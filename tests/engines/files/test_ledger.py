"""The ledger of a site: made once and kept, and what is spent adds up."""

from __future__ import annotations

import json
import stat
from dataclasses import replace

import pytest

from odcl.engines.files import fit_site
from odcl.engines.ledger import NAME, SiteLedger, rows_digest
from odcl.errors import InputError
from odcl.privacy import delta_of, epsilon_of, mu_of
from tests.engines.files import world
from tests.engines.files.test_private import private_task


@pytest.fixture
def place(tmp_path):
    return tmp_path / NAME


def test_the_same_card_and_rows_give_back_the_kept_file(place):
    task, frame = private_task(), world.frames(1)["north"]
    first = fit_site(task, frame, site="north", ledger=place)
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    shuffled = frame.sample(frac=1.0, random_state=1)
    again = fit_site(task, shuffled, site="north", ledger=place)
    assert again.content == first.content
    assert (first.kept, again.kept) == (False, True)
    assert len(again.uploads) == 1
    assert len(SiteLedger.read(place).spent) == 1


def test_a_second_upload_is_refused_with_the_sum_and_added_up_when_it_is_meant(place):
    task, frame = private_task(2.0), world.frames(1, 60)["north"]
    fit_site(task, frame, site="north", ledger=place)
    other = replace(task, round=2)
    total = epsilon_of(2**0.5 * mu_of(2.0, 1e-6), 1e-6)
    for card, rows in ((other, frame), (task, frame.iloc[1:])):
        with pytest.raises(InputError, match=f"epsilon {total:.3g}.*again"):
            fit_site(card, rows, site="north", ledger=place)
    assert len(SiteLedger.read(place).spent) == 1
    fit_site(other, frame, site="north", ledger=place, again=True)
    spent = SiteLedger.read(place)
    assert [one.round for one in spent.spent] == [1, 2]
    assert spent.epsilon(1e-6) == pytest.approx(total)


def test_what_is_spent_is_noted_before_anything_is_given_out(place, monkeypatch):
    def full(*_):
        raise OSError("disk full")

    monkeypatch.setattr(SiteLedger, "write", full)
    with pytest.raises(OSError, match="full"):
        fit_site(private_task(), world.frames(1)["north"], site="north", ledger=place)


def test_nothing_leaves_beside_a_ledger_that_cannot_be_read(place):
    for text in ("", "[]", '{"spent": [{}]}', json.dumps({"spent": [], "more": 1})):
        place.write_text(text)
        with pytest.raises(ValueError, match="ledger"):
            fit_site(private_task(), world.frames(1)["north"], site="north", ledger=place)


def test_exact_uploads_need_no_ledger(place):
    fit_site(world.task(), world.frames(1)["north"], site="north", ledger=place)
    assert not place.exists()


def test_a_digest_is_of_rows_and_not_of_their_order():
    tables = [world.frames(1)["north"]]
    tables += [tables[0].iloc[::-1], tables[0].assign(a=tables[0]["a"] + 1e-9)]
    found = [rows_digest(fit_site(world.task(), one, site="north").table.rows) for one in tables]
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize("mu", [0.05, 0.5, 2.0, 10.0])
def test_epsilon_is_the_way_back_from_mu(mu):
    assert delta_of(epsilon_of(mu, 1e-6), mu) == pytest.approx(1e-6, rel=1e-6)
