"""BLAS and loops have one thread as long as anybody is inside, and afterwards what they had."""

from __future__ import annotations

import threading

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from odcl import threads
from odcl.threads import one_loop_thread, one_thread


def in_use() -> int:
    return max(lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas")


@pytest.fixture
def two_threads():
    with threadpool_limits(2, user_api="blas"):
        if in_use() != 2:
            pytest.skip("This BLAS has one thread.")
        yield


def test_one_thread_inside_and_as_before_outside(two_threads):
    with one_thread():
        assert in_use() == 1
        with one_thread():
            assert in_use() == 1
        assert in_use() == 1
    assert in_use() == 2


def test_an_error_inside_leaves_no_limit_behind(two_threads):
    with pytest.raises(KeyError), one_thread():
        raise KeyError
    assert in_use() == 2


def test_a_limit_in_another_thread_ends_with_it(two_threads):
    def work():
        with one_thread():
            pass

    other = threading.Thread(target=work)
    other.start()
    other.join(10)
    assert in_use() == 2


def test_rows_with_hundreds_of_features_keep_their_threads(two_threads):
    with one_thread(threads.LARGE):
        assert in_use() == 2


def loop_threads() -> int:
    return max(lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "openmp")


def test_loops_over_few_points_have_one_thread():
    with one_loop_thread(10):  # which brings its OpenMP
        assert loop_threads() == 1
    with threadpool_limits(2, user_api="openmp"):
        with one_loop_thread(10):
            assert loop_threads() == 1
        assert loop_threads() == 2
        with one_loop_thread(threads.MANY):
            assert loop_threads() == 2
