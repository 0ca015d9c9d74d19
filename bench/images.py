"""Image data: real files where they are, stand-ins where not."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from odcl._typing import Floats, Ints

SIDE, CHANNELS = 32, 3


def two_classes(folder: Path, n: int) -> tuple[Floats, Floats, str]:
    """n images of 3,072 pixels in [0, 1], labels -1 and +1, and what they are."""
    path = folder / "cifar10-two-classes" / "train.bin"
    if path.exists():
        raw = np.fromfile(path, dtype=np.uint8).reshape(-1, 1 + CHANNELS * SIDE**2)[:n]
        return raw[:, 1:] / 255.0, np.where(raw[:, 0] == 1, 1.0, -1.0), "CIFAR10 pixels / 255"
    return *natural_images(n, np.random.default_rng(0)), "synthetic images with a 1/f spectrum"


def natural_images(n: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Images whose amplitude falls as 1/f, as that of photographs does, and labels -1 and +1."""
    f = np.hypot(np.fft.fftfreq(SIDE)[:, None], np.fft.fftfreq(SIDE))
    amplitude = 1 / np.maximum(f, 1 / SIDE)
    white = rng.standard_normal((n, CHANNELS, SIDE, SIDE))
    white = 0.9 * white[:, :1] + 0.4 * white  # channels of a photograph are much alike
    images = np.fft.ifft2(np.fft.fft2(white) * amplitude).real
    images = np.clip(0.5 + 0.25 * images / images.std(), 0, 1).reshape(n, -1)
    z = (images - images.mean(axis=0)) @ images[0]
    y = np.where(rng.random(n) < 1 / (1 + np.exp(-2 * z / z.std())), 1.0, -1.0)
    return images, y


def digits() -> tuple[Floats, Ints]:
    """scikit-learn's 1,797 digits of 8x8 pixels."""
    bunch = load_digits()
    return bunch.data, bunch.target


def mnist(folder: Path, side: int, n: int = 20_000) -> tuple[Floats, Ints] | None:
    """The first n MNIST digits, 28x28 averaged to side x side; None where the files are not."""
    images, labels = (
        folder / "mnist" / f"train-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1")
    )
    if not images.exists():
        return None
    raw = np.frombuffer(gzip.decompress(images.read_bytes()), np.uint8, offset=16)
    y = np.frombuffer(gzip.decompress(labels.read_bytes()), np.uint8, offset=8)[:n]
    block = 28 // side
    X = raw.reshape(-1, side, block, side, block)[:n].mean(axis=(2, 4)).reshape(n, -1)
    return X, y.astype(np.intp)
