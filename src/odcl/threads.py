"""Thread limits for many small steps, which on several threads would wait for each other."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any

LARGE = 1000  # features from which on one user's products are worth several threads
MANY = 1_000_000  # numbers from which on a loop over points may be worth several threads


class _Here(threading.local):
    inside = False  # of a limit that this thread has set


_here = _Here()


@cache
def _controller(library: str) -> Any:
    """The thread pools, among them that of ``library``; finding them takes milliseconds."""
    import_module(library)
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


@contextmanager
def one_thread(n_features: int = 0) -> Iterator[None]:
    """Limit BLAS to one thread; nested calls are no-ops.

    Users' systems are small and many: on more threads each product waits for the others, up to
    twenty times as long as it takes. Rows with a thousand features (images) are left to them: there
    two cores save a tenth to a third.
    """
    if n_features >= LARGE or _here.inside:
        yield
        return
    with _controller("scipy.linalg").limit(limits=1, user_api="blas"):
        _here.inside = True
        try:
            yield
        finally:
            _here.inside = False


@contextmanager
def one_loop_thread(size: int) -> Iterator[None]:
    """Limit scikit-learn's loops over ``size`` numbers to one thread, unless there are many.

    Lloyd's steps on 2,000 points take 50 microseconds each. On more threads than cores are free
    they wait, busily, for one another: six times the processor time beside other work.
    """
    if size >= MANY:
        yield
        return
    with _controller("sklearn.cluster").limit(limits=1, user_api="openmp"):
        yield
