"""Users built from real images: the default leaves them better off than every alternative.

The rule. A task is a pair of digits, (3, 8), (1, 7) or (4, 9): which of the two is it? Half of a
task's users give the answer, half of them its opposite (flipped labels), so there are six hidden
groups. A user owns n_i images, log-uniform between two bounds, and is judged on images of its task
that nobody trained on.
"""

import gzip

import numpy as np
import pytest
from sklearn.datasets import load_digits

from odcl import ODCLClassifier
from tests.helpers import SHARED_DATA, with_columns

TASKS = ((3, 8), (1, 7), (4, 9))
SHARED_MNIST = SHARED_DATA / "mnist"
SPLITS = range(5)


def digits():
    data = load_digits()
    return data.data, data.target


def mnist():
    """The first 20,000 training images, averaged to 7 x 7 pixels."""
    if not (SHARED_MNIST / "train-images-idx3-ubyte.gz").exists():
        pytest.skip("the MNIST files are not in ../shared/data/mnist beside the project")
    images = gzip.decompress((SHARED_MNIST / "train-images-idx3-ubyte.gz").read_bytes())
    labels = gzip.decompress((SHARED_MNIST / "train-labels-idx1-ubyte.gz").read_bytes())
    pixels = np.frombuffer(images, np.uint8, offset=16).reshape(-1, 7, 4, 7, 4)[:20_000]
    target = np.frombuffer(labels, np.uint8, offset=8)[:20_000].astype(int)
    return pixels.mean(axis=(2, 4)).reshape(len(target), 49), target


def make_users(X, digit, low, high, seed, *, per_group=5):
    """Rows, labels, owners, and for each user its test rows with their labels."""
    rng = np.random.default_rng(seed)
    rows, labels, owners, tests = [], [], [], []
    for a, b in TASKS:
        images = rng.permutation(np.flatnonzero((digit == a) | (digit == b)))
        test, pool = np.split(images, [min(len(images) // 3, 200)])
        for flip in (False, True):
            for _ in range(per_group):
                n = int(np.exp(rng.uniform(np.log(low), np.log(high))))
                mine = rng.choice(pool, n, replace=False)
                owners += [len(tests)] * n
                rows.append(mine)
                labels.append((digit[mine] == b) ^ flip)
                tests.append((test, (digit[test] == b) ^ flip))
    rows = np.concatenate(rows)
    return X[rows], np.concatenate(labels).astype(int), np.array(owners), tests


def accuracies(predict, X, tests):
    return np.array([(predict(X[t], u) == label).mean() for u, (t, label) in enumerate(tests)])


def by_user(model):
    return lambda X, user: model.predict(X, users=np.full(len(X), user))


def split_scores(X, digit, low, high, seed):
    """Mean over users and worst user of each method on one split, {method: (mean, worst)}."""
    rows, y, owners, tests = make_users(X, digit, low, high, seed)
    default = ODCLClassifier(random_state=0).fit(rows, y, users=owners)
    scores = {
        "odcl": accuracies(by_user(default), X, tests),
        "pooled": accuracies(lambda x, _: default.predict(x, ["nobody"] * len(x)), X, tests),
    }
    paper = ODCLClassifier(random_state=0, method="paper").fit(rows, y, users=owners)
    scores["paper"] = accuracies(by_user(paper), X, tests)
    with_columns(default, model=default.result_.local.theta)
    scores["local"] = accuracies(by_user(default), X, tests)
    return {name: (s.mean(), s.min()) for name, s in scores.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "low", "high"), [(digits, 10, 60), (mnist, 10, 60), (mnist, 40, 300)]
)
def test_the_default_serves_real_users_best(source, low, high):
    """Over five splits: the mean over users is not below the best of local, one model for all and
    the paper's setting by more than two standard errors, nor the worst user below local's."""
    X, digit = source()
    splits = [split_scores(X, digit, low, high, seed) for seed in SPLITS]
    mean, worst = ({m: np.array([s[m][i] for s in splits]) for m in splits[0]} for i in (0, 1))
    best = max(("local", "pooled", "paper"), key=lambda m: mean[m].mean())
    assert not clearly_below(mean["odcl"], mean[best])
    assert not clearly_below(worst["odcl"], worst["local"])


def clearly_below(a, b):
    """Is a below b by more than two standard errors of their difference over the splits?"""
    gap = b - a
    return gap.mean() > 2 * gap.std(ddof=1) / np.sqrt(len(gap))
