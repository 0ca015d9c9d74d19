"""Uploads that would hurt everybody else: capped, or set aside and named, before any fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np

from odcl._typing import Array, Bools, Floats, Ints
from odcl.data.unusual import ColumnMoments, Limits
from odcl.declared import Number, one_of
from odcl.errors import count, number, show
from odcl.exchange.upload import Uploads
from odcl.mixed.robust import CAP, UPPER, most_usual
from odcl.server.columns import user_columns

LARGE = 15.0  # powers of ten above the median upload's numbers: nothing can be computed with these
SMALL = 3.0  # powers of ten below one row, and below the median user's: no number of rows
SHARE = 0.45  # of all weight that one party may have: with half of a group it could not be told
TARGET_FAR = 1e3  # usual spreads between a user's target and the median user's
FORGED = 100.0  # medians of rows from which a user's cap is told
OTHER = 10.0  # times more or less than the median user's columns, half of a user's vary
FEW_ROWS = 5  # below, how much columns vary says little
PRIVATE = 100.0  # times the median user's, numbers of a private upload that nobody has
PER_PARTY = 100  # users of a party, at most, who tell what is usual


@dataclass(frozen=True)
class Outlier:
    """A user who takes no part in what others are sent, or who counts for less, and why.

    ``column`` is a feature, counted from 0, or -1 for the target; None: none of them. ``factor``
    says how far out the user is, in the words of its ``kind``.
    """

    user: Any
    kind: Annotated[str, one_of(KINDS)]  # "weight": the user takes part, and counts for less
    column: int | None = None
    factor: Number = np.nan

    @property
    def set_aside(self) -> bool:
        return self.kind != "weight"


# What is said of one user or of several.
_TELLS = {
    "numbers": "numbers that are too large to compute with",
    "far": "{column} lies {factor} times farther out than anybody else's: another unit?",
    "wide": "{column} varies {factor} times as much as the median user's: another unit, or a code "
    "for a missing value?",
    "model": "{column} is {factor} times as far from every group as a member's would be: other "
    "rows, or another meaning of a column?",
    "rows": "the models of the groups fit its rows {factor} times worse than other users' rows: "
    "other rows, or other labels?",
    "elsewhere": "most columns lie, or vary, as nobody else's do: other rows?",
    "alike": "they sent nearly the same numbers, nearer to one another than noise allows: copies?",
    "weight": "{factor} times as many rows as the median user: none counts more than is usual",
}
KINDS = tuple(_TELLS)
MOST_NAMED = 3  # users in a line


def outlier_lines(
    outliers: Sequence[Outlier], names: Sequence[str], target: str, called: str = "user"
) -> list[str]:
    """A line for each reason: who takes no part in others' models, or counts for less, and why.

    ``names`` are those of the columns; users are ``called`` sites where they stand for these.
    """
    found: dict[tuple[str, int | None], list[Outlier]] = {}
    for one in outliers:
        found.setdefault((one.kind, one.column), []).append(one)
    lines = []
    for (kind, column), some in found.items():
        every = [*dict.fromkeys(_shown(one.user) for one in some)]
        shown = ", ".join(every[:MOST_NAMED]) + ", ..." * (len(every) > MOST_NAMED)
        who, part = shown if called == "site" else f"{called} {shown}", "takes"
        if len(every) > 1:
            who, part = f"{count(len(every), called)} ({shown})", "take"
        elif len(some) > 1:  # of one site
            who, part = f"{count(len(some), 'user')} of {shown}", "take"
        done = "no part in others' models" if some[0].set_aside else "part with a bounded weight"
        what = (target or "the target") if column == -1 else "the level"
        if column is not None and column >= 0:
            what = names[column] if column < len(names) else f"column {column}"
        if kind == "model":
            what = "its level" if column is None else f"its coefficient of {what}"
        times = number(float(np.median([one.factor for one in some])))
        lines.append(f"{who} {part} {done}: {_TELLS[kind].format(column=what, factor=times)}")
    return lines


def _shown(user: Any) -> str:
    """By name; a user of a site by the site, which is all that is known of it."""
    return user[0] if isinstance(user, tuple) else show(user)


def outliers_json(
    outliers: Sequence[Outlier], names: Sequence[str], target: str
) -> list[dict[str, Any]]:
    """The same as values: who, what kind, which column by name, the factor, and the text."""

    def words(one: Outlier) -> dict[str, Any]:
        column = None if one.column is None else target if one.column < 0 else names[one.column]
        who = one.user if isinstance(one.user, str | int) else _shown(one.user)
        own = {"user": who, "set_aside": one.set_aside, "kind": one.kind, "column": column}
        (text,) = outlier_lines([one], names, target)
        return {**own, "factor": one.factor if np.isfinite(one.factor) else None, "text": text}

    return [words(one) for one in outliers]


@dataclass(frozen=True, eq=False)
class Screen:
    """What is usual, as a sample of the users tells it: limits and medians."""

    limits: Limits
    sizes: dict[str, float]  # of each field, log10 of the median user's largest number
    rows: float  # the median user's
    most_rows: float  # that a user counts with
    most_told: float  # of Gaussian terms: the largest trace of a curvature that counts

    @classmethod
    def of(cls, uploads: Uploads, even: Ints) -> Screen:
        """By the users ``even``, in which every party is there equally often."""
        sizes = {name: float(np.median(size[even])) for name, size in _sizes(uploads).items()}
        kept = even[~_absurd(uploads, sizes)[even]]
        if not len(kept):
            kept = even
        columns = user_columns(uploads.take(kept))
        spoke = uploads.seen[kept] > 0
        rows = most = told = 1.0
        if spoke.any():
            rows = float(np.median(uploads.n_samples[kept][spoke]))
            most = most_usual(uploads.n_samples[kept][spoke])
            if uploads.gaussian_curvature is not None:
                # Users of one class tell little, and may be most: others are not heavy beside them.
                told = CAP * float(np.quantile(_information(uploads.take(kept[spoke])), UPPER))
        limits = Limits.of(columns)
        # A target may be anywhere, but for what no group of users would have.
        spread = 1.4826 * np.median(np.abs(columns.mean[:, -1] - limits.middle[-1]))
        reach = limits.reach.copy()
        if len(kept) >= 5 and columns.sd[:, -1].any():
            reach[-1] = TARGET_FAR * max(float(spread), float(np.median(columns.sd[:, -1])))
        return cls(replace(limits, reach=reach), sizes, rows, most, told)

    def absurd(self, uploads: Uploads) -> Bools:
        """Users whose numbers cannot be computed with, (n_users,)."""
        return _absurd(uploads, self.sizes)

    def outliers(self, uploads: Uploads) -> dict[int, Outlier]:
        """Who is set aside before anything is fitted, by position."""
        users, absurd = uploads.users.tolist(), self.absurd(uploads)
        found = {i: Outlier(users[i], "numbers") for i in np.flatnonzero(absurd).tolist()}
        fine = np.flatnonzero(~absurd)
        columns = user_columns(uploads.take(fine))
        away = self.limits.outside(columns, constant=True)
        p = away.far.shape[1] - 1
        inside = ~away.users
        usual = np.abs(columns.mean - self.limits.middle)[inside].max(axis=0, initial=0.0)
        for i in np.flatnonzero(~inside).tolist():
            far = np.abs(away.far[i]) / np.maximum(usual, 1e-300)
            wide = away.wide[i]
            kind, by = ("far", far) if (away.far[i] != 0).any() else ("wide", wide)
            j = int(by.argmax())
            at = int(fine[i])
            found[at] = Outlier(users[at], kind, -1 if j == p else j, float(by[j]))
        for at in fine[inside & self._still(columns, uploads.take(fine))].tolist():
            found[at] = Outlier(users[at], "elsewhere")
        return found

    def _still(self, columns: ColumnMoments, uploads: Uploads) -> Bools:
        """Users half of whose columns vary ten times more or less than others' do."""
        some = np.isfinite(self.limits.times)
        size = np.maximum(columns.sd, 1e-300)[:, some] / self.limits.deviation[some]
        most = np.log(np.maximum(OTHER, self.limits.times[some]))
        other = columns.varies[:, some] & (np.abs(np.log(size)) > most)
        told = columns.rows >= FEW_ROWS
        if uploads.observations is not None:  # averages say nothing of that
            told &= uploads.observations >= uploads.n_samples
        return told & (2 * other.sum(axis=1) > some.sum())

    def heavy(self, uploads: Uploads, but: Mapping[int, Outlier]) -> dict[int, Outlier]:
        """Users who take part and count for much less than they claim, by position."""
        times = uploads.n_samples / self.rows
        users = uploads.users.tolist()
        some = [i for i in np.flatnonzero(times >= FORGED).tolist() if i not in but]
        return {i: Outlier(users[i], "weight", factor=float(times[i])) for i in some}

    def harmless(self, uploads: Uploads) -> Uploads:
        """Uploads that can be computed with: others say nothing, as if they had one empty row."""
        bad = self.absurd(uploads)
        if not bad.any():
            return uploads
        fields: dict[str, Any] = {"n_samples": np.where(bad, 1.0, uploads.n_samples)}
        for name, values in uploads.present.items():
            if name not in ("n_samples", "observations") and values.dtype.kind == "f":
                wide = bad.reshape(-1, *[1] * (values.ndim - 1))
                fields[name] = np.where(wide, 0.0, values).astype(values.dtype)
        return replace(uploads, **fields)

    def capped(self, uploads: Uploads) -> tuple[Uploads, Floats]:
        """Nobody counts more than is usual; and the share left of each."""
        share = np.minimum(1.0, self.most_rows / uploads.n_samples)
        if uploads.gaussian_curvature is not None:
            told = np.maximum(_information(uploads), 1e-300)
            return weighed(uploads, np.minimum(1.0, self.most_told / told), share), share
        return weighed(uploads, share), share


def _sizes(uploads: Uploads) -> dict[str, Floats]:
    """log10 of the largest number of each field, user by user."""
    return {
        name: np.log10(np.maximum(_largest(values), 1e-300))
        for name, values in uploads.present.items()
        if values.dtype.kind == "f" and name != "observations"
    }


def _largest(values: Array) -> Floats:
    each = np.abs(values.reshape(len(values), -1)).max(axis=1, initial=0.0)
    return np.asarray(each, np.float64)


def _absurd(uploads: Uploads, sizes: dict[str, float]) -> Bools:
    found = np.zeros(len(uploads), np.bool_)
    for name, size in _sizes(uploads).items():
        found |= size > max(sizes[name], 0.0) + LARGE
        if name == "n_samples":
            found |= size < min(sizes[name], 0.0) - SMALL
    A, slope = uploads.gaussian_curvature, uploads.gaussian_slope
    if A is not None and slope is not None:
        A, slope = (np.where(found.reshape(-1, *[1] * (x.ndim - 1)), 0.0, x) for x in (A, slope))
        values, vectors = np.linalg.eigh((A + A.swapaxes(2, 3)) / 2)
        most = np.maximum(values[..., -1:], 0.0)
        found |= (values < -1e-6 * most).any(axis=(1, 2))
        # A slope where nothing is curved has no model at all.
        along = (vectors.swapaxes(2, 3) @ slope[..., None])[..., 0] ** 2
        lost = np.where(values <= 1e-10 * most, along, 0.0).sum(axis=(1, 2))
        found |= lost > 1e-6 * np.maximum(along.sum(axis=(1, 2)), 1e-300)
    return found


def _information(uploads: Uploads) -> Floats:
    assert uploads.gaussian_curvature is not None
    return np.trace(uploads.gaussian_curvature, axis1=2, axis2=3).max(axis=1)


def weighed(uploads: Uploads, share: Floats, rows: Floats | None = None) -> Uploads:
    """Uploads that count for a share of what they say; ``rows``, if another, of their rows."""
    if (share == 1).all() and (rows is None or (rows == 1).all()):
        return uploads
    rows, root, changed = share if rows is None else rows, np.sqrt(share), dict[str, Any]()
    for name in ("factor", "thin_factor"):
        values = getattr(uploads, name)
        if values is not None:
            changed[name] = (values * root[:, None, None]).astype(values.dtype)
    for name in ("gaussian_curvature", "gaussian_slope", "gaussian_constant", "gaussian_ceiling"):
        values = getattr(uploads, name)
        if values is not None:
            changed[name] = values * share.reshape(-1, *[1] * (values.ndim - 1))
    if uploads.class_rows is not None:
        changed["class_rows"] = uploads.class_rows * rows[:, None]
    n = uploads.n_samples * rows
    if uploads.observations is not None:
        whole = uploads.observations >= uploads.n_samples
        changed["observations"] = np.where(whole, n, uploads.observations)
    return replace(uploads, n_samples=n, **changed)


def even_users(n_users: int, party: Ints | None) -> Ints:
    """Positions of users among whom every party is there equally often."""
    if party is None:
        return np.arange(n_users)
    most = min(int(np.bincount(party).max()), PER_PARTY)
    return np.concatenate([np.resize(np.flatnonzero(party == k), most) for k in np.unique(party)])


def without_majority(share: Floats, weight: Floats, party: Ints) -> Floats:
    """Shares of the users' weights such that no party has near half of all."""
    share = share.copy()
    for _ in range(3):
        own = np.bincount(party, weights=share * weight)
        k = int(own.argmax())
        rest = own.sum() - own[k]
        if own[k] <= SHARE * own.sum() or rest <= 0:
            break
        share[party == k] *= SHARE / (1 - SHARE) * rest / own[k]
    return share


def screened(uploads: Uploads, party: Ints | None) -> tuple[Uploads, dict[int, Outlier], Screen]:
    """Uploads of which none counts too much, who is set aside or capped, and what is usual."""
    screen = Screen.of(uploads, even_users(len(uploads), party))
    odd, fine = screen.outliers(uploads), screen.harmless(uploads)
    told, share = screen.capped(fine)
    if party is not None:
        fair = without_majority(np.ones(len(share)), told.seen, party)
        told = weighed(told, fair)
    return told, odd | screen.heavy(fine, odd), screen


def private_screened(uploads: Uploads) -> tuple[Uploads, tuple[Outlier, ...]]:
    """Private uploads, of which absurd ones say nothing, and who sent these.

    Noise hides most of what exact uploads are judged by: numbers stand out from a hundred times
    those of the median user on, or of one with as many rows; noise, if it is as much too small.
    """
    n = uploads.n_samples
    rows, changed = n / np.median(n), dict[str, Any]()
    bad = rows > PRIVATE
    parts = {name: x for name, x in uploads.present.items() if name.startswith("private_")}
    for name, values in parts.items():
        size = _largest(values)
        usual = float(np.median(size))
        bad |= size > PRIVATE * usual * np.maximum(rows, 1.0)
        if name.endswith("_sd"):
            bad |= size * PRIVATE**2 < usual
    if not bad.any() or 2 * bad.sum() >= len(bad):
        return uploads, ()
    for name, values in parts.items():
        empty = np.median(values) if name.endswith("_sd") else 0.0
        changed[name] = np.where(bad.reshape(-1, *[1] * (values.ndim - 1)), empty, values)
    users = uploads.users[bad].tolist()
    told = replace(uploads, n_samples=np.where(bad, 1.0, n), **changed)
    return told, tuple(Outlier(user, "numbers") for user in users)
