"""Messages: every declared field is taken along, counted, written and read back."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from odcl import Downloads, Risk, Uploads
from odcl.exchange.message import Exchange, Ledger, message_bytes, n_numbers
from tests.helpers import refusal


def uploads(m=5, dim=3, *, seed=0):
    """Every field filled, and different for every user."""
    rng = np.random.default_rng(seed)
    half = rng.normal(size=(m, dim, dim))
    ids = np.array([f"u{i}" for i in range(m)])
    n = rng.uniform(1, 9, size=m)
    theta, width = rng.normal(size=(m, dim)), dim + 1
    curvature = np.stack([w * (half @ half.swapaxes(1, 2)) for w in (1, 2, 3)], axis=1)
    terms = {
        "means": rng.normal(size=(m, width)),
        "factor": np.triu(rng.normal(size=(m, width, width))),
        "gaussian_curvature": curvature,
        "gaussian_slope": rng.normal(size=(m, 3, dim)),
        "gaussian_constant": rng.normal(size=(m, 3)),
        "gaussian_line_curvature": 4 * curvature,
        "gaussian_line_slope": rng.normal(size=(m, 3, dim)),
        "gaussian_line_constant": rng.normal(size=(m, 3)),
        "gaussian_ceiling": rng.normal(size=m),
        "gaussian_means": rng.normal(size=(m, dim)),
        "gaussian_sds": rng.random(size=(m, dim)),
        "class_rows": rng.normal(size=(m, 2)),
        "class_means": rng.normal(size=(m, 2, dim)).astype(np.float32),
        "scatter": rng.normal(size=(m, 4, dim)).astype(np.float32),
        "scatter_class": rng.integers(-1, 2, size=(m, 4), dtype=np.int16),
        "thin_factor": rng.normal(size=(m, 5, width)).astype(np.float32),
        "private_curvature": half + half.swapaxes(1, 2),
        "private_curvature_sd": rng.random(size=m),
        "private_slope": rng.normal(size=(m, dim)),
        "private_offset": rng.normal(size=(m, dim)),
        "private_center": rng.normal(size=(m, dim)),
        "private_sd": rng.random(size=m),
        "private_residuals": rng.normal(size=(m, 11)),
        "observations": n,
    }
    return Uploads(ids, n, theta, **terms)


def downloads(m=5, dim=3, seed=0):
    rng = np.random.default_rng(seed)
    numbers = rng.permutation(2 * m).reshape(2, m)
    fold = rng.integers(0, 5, m)
    half, slope = rng.normal(size=(m, dim, dim)), rng.normal(size=(m, dim))
    own = half @ half.swapaxes(1, 2), slope
    return Downloads(np.arange(m), rng.random((m, dim)), *numbers, rng.random(m), fold, *own)


MESSAGES = {"uploads": uploads(), "downloads": downloads()}
every_message = pytest.mark.parametrize("name", MESSAGES)


def assert_same(one, other):
    assert one.present.keys() == other.present.keys()
    assert one.users.tolist() == other.users.tolist()
    for name, values in one.present.items():
        assert_array_equal(other.present[name], values, err_msg=name)


@every_message
def test_the_messages_tried_hold_every_field(name):
    message = MESSAGES[name]
    assert set(message.present) == set(message.parts())
    rest = {f.name for f in fields(message)} - set(message.parts())
    assert rest == {"users", "mixture" if name == "downloads" else "risk"}
    assert all(part.tells for part in message.parts().values())


@every_message
@pytest.mark.parametrize("order", [[3, 1], [4, 3, 2, 1, 0], [2]])
def test_taking_some_users_takes_each_of_their_fields(name, order):
    message = MESSAGES[name]
    part = message.take(np.array(order))
    assert len(part) == len(order)
    for field, values in message.present.items():
        assert_array_equal(getattr(part, field), values[order], err_msg=field)
    assert_array_equal(part.users, message.users[order])
    mask = np.isin(np.arange(5), order)
    assert_same(message.take(mask), message.take(np.flatnonzero(mask)))
    one, pair = message.take(np.arange(1)), message.take(np.arange(2))
    assert len(one.take(np.array([False]))) == 0
    assert_same(pair.take(np.array([False, True])), message.take(np.array([1])))
    assert_same(message[-1], message.take(np.array([4])))
    assert [one.users[0] for one in message] == message.users.tolist()


@every_message
def test_messages_apart_and_joined_are_the_messages(name):
    message = MESSAGES[name]
    one, other = message.take(np.arange(2)), message.take(np.arange(2, 5))
    assert_same(one.joined(other), message)
    moved = message.replaced(np.array([1]), message[4])
    for field, values in moved[1].present.items():
        assert_array_equal(values, message[4].present[field])
    assert moved.users.tolist() == message.users.tolist()
    assert_same(moved.take(np.array([0, 2, 3, 4])), message.take(np.array([0, 2, 3, 4])))
    assert_same(message.replaced(np.array([1]), message[1]), message)


@every_message
def test_a_message_in_the_place_of_another_leaves_the_old_ones_as_they_were(name):
    messages = MESSAGES[name]
    before = {field: values.copy() for field, values in messages.present.items()}
    messages.replaced(np.array([1]), messages[0])
    for field, values in before.items():
        assert_array_equal(messages.present[field], values)


def test_joined_users_keep_the_kind_of_their_ids():
    numbers, words = downloads().take(np.arange(2)), uploads().take(np.arange(1))
    assert numbers.joined(numbers.take(np.array([1]))).users.tolist() == [0, 1, 1]
    text = Uploads(np.array(["u0"]), words.n_samples, words.theta)
    both = Uploads(np.array([7]), words.n_samples, words.theta).joined(text)
    assert both.users.tolist() == [7, "u0"]


@every_message
def test_arrays_of_a_file_lead_back_to_the_messages(name):
    message = MESSAGES[name]
    arrays = message.to_arrays()
    if "factor" in arrays:
        assert arrays["factor"].shape == (5, 10)  # triangles
    sizes = {"dim": 3, "width": 4, "widths": 3, "classes": 2, "features": 3, "draws": 4}
    sizes |= {"columns": 3, "lines": 3, "bins": 11}
    shapes, specs = message.array_shapes(sizes), message.specs(sizes)
    if name == "uploads":
        assert shapes.pop("thin_factor") == ("users", "rank", 4)  # as many rows as a file has
        assert specs["class_means"].dtypes == ("float32",)
    for key, shape in shapes.items():
        if arrays[key].ndim:  # what all users share is one number
            assert shape[1:] == arrays[key].shape[1:]
    assert_same(type(message).from_arrays(message.users, arrays), message)


def test_arrays_that_do_not_make_a_message_are_refused():
    arrays = uploads().to_arrays()
    del arrays["n_samples"]
    refusal(Uploads.from_arrays, np.arange(5), arrays, match="n_samples is not there")


def test_bytes_are_those_of_numbers_and_a_triangle_per_matrix():
    assert n_numbers(()) == 1
    assert n_numbers((4,)) == 4
    assert n_numbers((4, 4)) == 10
    assert n_numbers((4, 5)) == 20
    assert message_bytes((4,), (), (4, 4)) == 8 * 15
    terms = 4 + 10 + 2 * 3 * (6 + 3 + 1) + 1 + 2 * 3 + 1
    terms += 6 + 1 + 3 + 3 + 3 + 1 + 11  # with noise
    wide = 8 * 2 + 4 * (2 * 3 + 4 * 3 + 5 * 4) + 2 * 4
    assert_array_equal(uploads().n_bytes, 8 * (3 + 1 + terms) + wide)
    assert_array_equal(downloads().n_bytes, 8 * (3 + 1 + 1 + 1 + 1 + 6 + 3))


def test_a_ledger_counts_rounds_and_the_delivery():
    one = Ledger.of(uploads(), downloads())
    sent = 8 * (4 + 82 + 28) + 176
    assert (one.n_rounds, one.total_up, one.total_down) == (1, 5 * sent, 5 * 8 * 16)
    rounds = Exchange(7, sends=((3,),), receives=((3,),) * 2, delivers=True).over(4)
    assert_array_equal(rounds.up, [7 * 24] * 4)
    assert_array_equal(rounds.down, 7 * 48)
    assert rounds.total_down == 5 * 7 * 48  # four rounds, and the last models go out once more
    assert rounds.delivery == 7 * 48


def test_what_uploads_know_follows_from_what_they_hold():
    assert uploads().has_terms
    bare = Uploads.of(np.eye(3))
    assert not bare.has_terms
    assert_array_equal(bare.penalty, 0.0)
    risk = Risk("logistic", 0.2, intercept=True)
    told = Uploads(np.arange(2), np.ones(2), np.zeros((2, 3)), risk=risk)
    assert_array_equal(told.penalty, [0.2, 0.2, 0.0])  # the intercept is free


@pytest.mark.parametrize(
    ("field", "values"),
    [("n_samples", np.ones(4)), ("factor", np.ones((5, 4, 3))), ("theta", np.ones(5))],
)
def test_fields_of_another_shape_are_refused(field, values):
    sent = {name: getattr(uploads(), name) for name in uploads().parts()} | {field: values}
    refusal(Uploads(np.arange(5), **sent).check, match=f"{field} has shape")
