"""Images from the original files: each layout gives the same, no file is trusted; Table 2's users.

The files are made here, a few images each; where ../shared/data is beside the project, the real
ones are read as well.
"""

from __future__ import annotations

import gzip
import struct
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from odcl.local.fit import fit_users
from odcl.paper.images import (
    CIFAR10N_FLIP,
    TABLE_2,
    Images,
    image_federation,
    load_images,
)
from odcl.risk.risk import Risk
from tests.helpers import SHARED_DATA, refusal

BATCHES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
N = 20  # images of a CIFAR batch here
MNIST_FILES = [f"{p}-{k}-ubyte" for p in ("train", "t10k") for k in ("images-idx3", "labels-idx1")]


def labelled(n, n_pixels, seed):
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 256, (n, n_pixels), dtype=np.uint8)
    return X, np.arange(n, dtype=np.uint8)[rng.permutation(n)] % 10


MNIST = [labelled(50, 784, 0), labelled(20, 784, 1)]
CIFAR = [labelled(N, 3072, seed) for seed in range(6)]


def idx(array):
    return struct.pack(f">{1 + array.ndim}I", 0x0800 + array.ndim, *array.shape) + array.tobytes()


def write_mnist(folder, *, pack=lambda raw: raw, rename=lambda name: name):
    folder.mkdir(parents=True, exist_ok=True)
    contents = [idx(a) for X, y in MNIST for a in (X.reshape(-1, 28, 28), y)]
    for name, raw in zip(MNIST_FILES, contents, strict=True):
        (folder / rename(name)).write_bytes(pack(raw))
    return folder


def write_binary(folder, batches=CIFAR, names=BATCHES):
    folder.mkdir(parents=True, exist_ok=True)
    for name, (X, y) in zip(names, batches, strict=True):
        (folder / f"{name}.bin").write_bytes(np.column_stack([y, X]).tobytes())
    return folder


def assert_holds(images, parts, name):
    assert images.name == name
    X, y = (np.concatenate(arrays) for arrays in zip(*parts[:-1], strict=True))
    for got, expected in ((images.X, X), (images.y, y)):
        assert_array_equal(got, expected)
    for got, expected in ((images.test_X, parts[-1][0]), (images.test_y, parts[-1][1])):
        assert_array_equal(got, expected)
    assert images.X.dtype == images.test_X.dtype == np.uint8
    assert np.prod(images.shape) == images.X.shape[1]


# Every layout gives the same images


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("subfolder", ["", "mnist", "MNIST/raw"])
def test_mnist_is_read_packed_or_not_whatever_its_ending(tmp_path, pack, ending, subfolder):
    write_mnist(tmp_path / subfolder, pack=pack, rename=lambda name: name + ending)
    assert_holds(load_images("mnist", tmp_path), MNIST, "mnist")


def test_mnist_is_read_under_the_names_with_a_dot(tmp_path):
    write_mnist(tmp_path, rename=lambda name: name.replace("-idx", ".idx"))
    assert_holds(load_images("mnist", str(tmp_path)), MNIST, "mnist")


@pytest.mark.parametrize("subfolder", ["", "cifar-10-batches-bin"])
def test_cifar_is_read_from_the_binary_layout(tmp_path, subfolder):
    write_binary(tmp_path / subfolder)
    assert_holds(load_images("cifar10", tmp_path), CIFAR, "cifar10")


def test_two_classes_are_the_same_from_the_whole_and_from_a_file_of_two(tmp_path):
    write_binary(tmp_path / "whole")
    some = [(X[y < 2], y[y < 2]) for X, y in CIFAR]
    train = tuple(np.concatenate(arrays) for arrays in zip(*some[:-1], strict=True))
    write_binary(tmp_path / "two" / "cifar10-two-classes", [train, some[-1]], ["train", "test"])
    assert_holds(load_images("cifar10", tmp_path / "whole", classes=(0, 1)), some, "cifar10")
    assert_holds(load_images("cifar10", tmp_path / "two"), some, "cifar10")


# What is not there


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mnist", ["train-images-idx3-ubyte", "t10k-labels-idx1-ubyte", ".gz"]),
        ("cifar10", ["cifar-10-binary.tar.gz", "cifar-10-batches-py", "train.bin", "kriz"]),
    ],
)
@pytest.mark.parametrize("exists", [True, False])
def test_a_missing_data_set_says_what_to_put_where(tmp_path, name, words, exists):
    folder = tmp_path if exists else tmp_path / "nowhere"
    with pytest.raises(ValueError, match="Nothing is downloaded") as error:
        load_images(name, folder)
    assert all(word in str(error.value) for word in [str(folder), *words])
    assert "\n" not in str(error.value)


def test_a_missing_file_among_others_is_named(tmp_path):
    (write_mnist(tmp_path) / MNIST_FILES[3]).unlink()
    with pytest.raises(ValueError, match="t10k-labels-idx1-ubyte beside it is not"):
        load_images("mnist", tmp_path)
    (write_binary(tmp_path) / "data_batch_4.bin").unlink()
    with pytest.raises(ValueError, match=r"data_batch_4\.bin beside it is not"):
        load_images("cifar10", tmp_path)


def test_an_archive_that_is_still_packed_is_pointed_out(tmp_path):
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(b"")
    with pytest.raises(ValueError, match=r"cifar-10-binary\.tar\.gz is there: unpack it"):
        load_images("cifar10", tmp_path)


def test_unknown_names_and_absent_classes_are_refused(tmp_path):
    with pytest.raises(ValueError, match="choose 'mnist' or 'cifar10'"):
        load_images("imagenet", tmp_path)
    train, test = labelled(10, 3072, 0), labelled(2, 3072, 1)
    write_binary(tmp_path, [(train[0], train[1] % 2), (test[0], test[1] % 2)], ["train", "test"])
    with pytest.raises(ValueError, match="Class 7 is asked for"):
        load_images("cifar10", tmp_path, classes=np.array([1, 7]))


# Files that are cut short or foreign are named


def assert_names_the_file(name, folder, file, match=None):
    """Reading is refused in one line that names the file, and says why."""
    message = refusal(load_images, name, folder, match=match)
    assert file in message
    return message


@pytest.mark.parametrize("file", MNIST_FILES)
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize("kept", [0, 3, 12, -9, -1])
def test_an_mnist_file_cut_short_is_named(tmp_path, file, pack, kept):
    path = write_mnist(tmp_path, pack=pack) / file
    path.write_bytes(path.read_bytes()[:kept])
    assert_names_the_file("mnist", tmp_path, file)


def header(magic=0x803, n=50, *sizes):
    return struct.pack(f">{2 + len(sizes)}I", magic, n, *sizes)


@pytest.mark.parametrize(
    ("raw", "match"),
    [
        (b"<!DOCTYPE html><html>not found</html>", "no IDX file of n x 28 x 28 bytes"),
        (idx(MNIST[0][1]) + bytes(9), "no IDX file"),
        (header(0x803, 50, 32, 32) + bytes(50 * 1024), "no IDX file"),
        (header(0x803, 2**32 - 1, 28, 28) + bytes(784), "no IDX file"),
        (header(0x803, 49, 28, 28) + bytes(50 * 784), "no IDX file"),
        (header(0x803, 51, 28, 28) + bytes(50 * 784), "no IDX file"),
        (header(0x803, 49, 28, 28) + bytes(49 * 784), "49 images, and .* 50 labels"),
        (gzip.compress(bytes(99), mtime=0), "no IDX file"),
        (b"\x1f\x8b" + bytes(99), "could not be read"),
        (gzip.compress(idx(MNIST[0][0].reshape(-1, 28, 28)))[:-8] + bytes(8), "CRC"),
    ],
)
def test_a_foreign_mnist_file_is_named_with_what_was_seen(tmp_path, raw, match):
    (write_mnist(tmp_path) / MNIST_FILES[0]).write_bytes(raw)
    assert_names_the_file("mnist", tmp_path, MNIST_FILES[0], match)


def test_labels_beyond_nine_are_refused(tmp_path):
    y = MNIST[0][1].copy()
    y[4] = 10
    (write_mnist(tmp_path) / MNIST_FILES[1]).write_bytes(idx(y))
    assert_names_the_file("mnist", tmp_path, MNIST_FILES[1], "label 10 at image 4")


@pytest.mark.parametrize("kept", [0, 1, 3072, 3074, -1])
def test_a_binary_batch_cut_inside_an_image_is_named(tmp_path, kept):
    path = write_binary(tmp_path) / "data_batch_2.bin"
    path.write_bytes(path.read_bytes()[:kept])
    assert_names_the_file("cifar10", tmp_path, "data_batch_2.bin", "not whole records of 3073")


def test_a_binary_file_of_other_things_is_refused(tmp_path):
    """CIFAR-100 has two label bytes; text of the right length has labels far beyond 9."""
    path = write_binary(tmp_path) / "test_batch.bin"
    path.write_bytes(b"x" * 3073 * N)
    assert_names_the_file("cifar10", tmp_path, "test_batch.bin", "label 120 at image 0")


# Table 2's users


def some_images(per_class=60, name="cifar10", classes=(0, 1, 2)):
    """Images that differ in every row, mixed over the classes."""
    rng = np.random.default_rng(7)
    y = rng.permutation(np.repeat(classes, per_class))
    test_y = rng.permutation(np.repeat(classes, 5))
    draw = lambda n: rng.integers(0, 256, (n, 12), dtype=np.uint8)  # noqa: E731
    return Images(name, draw(len(y)), y, draw(len(test_y)), test_y, (12,), Path())


def small_image_federation(images, **options):
    return image_federation(images, **({"n_users": 10, "n_samples": 8, "seed": 3} | options))


@settings(deadline=None, max_examples=20)
@given(st.integers(2, 15), st.integers(1, 4), st.integers(0, 2**32), st.sampled_from([0, 0.2, 1]))
def test_no_image_has_two_owners(n_users, half, seed, flip):
    images = some_images()
    options = {"n_users": n_users, "n_samples": 2 * half, "seed": seed, "flip": flip}
    federation = image_federation(images, **options)
    owned = federation.train_rows
    assert len(set(owned.tolist())) == len(owned)
    assert (images.y[owned] < 2).all()
    assert_array_equal(federation.X, images.X[federation.train_rows] / 255)
    assert_array_equal(federation.test_X, images.test_X[images.test_y < 2] / 255)


def test_each_user_has_both_classes_equally_and_its_groups_labels():
    """Section 5: {+1, -1} for classes 1 and 2 in one cluster, {-1, +1} in the other."""
    images = some_images()
    federation = small_image_federation(images, classes=(2, 0))
    assert_array_equal(federation.groups, [0] * 5 + [1] * 5)
    for i, (_, _, y) in enumerate(federation):
        kinds = images.y[federation.train_rows[federation.rows(i)]]
        assert_array_equal(np.bincount(kinds), [4, 0, 4])
        assert_array_equal(y, np.where(kinds == 2, 1, -1) * (1 if i < 5 else -1))
    kinds = images.test_y[images.test_y != 1]
    assert_array_equal(federation.test_y[0], np.where(kinds == 2, 1, -1))
    assert_array_equal(federation.test_y[1], -federation.test_y[0])


def test_the_seed_decides_and_a_user_is_the_same_among_few_and_many():
    images = some_images()
    one, again, other = (small_image_federation(images, seed=s, flip=0.25) for s in (3, 3, 4))
    assert_array_equal(one.X, again.X)
    assert_array_equal(one.y, again.y)
    assert (one.train_rows != other.train_rows).any()
    few = small_image_federation(images, n_users=4, flip=0.25)
    assert_array_equal(few.X, one.X[: 4 * 8])
    # Users 2 and 3 are of the other group among four: their labels turn, flipped ones as well.
    assert_array_equal(few.y[16:32], -one.y[16:32])
    assert_array_equal(few.y[:16], one.y[:16])


def test_all_classes_and_two_of_them_give_the_same_users(tmp_path):
    write_binary(tmp_path)
    whole, two = (load_images("cifar10", tmp_path, classes=c) for c in (None, (0, 1)))
    ours, other = (image_federation(one, n_users=3, n_samples=4, seed=1) for one in (whole, two))
    for field in ("X", "y", "test_X", "test_y"):
        assert_array_equal(getattr(ours, field), getattr(other, field))


@pytest.mark.parametrize(("flip", "n_flipped"), [(0, 0), (0.2, 2), (0.25, 2), (0.5, 4), (1, 8)])
def test_noisy_labels_are_a_share_of_each_users_and_never_of_the_test(flip, n_flipped):
    """CIFAR10N: "for each user we flip 20% of the labels", the test labels "remain unchanged"."""
    images = some_images()
    clean, noisy = small_image_federation(images), small_image_federation(images, flip=flip)
    assert_array_equal(clean.X, noisy.X)
    assert_array_equal(clean.test_y, noisy.test_y)
    wrong = (clean.y != noisy.y).reshape(10, 8)
    assert_array_equal(wrong.sum(axis=1), n_flipped)
    if 0 < n_flipped < 8:
        assert len(np.unique(wrong, axis=0)) > 1  # not the same places for all
        assert wrong[:, :4].any()
        assert wrong[:, 4:].any()


def test_what_cannot_be_dealt_is_refused():
    images = some_images()
    with pytest.raises(
        ValueError, match=r"20 users with 4 images of class 0 each need 80, and .* 60"
    ):
        small_image_federation(images, n_users=20)


# The real files


@cache
def real(name):
    try:
        return load_images(name, SHARED_DATA)
    except ValueError as error:
        if "Nothing is downloaded" not in str(error):
            raise
        return pytest.skip(f"the files of {name} are not in ../shared/data beside the project")


def test_real_mnist_has_the_published_counts():
    images = real("mnist")
    counts = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert_array_equal(np.bincount(images.y), counts)
    assert images.X.shape == (60_000, 784)
    assert images.test_X.shape == (10_000, 784)


def test_real_cifar_has_the_published_counts():
    images = load_images("cifar10", real("cifar10").source, classes=(0, 1))
    assert_array_equal(np.bincount(images.y), [5000, 5000])
    assert_array_equal(np.bincount(images.test_y), [1000, 1000])


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_no_real_image_is_twice_among_users_or_in_the_test(name):
    """Not by position only: pixel by pixel, in the two classes of Table 2."""
    images, classes = real(name), TABLE_2[name].classes
    parts = (images.X, images.y), (images.test_X, images.test_y)
    every = [row.tobytes() for X, y in parts for row in X[np.isin(y, classes)]]
    assert len(set(every)) == len(every)


@pytest.mark.parametrize(
    ("name", "flip", "alone"),
    [("mnist", 0, 0.83), ("cifar10", 0, 0.70), ("cifar10", CIFAR10N_FLIP, 0.62)],
)
def test_local_models_are_as_accurate_as_table_2_says(name, flip, alone):
    """Local ERM of Table 2: 30 users suffice to tell it, and to tell clean labels from noisy."""
    federation = image_federation(real(name), flip=flip, n_users=30)
    theta = fit_users(federation, Risk("logistic", l2=1e-5)).theta
    right = np.sign(theta @ federation.test_X.T) == federation.test_y[federation.groups]
    assert right.mean() == pytest.approx(alone, abs=0.02)
