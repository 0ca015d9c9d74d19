"""Fixtures for the tests of runs."""

from tests.fits import fit_once as fit_once
from tests.fits import kept_fits as kept_fits
