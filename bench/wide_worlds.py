"""Wide users to measure on: images, embeddings and sensors with more parameters than rows.

Every maker is a function of its seed (and of a folder with MNIST or CIFAR10) and gives a
:class:`World`. Images dealt to users have one owner each; all users of an image world are judged on
the same new images, which no user has, in the words (labels, rotation) of their own group: users
then differ by their models and not by what they were asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.datasets import load_digits

from odcl._typing import Array, Floats, Ints
from odcl.paper.images import Images, image_federation, load_images

DATA = Path("../shared/data")
# Size of the class means beside the noise within a class. Of users with 50 rows of ten classes, a
# logistic regression alone has .69, one fitted on true groups of 20 users .93.
EMBEDDING_SIZE, EMBEDDING_RANK = 0.79, 22


class World(NamedTuple):
    """Rows of users to fit and rows to judge by, and each user's group."""

    X: Floats  # (rows, features)
    y: Array  # (rows,), classes 0..C-1 or numbers
    users: Ints  # (rows,), 0..m-1
    X_new: Any  # float32 for images
    y_new: Array
    users_new: Ints
    truth: Ints  # (m,)


# -- images ----------------------------------------------------------------------------------------


def mnist_users(
    seed: int,
    data: Path = DATA,
    *,
    classes: tuple[int, int] = (1, 2),
    n_rows: int = 4,
    n_users: int = 100,
    n_new: int = 500,
) -> World:
    """Two digits; half of the users call them the other way round."""
    return _paper_users("mnist", data, seed, classes, n_rows, n_users, n_new)


def cifar_users(
    seed: int, data: Path = DATA, *, flip: float = 0.0, n_rows: int = 40, n_new: int = 300
) -> World:
    """Airplanes and automobiles of 100 users, half of whom call them the other way round.

    ``flip``: share of each user's own labels that are wrong.
    """
    return _paper_users("cifar10", data, seed, (0, 1), n_rows, 100, n_new, flip)


def rotated_users(
    seed: int,
    data: Path = DATA,
    *,
    relu: int = 0,
    n_groups: int = 4,
    n_users: int = 40,
    n_rows: int = 50,
    n_new: int = 300,
) -> World:
    """Ten digits, turned by 0, 90, 180 or 270 degrees by group (``n_groups=1``: as they are).

    ``relu``: so many units of a frozen random network instead of pixels.
    """
    images, rng = _images("mnist", data), np.random.default_rng(seed)
    truth = np.arange(n_users) % n_groups
    own = rng.choice(len(images.y), n_users * n_rows, replace=False)
    new = np.tile(rng.choice(len(images.test_y), n_new, replace=False), n_users)
    users, users_new = (np.repeat(np.arange(n_users), n) for n in (n_rows, n_new))
    X = _turned(images.X[own], truth[users])
    X_new = _turned(images.test_X[new], truth[users_new])
    if relu:
        net: Any = np.random.default_rng(0)  # frozen: the same for all seeds
        weights = net.standard_normal((784, relu)).astype(np.float32) * np.sqrt(2 / 784)
        bias = 0.1 * net.standard_normal(relu).astype(np.float32)
        X, X_new = (np.maximum(Z @ weights + bias, 0) for Z in (X, X_new))
    return World(
        X.astype(np.float64), images.y[own], users, X_new, images.test_y[new], users_new, truth
    )


def digit_users(
    seed: int,
    *,
    n_groups: int = 2,
    classes: Sequence[int] = tuple(range(10)),
    n_users: int = 40,
    n_new: int = 300,
) -> World:
    """8 x 8 digits of users with 10 to 60 rows; every group permutes the labels in its own way."""
    digits, rng = load_digits(), np.random.default_rng(seed)
    some = rng.permutation(np.flatnonzero(np.isin(digits.target, classes)))
    new, own = np.split(some, [min(n_new, len(some) // 3)])
    truth = np.arange(n_users) % n_groups
    sizes = rng.integers(10, 61, n_users)
    users = np.repeat(np.arange(n_users), sizes)
    users_new = np.repeat(np.arange(n_users), len(new))
    # Two digits alone are too few for one owner each: then users draw with their own permutation.
    if len(users) <= len(own):
        own = own[: len(users)]
    else:
        own = np.concatenate([rng.choice(own, n, replace=False) for n in sizes])
    words = _permutations(rng, n_groups, len(classes))
    index = np.searchsorted(np.sort(classes), digits.target)
    new = np.tile(new, n_users)
    return World(
        *(digits.data[own] / 16, words[truth[users], index[own]], users),
        *(digits.data[new] / 16, words[truth[users_new], index[new]], users_new, truth),
    )


@cache
def _images(name: str, data: Path) -> Images:
    return load_images(name, data)


def _paper_users(
    name: str,
    data: Path,
    seed: int,
    classes: tuple[int, int],
    n_rows: int,
    n_users: int,
    n_new: int,
    flip: float = 0.0,
) -> World:
    f = image_federation(
        _images(name, data),
        seed=seed,
        n_users=n_users,
        n_samples=n_rows,
        classes=classes,
        flip=flip,
    )
    new = np.random.default_rng(seed).choice(len(f.test_X), min(n_new, len(f.test_X)), False)
    everyone = np.arange(n_users)
    return World(
        *(f.X, (f.y > 0).astype(np.intp), np.repeat(everyone, n_rows)),
        np.tile(f.test_X[new].astype(np.float32), (n_users, 1)),
        (f.test_y[f.groups][:, new] > 0).ravel().astype(np.intp),
        *(np.repeat(everyone, len(new)), f.groups),
    )


def _turned(pixels: Any, quarters: Ints) -> Any:
    """Images (n, 784) of bytes as float32 / 255, each turned by its quarters."""
    out = pixels.reshape(-1, 28, 28).astype(np.float32) / 255
    for k in range(1, 4):
        out[quarters == k] = np.rot90(out[quarters == k], k, axes=(1, 2))
    return out.reshape(len(out), -1)


def _permutations(rng: Any, n_groups: int, n_classes: int) -> Ints:
    """(n_groups, n_classes) labels: those of group 0 as they are; no class is called alike twice
    while there are words left."""
    order, step = rng.permutation(n_classes), max(n_classes // n_groups, 1)
    words = np.empty((n_groups, n_classes), dtype=np.intp)
    for k in range(n_groups):
        words[k, order] = np.roll(order, k * step)
    return words


# -- made ------------------------------------------------------------------------------------------


def embedding_users(
    seed: int,
    *,
    n_users: int = 60,
    n_rows: int = 50,
    n_features: int = 384,
    n_classes: int = 10,
    n_groups: int = 3,
    rank: int = EMBEDDING_RANK,
    size: float = EMBEDDING_SIZE,
    n_new: int = 200,
) -> World:
    """Groups that call ten classes by other names.

    Noise within a class falls from direction to direction as a frozen network's does, its variance
    as 1 / (1 + j); class means are ``size`` times such a draw in the first ``rank`` directions.
    """
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.standard_normal((n_features, n_features)))[0]
    turn /= np.sqrt(1 + np.arange(n_features))[:, None]
    centers = size * rng.standard_normal((n_classes, rank)) @ turn[:rank]
    truth = np.arange(n_users) % n_groups
    words = _permutations(rng, n_groups, n_classes)

    def drawn(n: int) -> tuple[Floats, Ints, Ints]:
        users, kind = np.repeat(np.arange(n_users), n), rng.integers(n_classes, size=n_users * n)
        X = centers[kind] + rng.standard_normal((len(users), n_features)) @ turn
        return X, words[truth[users], kind], users

    return World(*drawn(n_rows), *drawn(n_new), truth)


def sensor_users(
    seed: int,
    *,
    n_rows: int = 30,
    n_users: int = 30,
    n_features: int = 561,
    n_classes: int = 6,
    size: float = 0.8,
    offset: float = 0.7,
    effect: float = 0.4,
    n_new: int = 200,
) -> World:
    """A stand-in for activities of people: no groups, users differ gradually.

    Forty factors of falling size lie behind correlated features. Relative to their noise: ``size``
    of the class means, of a user's ``offset`` common to its rows, and of the ``effect`` it has on
    each class. Alone and pooled, logistic regression has .77 and .94 (n = 10), .93 and .96 (30),
    .97 and .97 (90).
    """
    rng, rank = np.random.default_rng(seed), 40
    mix = rng.standard_normal((rank, n_features)) / np.sqrt(1 + np.arange(rank))[:, None]
    centers = size * rng.standard_normal((n_classes, rank))
    offsets = offset * rng.standard_normal((n_users, 1, rank))
    ways = centers + offsets + effect * rng.standard_normal((n_users, n_classes, rank))

    def drawn(n: int) -> tuple[Floats, Ints, Ints]:
        users = np.repeat(np.arange(n_users), n)
        y = np.concatenate([rng.permutation(np.arange(n) % n_classes) for _ in range(n_users)])
        factors = ways[users, y] + rng.standard_normal((len(y), rank))
        return factors @ mix + 0.3 * rng.standard_normal((len(y), n_features)), y, users

    return World(*drawn(n_rows), *drawn(n_new), np.zeros(n_users, dtype=np.intp))


def alike_users(
    seed: int,
    *,
    n_features: int = 200,
    n_users: int = 60,
    n_rows: int = 20,
    n_classes: int = 3,
    length: float = 3.0,
    t4: bool = False,
    uneven: bool = False,
    n_new: int = 50,
) -> World:
    """No groups and no differences: class means of a given length and noise of variance one, by
    Student's t with 4 degrees of freedom if ``t4``; ``uneven``: users with 1 to 100 rows."""
    rng = np.random.default_rng(seed)
    centers = rng.standard_normal((n_classes, n_features))
    centers *= length / np.linalg.norm(centers, axis=1, keepdims=True)
    sizes = rng.integers(1, 101, n_users) if uneven else np.full(n_users, n_rows)

    def drawn(sizes: Ints) -> tuple[Floats, Ints, Ints]:
        users = np.repeat(np.arange(n_users), sizes)
        y, shape = rng.integers(n_classes, size=len(users)), (len(users), n_features)
        noise = rng.standard_t(4, shape) / np.sqrt(2) if t4 else rng.standard_normal(shape)
        return centers[y] + noise, y, users

    return World(*drawn(sizes), *drawn(np.full(n_users, n_new)), np.zeros(n_users, dtype=np.intp))


def squared_users(
    seed: int,
    *,
    n_features: int = 200,
    n_rows: int = 100,
    n_users: int = 60,
    n_groups: int = 4,
    noise: float = 0.5,
    n_new: int = 100,
) -> World:
    """Independent features, a model of signal 1 per group, noise of sd .5; ``y_new`` is without
    noise, so that the mean squared error of predictions is the NMSE."""
    rng = np.random.default_rng(seed)
    theta = rng.standard_normal((n_groups, n_features)) / np.sqrt(n_features)
    truth = np.arange(n_users) % n_groups
    users, users_new = (np.repeat(np.arange(n_users), n) for n in (n_rows, n_new))
    X, X_new = (rng.standard_normal((len(u), n_features)) for u in (users, users_new))
    y, y_new = (
        np.einsum("ij,ij->i", Z, theta[truth[u]]) for Z, u in ((X, users), (X_new, users_new))
    )
    y = y + noise * rng.standard_normal(len(y))
    return World(X, y, users, X_new, y_new, users_new, truth)


def write_users(folder: Path, users: int, rows: int = 20, features: int = 384) -> None:
    """Ten classes in the words of three groups, as files; each file has a row of every user."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    rng = np.random.default_rng(0)
    centers = (5 / np.sqrt(features) * rng.standard_normal((10, features))).astype(np.float32)
    words, owner = _permutations(rng, 3, 10), np.arange(users)
    for number in range(rows):
        kind = rng.integers(10, size=users)
        X = centers[kind] + rng.standard_normal((users, features), dtype=np.float32)
        label = [f"c{c}" for c in words[owner % 3, kind]]
        columns = {f"x{j}": X[:, j] for j in range(features)}
        part = pa.table({"user": owner, **columns, "label": label})
        pq.write_table(part, folder / f"part-{number:05d}.parquet")
