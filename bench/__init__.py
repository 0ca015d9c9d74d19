"""Measurements as ratios: ``python -m bench`` runs them all, ``python -m bench local`` a part.

One thread everywhere, set before NumPy is imported.
"""

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"
