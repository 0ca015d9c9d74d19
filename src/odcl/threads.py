"""BLAS on one thread where many small products would wait for each other on more."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

LARGE = 256  # features from which on one user's products may well be worth several threads
_lock = threading.Lock()
_inside: list[Any] = []  # one entry per caller; the first holds the limit


@cache
def _controller() -> Any:
    """Looking for the libraries takes milliseconds: once is enough."""
    import scipy.linalg  # noqa: F401  (it brings a BLAS of its own)
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


@contextmanager
def one_thread(n_features: int = 0) -> Iterator[None]:
    """BLAS on one thread as long as anybody is inside; then as it was.

    Users' systems are small and many: on more threads each product waits for the others, up to
    twenty times as long as it takes. Rows with hundreds of features (images) are left to them.
    """
    if n_features >= LARGE:
        yield
        return
    with _lock:
        _inside.append(None if _inside else _controller().limit(limits=1, user_api="blas"))
    try:
        yield
    finally:
        with _lock:
            limit = _inside.pop()
            if limit is not None:
                limit.restore_original_limits()
