"""Pictures of the page: pixels, where columns are an image, and shares of variance."""

from __future__ import annotations

import base64
import math
import re
import struct
import zlib
from collections.abc import Sequence

import numpy as np

from odcl._typing import Array, Floats, Ints
from odcl.fitted.effects import GROUPS, USERS, importance
from odcl.fitted.value import Fitted
from odcl.report.page.facts import PixelImages

LEAST_PIXELS = 49
MOST_PIXELS = 2_000_000  # of users' pictures, all together
MOST_CLASSES, MOST_GROUPS = 10, 8  # side by side, below each other
SMOOTH = 0.8  # differences of neighbours, in units of those of any two pixels


def user_images(fitted: Fitted, who: Ints, classes: Sequence[str]) -> PixelImages | None:
    """Class means of groups and users (of numbers: weights), where columns look like an image."""
    sent, names, scaling = fitted.uploads, fitted.feature_names, fitted.scaling
    if sent is None or len({re.sub(r"\d+", "", name) for name in names}) > 1:
        return None
    if len(names) != scaling.n_features or not re.search(r"\d$", names[0]):
        return None
    if sent.class_means is not None:
        rows, means = sent.told_rows[:, :MOST_CLASSES, None], sent.class_means[:, :MOST_CLASSES]
        groups = [fitted.users.group == g for g in range(fitted.n_clusters)]
        n = np.stack([rows[own].sum(axis=0) for own in groups])
        total = np.stack([(rows[own] * means[own]).sum(axis=0) for own in groups])
        theirs = np.where(n > 0, total / np.maximum(n, 1e-300), np.nan) * scaling.scale
        mine = np.where(rows > 0, means, np.nan)[who] * scaling.scale + scaling.shift
        theirs += scaling.shift
        seen, low, high, still = (
            theirs,
            *(float(f(theirs)) for f in (np.nanmin, np.nanmax, np.nanmin)),
        )
        about = f"The mean row of each class ({', '.join(classes[:MOST_CLASSES])})"
    elif sent.thin_factor is not None and sent.means is not None:
        p = len(scaling.used)
        seen = (sent.means[:, :p].mean(axis=0) * scaling.scale + scaling.shift)[None, None]
        theirs, mine = fitted.centers[:, None, :p], fitted.users.model[who, None, :p]
        high, still = float(np.abs(theirs).max()), 0.0
        low, about = -high, "Weights of the columns, dark below zero and bright above"
    else:
        return None

    def whole(values: Floats, fill: float) -> Floats:
        """All columns, those that never vary among them."""
        every = np.full((*values.shape[:-1], scaling.n_features), fill)
        every[..., scaling.used] = values
        for column, twin in scaling.copies:  # such as channels of grey
            every[..., column] = every[..., twin]
        return every

    shape = _shape(whole(seen, float(np.nanmin(seen))))
    if shape is None:
        return None

    def drawn(values: Floats) -> list[str]:
        shade = 255 * np.clip((whole(values, still) - low) / max(high - low, 1e-300), 0, 1)
        return [_strip(one, shape) for one in np.nan_to_num(shade, nan=128).astype(np.uint8)]

    return PixelImages(
        drawn(theirs[:MOST_GROUPS]),
        drawn(mine) if mine.size <= MOST_PIXELS else [],
        f"{about}, as a picture of its columns.",
    )


def _shape(values: Floats) -> tuple[int, int, bool] | None:
    """Side, channels, and whether channels come one after the other; None: not an image."""
    n = values.shape[-1]
    channels = 1 if math.isqrt(n) ** 2 == n else 3
    side = math.isqrt(n // channels)
    if n < LEAST_PIXELS * channels or channels * side**2 != n:
        return None
    flat = values.reshape(-1, n)[np.isfinite(values).reshape(-1, n).all(axis=1)]

    def rough(images: Floats) -> float:
        steps = [np.nanmean(np.diff(images, axis=axis) ** 2) for axis in (1, 2)]
        return float(np.mean(steps) / max(2 * images.var(axis=(1, 2)).mean(), 1e-300))

    planes = rough(flat.reshape(-1, channels, side, side).reshape(-1, side, side))
    mixed = rough(flat.reshape(-1, side, side, channels))
    return (side, channels, planes <= mixed) if min(planes, mixed) < SMOOTH else None


def _strip(images: Array, shape: tuple[int, int, bool]) -> str:
    """PixelImages (n, pixels) side by side, as the address of a PNG."""
    side, channels, planes = shape
    if planes:
        images = images.reshape(len(images), channels, -1).swapaxes(1, 2)
    square = images.reshape(len(images), side, side, channels)
    room = np.pad(square, ((0, 0), (0, 0), (0, 1), (0, 0)), constant_values=255)
    row = np.concatenate(list(room), axis=1)[:, :-1]
    lines = b"".join(b"\0" + line.tobytes() for line in row)
    head = struct.pack(">2I5B", row.shape[1], side, 8, 0 if channels == 1 else 2, 0, 0, 0)
    parts = [(b"IHDR", head), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b"")]
    made = b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in parts
    )
    return "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + made).decode()


# -- what columns do to predictions ----------------------------------------------------------------


MOST_SHARES = 12


def share_facts(fitted: Fitted) -> list[tuple[str, float]]:
    """Shares of the predictions' variance, the largest first; empty: not known."""
    words = {GROUPS: "what sets groups apart", USERS: "users' own differences"}
    found = importance(fitted) or {}
    shares = [(words.get(name, name), share) for name, share in found.items() if share]
    return sorted(shares, key=lambda one: -one[1])[:MOST_SHARES]
