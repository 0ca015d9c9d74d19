"""Readers of cards, uploads and downloads meet files that nobody has written."""

from __future__ import annotations

import pytest

from tests.engines.files.fuzz import folders, fuzz


@pytest.mark.slow
def test_no_mutated_file_crashes_a_reader_or_is_accepted_with_changed_content():
    told = fuzz(2_000, seed=1)
    refused = sum(n for verdict, n in told.items() if verdict.endswith("refused"))
    assert refused > 1_700
    assert {"upload refused", "download refused", "card refused"} <= set(told)


def test_good_uploads_are_taken_whatever_lies_beside_them():
    folders(5)
