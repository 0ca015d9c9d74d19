"""Fixtures for the tests of pages: runs to look at, and a browser to look with."""

from __future__ import annotations

import os
import shutil
from contextlib import chdir

import pytest

from odcl.cli.main import run_command
from odcl.data.synthetic import store_tables
from odcl.data.tables import write_table
from tests.report.page.browser import Browser

HOW = (
    "pages are looked at in a real browser, which is not here: apt-get install chromium "
    "chromium-driver, and pip install selenium"
)


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    """One headless Chromium for all tests of a process."""
    selenium = pytest.importorskip("selenium", reason=HOW)
    binary = shutil.which("chromium") or shutil.which("chromium-browser")
    driver = shutil.which("chromedriver")
    if not (binary and driver):
        pytest.skip(HOW)
    assert selenium
    one = Browser.start(binary, driver, tmp_path_factory.mktemp("profile"))
    yield one
    one.quit()


@pytest.fixture
def browser(chromium):
    """The browser as it starts: wide, light, with scripts."""
    chromium.reset()
    return chromium


@pytest.fixture(scope="session")
def stores(tmp_path_factory):
    """A folder with the demo's table and a run of it: three groups of 60 stores."""
    place = tmp_path_factory.mktemp("stores")
    write_table(place / "stores.csv", store_tables(0)[0])
    with chdir(place):
        table = ["fit", "stores.csv", "--user", "store", "--target", "sales"]
        assert run_command([*table, "--out", "run", "-q"]) == 0
    return place


os.environ.setdefault("SE_AVOID_STATS", "true")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Tests in a browser are slow ones."""
    for item in items:
        if "chromium" in getattr(item, "fixturenames", ()):
            item.add_marker("slow")
