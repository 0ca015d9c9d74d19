"""Uploads in a file: what arrives is what was sent."""

from __future__ import annotations

import pytest
from numpy.testing import assert_array_equal

from odcl.engines.files import fit_site
from odcl.engines.files.collect import open_upload
from tests.engines.files.world import class_task, frames, task, time


@pytest.mark.parametrize("classes", [False, True])
def test_what_arrives_is_what_was_sent_bit_for_bit(classes, tmp_path):
    given = (class_task if classes else task)()
    sent = fit_site(given, frames(1, classes=classes)["north"], site="north", created=time())
    sent.write(tmp_path / "north.upload")
    got = open_upload(given, tmp_path / "north.upload").uploads
    assert got.present.keys() == sent.uploads.present.keys()
    for name, values in sent.uploads.present.items():
        assert_array_equal(got.present[name], values)
