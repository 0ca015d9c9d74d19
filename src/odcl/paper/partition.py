"""The paper's federations of images (Section 5, Table 2): two groups with opposite labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from odcl._typing import Floats, Ints
from odcl.data.federation import Federation
from odcl.paper.images import Images


class _Setup(NamedTuple):
    classes: tuple[int, int]
    n_samples: int


# Section 5: digits 1 and 2 with n = 4; airplane and automobile with n = 40.
TABLE_2 = {"mnist": _Setup((1, 2), 4), "cifar10": _Setup((0, 1), 40)}
CIFAR10N_FLIP = 0.2  # noisy CIFAR10: the share of a user's labels that are turned over


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class ImageFederation(Federation):
    """A federation of images that knows each user's group and what users are judged on.

    The withheld images are the same for all; each user is judged by the labels of its group.
    """

    groups: Ints  # (n_users,), 0 or 1
    test_X: Floats  # (n_test, n_features)
    test_y: Floats  # (2, n_test), as each group labels them: test_y[1] is -test_y[0]
    train_rows: Ints  # (n_rows,), position of each row among the training images
    public_rows: Ints  # (n_public,), training images of the two classes that no user has


def image_federation(
    images: Images,
    *,
    seed: int = 0,
    n_users: int = 100,
    n_samples: int | None = None,
    classes: tuple[int, int] | None = None,
    flip: float = 0.0,
) -> ImageFederation:
    """Users of Table 2: two classes, features / 255, labels +1 and -1, two groups of users.

    Users of group 0, the first half, call the first class +1 and the second -1; users of group 1
    the opposite. ``n_samples`` (default: the paper's 4 for MNIST, 40 for CIFAR10) is one half
    of each class, in that order. No image has two owners, and all are judged on the test split.

    ``flip=CIFAR10N_FLIP`` is noisy CIFAR10: of each user's labels that share, to the nearest
    whole number, is turned over at random; test labels stay. Images are dealt class by class, so a
    user's are the same among 10 users and among 100, and whichever layout of CIFAR-10 they came
    from.
    """
    classes = TABLE_2[images.name].classes if classes is None else classes
    n_samples = TABLE_2[images.name].n_samples if n_samples is None else n_samples
    _check(images, n_users, n_samples, classes, flip)
    deal, noise = map(np.random.default_rng, np.random.SeedSequence(seed).spawn(2))

    dealt = [deal.permutation(np.flatnonzero(images.y == c)) for c in classes]
    taken = n_users * n_samples // 2
    rows = np.concatenate([d[:taken].reshape(n_users, -1) for d in dealt], axis=1)
    groups = np.arange(n_users) * 2 // n_users
    y = _labels(images.y[rows], classes, groups)  # (n_users, n_samples)
    turned = noise.random(y.shape).argsort(axis=1)[:, : round(flip * n_samples)]
    y[np.arange(n_users)[:, None], turned] *= -1

    withheld = np.flatnonzero(np.isin(images.test_y, classes))
    return ImageFederation(
        images.X[rows.ravel()] / 255.0,
        y.ravel(),
        np.arange(n_users + 1, dtype=np.intp) * n_samples,
        np.arange(n_users),
        groups=groups,
        test_X=images.test_X[withheld] / 255.0,
        test_y=_labels(np.tile(images.test_y[withheld], (2, 1)), classes, np.arange(2)),
        train_rows=rows.ravel(),
        public_rows=np.sort(np.concatenate([d[taken:] for d in dealt])),
    )


def public_mean(images: Images, rows: Ints) -> Floats:
    """Mean of the training images ``rows``, features / 255, (n_features,): ours.

    Of images that no user has, it gives away nothing of anyone's, and users may take it off theirs.
    Pixels are added as integers: exact, so the mean is the same in whatever order they come.
    """
    if not len(rows):
        raise ValueError(
            f"No image of {images.name} is left without an owner, and a mean of users' own images "
            "is not public: take fewer users or samples."
        )
    return images.X[rows].sum(axis=0, dtype=np.int64) / (255.0 * len(rows))


def _labels(y: Ints, classes: tuple[int, int], groups: Ints) -> Floats:
    """Classes as labels: row k of ``y``, (n, m), as a member of ``groups[k]`` labels it."""
    return np.where((y == classes[0]) == (groups == 0)[:, None], 1.0, -1.0)


def _check(images: Images, n_users: int, n_samples: int, classes: Any, flip: float) -> None:
    if n_users < 2:
        raise ValueError(f"n_users={n_users}, and two groups need at least two users.")
    if n_samples < 2 or n_samples % 2:
        raise ValueError(
            f"n_samples={n_samples}, and a user has as many images of one class as of the other: "
            "give an even number, 2 or more."
        )
    if len(classes) != 2 or classes[0] == classes[1]:
        raise ValueError(f"classes={classes} must be two different classes, such as (0, 1).")
    if not 0 <= flip <= 1:
        raise ValueError(f"flip={flip} must be a share of each user's labels, from 0 to 1.")
    for c in classes:
        have, need = int((images.y == c).sum()), n_users * n_samples // 2
        if have < need:
            raise ValueError(
                f"{n_users} users with {n_samples // 2} images of class {c} each need {need}, and "
                f"the training images of {images.name} have {have}: take fewer users or samples."
            )
        if c not in images.test_y:
            raise ValueError(
                f"The test images of {images.name} have none of class {c}, and users are judged on "
                "both: load the images with this class."
            )
