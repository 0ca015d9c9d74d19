"""From measured quantities to one sentence of advice and its reason."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from odcl.diagnose.facts import Distance, Errors, rows_after

Advice = Literal["one-shot", "precision", "refine", "collect", "one-model", "local"]

BLIND = 0.25  # share of users with hardly more rows than parameters that hide whole groups
MISPLACED = 0.02  # share of users in a wrong group from which more rows come first
NO_GAIN = 0.8  # a model drawn to its group with more of the local error than this gains nothing
SMALL = 0.1  # one model for all with less of the local error than this: differences do not matter
VISIBLE = 6.0  # distance, in a user's standard deviations, at which groups cannot be overlooked
FEW_MOVED = 0.05  # share of users elsewhere that, where nobody says its noise, may be chance
WORSE = 1.5  # the combining used has so many times the error of precision combining
BENT = 1.5  # see facts.bend
MANY_PARAMETERS = 100  # beyond, users do not send their curvature
ROWS_A_PARAMETER = 3  # what we ask for where users have hardly more rows than parameters
ROWS_TO_SEE = 5  # rows a parameter below which classes and counts hide groups of any size


@dataclass(frozen=True)
class Verdict:
    """What to do next: one of six, in a sentence, with the reason in another."""

    advice: Advice
    sentence: str
    reason: str
    rows: int | None = None  # rows per user, where the advice is to collect

    def __str__(self) -> str:
        return f"{self.sentence} {self.reason}"


@dataclass(frozen=True)
class Judged:
    """The groups in hand, where they are not those that the users' noise shows."""

    n_clusters: int
    moved: int  # users that the noise would put elsewhere
    error: float  # of the models that users have from them, in units of the local models' error


@dataclass(frozen=True)
class Case:
    """The numbers that decide, of the groups that the users' noise shows."""

    n_users: int
    n_clusters: int
    judged: Judged | None
    dim: int
    n: float  # median rows per user
    blind: float  # share of users who cannot tell their noise
    known: bool  # did users say how noisy they are?
    own: float  # variance between users of a group, in units of a user's noise
    misplaced: float  # expected users in a wrong group
    errors: Errors
    distance: Distance | None
    combine: str
    full: bool  # curvature was uploaded
    varies: bool  # the loss has another curvature at every model: classes, counts
    bend: float
    lossy: float  # error of averaging against pooling, for want of curvature
    wanted: int | None  # rows per user at which groups are told apart

    @property
    def witness(self) -> str:
        """What groups are seen by: without a word of the users on their noise, a guess at it."""
        return "the users' noise" if self.known else "the spread of the users' models, as a guess,"

    @property
    def times(self) -> str:
        """How many times their noise users of a group differ by."""
        return short(math.sqrt(self.own))


def decide(case: Case) -> Verdict:
    """The verdict. What comes first rules out what comes later."""
    if math.isnan(case.errors.precision) and case.blind <= BLIND:
        return _collect(
            ROWS_A_PARAMETER * case.dim,
            "Nobody said how noisy its model is, and no two users are in one group, which would "
            "show it: nothing can be said about how far their models are from the truth.",
        )
    if case.blind > BLIND:
        return _collect(
            ROWS_A_PARAMETER * case.dim,
            f"{case.blind:.0%} of the users have hardly more rows than the model has parameters, "
            f"or fewer ({case.dim}; the median user has {case.n:g} rows): nothing can be said "
            "about how far their models are from the truth.",
        )
    if case.n_clusters == 1 and case.varies and case.n < ROWS_TO_SEE * case.dim:
        return _collect(
            ROWS_TO_SEE * case.dim,
            f"With {case.n:g} rows for {case.dim} parameters models of classes or counts are so "
            "uncertain that no groups would show, were there any: whether there are some cannot be "
            "said.",
        )
    if case.n_clusters == 1:
        return _no_groups(case)
    if case.errors.drawn > NO_GAIN:
        return Verdict(
            "local",
            "The groups are too fine: stay local.",
            f"Users of a group differ {case.times} times as much as their own models "
            f"are uncertain; what the {_visible(case)} could add leaves "
            f"{share(case.errors.drawn)} of the local models' error.",
        )
    if case.misplaced > max(MISPLACED * case.n_users, 1.0) and case.wanted is not None:
        return _collect(
            case.wanted,
            f"The {_visible(case)} overlap: about {case.misplaced:.2g} of "
            f"{case.n_users} users are in a wrong one, since the nearest two are only "
            f"{_in_noise(case)} standard deviations of a user's model apart.",
        )
    return _groups(case)


def _no_groups(case: Case) -> Verdict:
    between = math.sqrt(2 * case.dim * case.own)  # a typical distance of two users' optima
    apart = ""
    if case.judged is not None:
        apart = f"{_theirs(case.judged, case.n_users)}, and nothing sets them apart. "
    if case.own == 0 or case.errors.one < SMALL:
        differ = "Users differ by no more than the noise of their models explains"
        if case.own > 0:
            differ = f"Users differ by {case.times} times their noise, without groups"
        if not case.known:
            differ = "The users' models form one cloud (how noisy each is, nobody said)"
        return Verdict(
            "one-model",
            "There is no group structure here: use one model.",
            f"{apart}{differ}; one model for all has "
            f"{share(case.errors.one + case.errors.precision)} of the local models' error. Groups "
            f"closer than {VISIBLE:g} standard deviations of a "
            "user's model may hide in this.",
        )
    if case.errors.drawn > NO_GAIN or (between >= VISIBLE and case.errors.one >= 1):
        return Verdict(
            "local",
            "The groups are too fine: stay local.",
            f"{apart}Users differ {case.times} times as much as their own models are "
            "uncertain, and no two of them alike: there are no groups to share a model.",
        )
    if between >= VISIBLE:
        return Verdict(
            "one-model",
            "There is no group structure here: use one model.",
            f"{apart}Users differ by {case.times} times their noise, one by one and not in "
            f"groups; one model for all still has {share(case.errors.one)} of the local error.",
        )
    wanted = rows_after(case.n, case.dim, (between / VISIBLE) ** 2)
    return _collect(
        wanted,
        f"{apart}Users do differ, by {case.times} times the noise of their models, but that "
        "noise is too large to see which of them are alike. Until then one model for all has "
        f"{share(case.errors.one)} of the local models' error.",
    )


def _groups(case: Case) -> Verdict:
    """The groups are there and users are in the right ones: what is made of them?"""
    if case.judged is not None and not _serves(case, case.judged):
        return _other_groups(case, case.judged)
    ratio = case.errors.used / max(case.errors.precision, 1e-300) * case.lossy
    plain = case.combine in ("mean", "samples", "other")
    if plain and ratio > WORSE and case.dim <= MANY_PARAMETERS:
        made = "models that users have" if case.combine == "other" else _averages(case.combine)
        return Verdict(
            "precision",
            "Use precision combining.",
            f"The groups are right, but the {made} have {ratio:.1f} times the error of precision "
            "combining, which weighs every user by what its rows tell (combine='precision', "
            f"--combine precision).{_moved(case)}",
        )
    if case.bend > BENT or (not case.full and case.lossy > WORSE and case.combine != "other"):
        why = (
            f"with {case.n:g} rows for {case.dim} parameters the users' models are not yet "
            "additive (their quadratic approximations contradict each other)"
            if case.bend > BENT
            else f"with {case.n:g} rows for {case.dim} parameters averaging models has about "
            f"{case.lossy:.1f} times the error of pooling the rows, and so many parameters are too "
            "many to send curvature"
        )
        return Verdict(
            "refine",
            "Add refinement rounds.",
            f"The groups are right, but {why}: five to ten rounds of gradients inside the groups "
            "bring each to the model of its pooled rows (odcl.baselines.one_shot, refine_rounds)."
            f"{_moved(case)}",
        )
    reason = (
        f"The nearest two of {case.n_clusters} groups are {_in_noise(case)} standard deviations of "
        f"a user's model apart, {few(case.misplaced)} of {case.n_users} users would be in a wrong "
        "one, and a user's model from its group has "
        f"{share(_in_hand(case))} of the error of its own.{_moved(case)}"
    )
    return Verdict("one-shot", "One shot is enough.", reason + _refit(case))


def _in_hand(case: Case) -> float:
    """Error of the models that users have from the result that is judged."""
    if case.judged is not None:
        return case.judged.error
    return case.errors.used if case.combine == "mean" else min(case.errors.used, case.errors.drawn)


def _averages(combine: str) -> str:
    return {"mean": "means of their users' models"}.get(
        combine, "means of their users' models, weighed by rows,"
    )


def _serves(case: Case, judged: Judged) -> bool:
    """Do the groups in hand serve users about as well as those that the noise shows?"""
    if case.n_clusters > 1 and judged.n_clusters in (1, case.n_users):
        return False  # no groups at all
    if judged.error <= WORSE * max(case.errors.used, case.errors.precision):
        return True
    # Where nobody says its noise, that of users with few rows has tails of no known law: a user
    # or two in groups of their own are no reason.
    few_moved = judged.moved <= max(2, FEW_MOVED * case.n_users)
    return not case.known and (few_moved or judged.error <= case.errors.precision + SMALL)


def _other_groups(case: Case, judged: Judged) -> Verdict:
    k, own = case.n_clusters, judged.n_clusters
    place = {1: "one model for all", case.n_users: "one model per user"}.get(own, f"these {own}")
    if own == k:
        place = f"these, for {judged.moved} of {case.n_users} users"
    made = ""
    if own < case.n_users:
        made = f", and its models have {times_of(judged.error)} the error of a user's own"
    return Verdict(
        "one-shot",
        f"One shot is enough with other groups: {k} in place of {place}.",
        f"{_theirs(judged, case.n_users)}{made}. {case.witness.capitalize()} shows {k} groups "
        f"(clusterer='auto', --clusters auto), the nearest two {_in_noise(case)} standard "
        "deviations of a user's model apart; combined by precision their models have "
        f"{times_of(case.errors.precision)} the error of a user's own, and {few(case.misplaced)} "
        f"of {case.n_users} users would be in a wrong one.{_refit(case)}",
    )


def _refit(case: Case) -> str:
    if case.own == 0:
        return ""
    return (
        f" Users of a group differ by {case.times} times their noise: let them refit around the "
        "group's model (refit='evidence')."
    )


def _collect(rows: int, reason: str) -> Verdict:
    shown = rounded(rows)
    return Verdict("collect", f"Collect about {shown:,} rows per user.", reason, shown)


def rounded(n: float) -> int:
    """Two digits: no estimate of rows knows more."""
    scale = 10 ** max(math.floor(math.log10(max(n, 1))) - 1, 0)
    return math.ceil(n / scale) * scale


def share(x: float) -> str:
    return f"{short(100 * x)}%"


def times_of(x: float) -> str:
    """A factor in front of "the error of ..."."""
    return f"{share(x)} of" if x < 1 else f"{short(x)} times"


def short(x: float) -> str:
    """Two digits, without an exponent for numbers of everyday size."""
    return f"{x:.2g}" if x < 100 or x >= 1e6 else f"{x:,.0f}"


def few(expected: float) -> str:
    """A number of users that is expected, in words where it is small."""
    return "hardly any" if expected < 0.05 else f"about {expected:.1g}"


def _in_noise(case: Case) -> str:
    return "?" if case.distance is None else short(case.distance.in_noise)


def _visible(case: Case) -> str:
    """The groups that were looked at, as a noun."""
    if case.judged is None:
        return f"{case.n_clusters} groups"
    return f"{case.n_clusters} groups that {case.witness} shows ({_has(case.judged)})"


def _has(judged: Judged) -> str:
    groups = "1 group" if judged.n_clusters == 1 else f"{judged.n_clusters} groups"
    return f"this result has {groups}"


def _theirs(judged: Judged, n_users: int) -> str:
    if judged.n_clusters == n_users:
        return "This result leaves every user in a group of its own"
    return _has(judged).capitalize()


def _moved(case: Case) -> str:
    """What is to be said of groups in hand that serve as well as those that the noise shows."""
    if case.judged is None:
        return ""
    other = "" if case.judged.n_clusters == case.n_clusters else f"{case.n_clusters} groups, "
    users = "1 user" if case.judged.moved == 1 else f"{case.judged.moved} users"
    return f" {case.witness.capitalize()} would show {other}{users} elsewhere than in this result."
