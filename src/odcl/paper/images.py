"""MNIST and CIFAR-10 from the original files, and the paper's federations of them (Table 2)."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from odcl._typing import Floats, Ints
from odcl.data.federation import Federation

Bytes: TypeAlias = npt.NDArray[np.uint8]

N_CLASSES = 10
_SHAPES = {"mnist": (28, 28), "cifar10": (3, 32, 32)}  # red, green, blue


@dataclass(frozen=True, eq=False)
class Images:
    """One data set in its original split and order, a byte per pixel until floats are needed."""

    name: str  # "mnist" or "cifar10"
    X: Bytes  # (n_train, n_features), pixels 0..255
    y: Ints  # (n_train,), classes 0..9
    test_X: Bytes  # (n_test, n_features)
    test_y: Ints  # (n_test,)
    shape: tuple[int, ...]  # of one image: (28, 28), or (3, 32, 32) for red, green, blue
    source: Path  # the folder that held the files


def load_images(
    name: str, folder: str | os.PathLike[str], *, classes: Sequence[int] | None = None
) -> Images:
    """MNIST or CIFAR-10 from files in ``folder`` or in one of the subfolders they come in.

    ``name`` is "mnist" (the four IDX files, .gz or not) or "cifar10" (the binary layout, or the
    two-class ``train.bin`` and ``test.bin``). ``classes`` keeps only those classes, file by file:
    two of CIFAR-10's ten take a fifth of its 184 MB.
    """
    if name not in _LAYOUTS:
        raise ValueError(f"There are no images called {name!r}: choose 'mnist' or 'cifar10'.")
    paths = _find(name, Path(folder))
    parts = []
    for X, y in (_read_mnist if name == "mnist" else _read_cifar)(paths):
        kept = slice(None) if classes is None else np.isin(y, np.asarray(classes))
        parts.append((X[kept], y[kept]))
    X, y = (np.concatenate(arrays) for arrays in zip(*parts[:-1], strict=True))
    test_X, test_y = parts[-1]
    for part, there in (("training", y), ("test", test_y)):
        lacking = [c for c in (() if classes is None else classes) if c not in there]
        if lacking:
            raise ValueError(
                f"Class {lacking[0]} is asked for, and the {part} images in {paths[0].parent} "
                "have none of it: ask for classes they hold, or put the full data set there."
            )
    return Images(name, X, y, test_X, test_y, _SHAPES[name], paths[0].parent)


def _find(name: str, folder: Path) -> list[Path]:
    """The files of the first layout that is there as a whole."""
    advice = _ADVICE[name].format(folder=folder)
    if not folder.is_dir():
        raise ValueError(f"There is no folder {folder}. {advice}")
    seen = ""
    for subfolders, files in _LAYOUTS[name]:
        for place in (folder / sub for sub in subfolders):
            found = [[place / n for n in names if (place / n).is_file()] for names in files]
            if all(found):
                return [paths[0] for paths in found]
            if any(found) and not seen:
                there = next(paths[0] for paths in found if paths)
                seen = f" ({there} is there, {files[found.index([])][0]} beside it is not)"
    archive = "cifar-10-binary.tar.gz"
    if name == "cifar10" and not seen and (folder / archive).is_file():
        seen = f" ({archive} is there: unpack it with tar -xzf)"
    raise ValueError(f"Folder {folder} does not hold {name} as a whole{seen}. {advice}")


def _classes(labels: Any, path: Path) -> Ints:
    """Labels as (n,) classes 0..9."""
    y = np.asarray(labels, dtype=np.intp)
    wrong = (y < 0) | (y >= N_CLASSES)
    if wrong.any():
        at = int(wrong.argmax())
        raise _foreign(path, f"has label {y[at]} at image {at}, and classes are 0 to 9")
    return y


def _foreign(path: Path, seen: str) -> ValueError:
    """The error for a file that is not what its name says, on one line."""
    return ValueError(
        f"{path} {seen}: it is cut short or another file under this name. Put the original there."
    )


def _read_mnist(paths: Sequence[Path]) -> Iterator[tuple[Bytes, Ints]]:
    """IDX files: a header of big-endian 32-bit numbers, and then a byte per value."""
    for images, labels in (paths[:2], paths[2:]):
        X, y = _read_idx(images, _SHAPES["mnist"]), _classes(_read_idx(labels, ()), labels)
        if len(X) != len(y):
            raise _foreign(images, f"has {len(X)} images, and {labels.name} {len(y)} labels")
        yield X.reshape(len(X), -1), y


def _read_idx(path: Path, shape: tuple[int, ...]) -> Bytes:
    """The values of an IDX file as (n, *shape), unpacked if its content is gzip."""
    raw = path.read_bytes()
    try:
        raw = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    except (OSError, EOFError, zlib.error) as error:
        raise _foreign(path, f"could not be read ({error})") from error
    start = 8 + 4 * len(shape)
    head = [int.from_bytes(raw[at : at + 4], "big") for at in range(0, start, 4)]
    expected = [0x0801 + len(shape), *shape]  # 08: bytes; then the number of dimensions, n too
    if head[:1] + head[2:] != expected or len(raw) != start + head[1] * prod(shape):
        raise _foreign(path, f"is no IDX file of {' x '.join(map(str, ('n', *shape)))} bytes")
    return np.frombuffer(raw, dtype=np.uint8, offset=start).reshape(-1, *shape)


def _read_cifar(paths: Sequence[Path]) -> Iterator[tuple[Bytes, Ints]]:
    """Records without a header: one label byte and 3,072 pixel bytes."""
    record = 1 + prod(_SHAPES["cifar10"])
    for path in paths:
        raw = np.fromfile(path, dtype=np.uint8)
        if not len(raw) or len(raw) % record:
            raise _foreign(path, f"has {len(raw)} bytes, not whole records of {record}")
        records = raw.reshape(-1, record)
        yield np.ascontiguousarray(records[:, 1:]), _classes(records[:, 0], path)


# Of each layout the subfolders in which it may lie, and the names that each of its files may have.
_IDX = tuple(
    tuple(
        f"{part}-{what}-ubyte{end}"
        for what in (kind, kind.replace("-", "."))
        for end in ("", ".gz")
    )
    for part in ("train", "t10k")
    for kind in ("images-idx3", "labels-idx1")
)
_BATCHES = tuple(
    (f"{name}.bin",) for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
)
_LAYOUTS: dict[str, tuple[tuple[tuple[str, ...], tuple[tuple[str, ...], ...]], ...]] = {
    "mnist": ((("", "mnist", "MNIST", "MNIST/raw", "raw"), _IDX),),
    "cifar10": (
        (("", "cifar-10-batches-bin", "cifar10", "cifar10/cifar-10-batches-bin"), _BATCHES),
        (("", "cifar10-two-classes", "cifar10"), (("train.bin",), ("test.bin",))),
    ),
}
_ADVICE = {
    "mnist": "Put MNIST's four files there or in {folder}/mnist, .gz or not: "
    "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte, "
    "t10k-labels-idx1-ubyte. Nothing is downloaded.",
    "cifar10": "Unpack cifar-10-binary.tar.gz of https://www.cs.toronto.edu/~kriz/cifar.html in "
    "{folder} (which makes cifar-10-batches-bin; the python version, cifar-10-batches-py, is not "
    "read), or put train.bin and test.bin of two classes in {folder}/cifar10-two-classes. Nothing "
    "is downloaded.",
}


# -- federations -----------------------------------------------------------------------------------


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
    taken = n_users * n_samples // 2
    for c in classes:
        have = int((images.y == c).sum())
        if have < taken:
            raise ValueError(
                f"{n_users} users with {n_samples // 2} images of class {c} each need {taken}, and "
                f"the training images of {images.name} have {have}: take fewer users or samples."
            )
    deal, noise = map(np.random.default_rng, np.random.SeedSequence(seed).spawn(2))

    dealt = [deal.permutation(np.flatnonzero(images.y == c)) for c in classes]
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
    )


def _labels(y: Ints, classes: tuple[int, int], groups: Ints) -> Floats:
    """Classes as labels: row k of ``y``, (n, m), as a member of ``groups[k]`` labels it."""
    return np.where((y == classes[0]) == (groups == 0)[:, None], 1.0, -1.0)
