"""From measured quantities to one sentence of advice and its reason."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from scipy.optimize import linear_sum_assignment

from odcl.diagnose.measure import Measured, rows_after
from odcl.errors import number
from odcl.evaluate.scores import NAMES, Comparison

Advice = Literal[
    "one-shot", "precision", "refine", "collect", "one-model", "mixed", "local", "unknown"
]
SENTENCES: dict[Advice, str] = {
    "one-shot": "One shot is enough.",
    "precision": "Use precision combining.",
    "refine": "Add refinement rounds.",
    "one-model": "There is no group structure here: use one model.",
    "mixed": "No groups: users differ gradually.",
    "local": "Models of their own serve users as well: stay local.",
    "unknown": "Whether one shot is enough is not known.",
}

HIDDEN = "No groups can be seen: users seem to differ gradually."
DEFAULT = "clusterer='auto', --clusters auto"
UNSURE = 0.25  # share of users with hardly more rows than parameters that hide whole groups
SPARE = 3  # rows beyond the parameters that a user needs to tell its noise
MISPLACED = 0.02  # share of users in a wrong group from which more rows come first
NO_GAIN = 0.8  # a model drawn to its group with more of the local error than this gains nothing
SMALL = 0.1  # one model for all with less of the local error than this: differences do not matter
VISIBLE = 6.0  # distance, in a user's standard deviations, at which groups cannot be overlooked
FEW_MOVED = 0.05  # share of users elsewhere that, where nobody says its noise, may be chance
WORSE = 1.5  # the combining used has so many times the error of precision combining
MISMATCH = 1.5  # see Measured.curvature_mismatch
OVERDISPERSED = 1.3  # deviances of small counts come near 1.2 without that
MANY_PARAMETERS = 100  # beyond, users do not send their curvature
ROWS_PER_PARAMETER = 3  # what we ask for where users have hardly more rows than parameters
ROWS_TO_SEE = 5  # rows per parameter below which classes and counts hide groups of any size
LOOK = (
    "Rows held out of the fit tell what the models are worth: `odcl fit` prints that comparison, "
    "odcl.compare makes it in Python."
)


@dataclass(frozen=True)
class Verdict:
    """What to do next: one of eight, in a sentence, with the reason in another."""

    advice: Advice
    sentence: str
    reason: str
    rows: int | None = None  # rows per user that would show groups, where that is the question

    def __str__(self) -> str:
        return f"{self.sentence} {self.reason}"


@dataclass(frozen=True, eq=False)
class Case(Measured):
    """What decides: the groups that the users' noise shows, and those in hand if they are others.

    ``combine`` is how the models in hand were made of their groups; None: in another way.
    ``where`` says, where the users' data terms were seen, which coefficients users of a group
    differ in; empty: in none. ``refit``: do users refit around their group's model already?
    """

    judged: Measured | None
    combine: str | None
    where: str | None = None
    refit: bool = False

    @property
    def n_users(self) -> int:
        return self.uploads.n_users

    @property
    def dim(self) -> int:
        return self.uploads.dim

    @property
    def n(self) -> float:
        """Median rows per user."""
        return float(np.median(self.uploads.n_samples))

    @property
    def bare(self) -> bool:
        """Were models given and nothing else? They come with one sample each."""
        return self.uploads.dispersion is None and bool((self.uploads.n_samples == 1).all())

    @property
    def unsure(self) -> float:
        """Share of users who cannot tell their noise."""
        uploads, n = self.uploads, self.uploads.n_samples
        some = n <= self.dim if uploads.dispersion is None else ~uploads.knows_noise
        if uploads.has_dispersion:  # a noise read off one or two spare rows may be anything
            some = some | (n < self.dim + SPARE)
        return 0.0 if self.bare else float(np.mean(some))

    @property
    def untold(self) -> str:
        """Why the users' noise says nothing about groups; empty: enough of them know it."""
        if self.unsure > UNSURE:
            return (
                f"{self.unsure:.0%} of the users have hardly more rows than the model has "
                f"parameters, or fewer ({self.dim}; the median user has {self.n:g} rows)"
            )
        if self.noise.source == "trace":
            return "users sent one number on their noise, which tells little of their predictions"
        if self.noise.known.any():
            return ""
        return (
            "nobody said how noisy its model is, and no two users are in one group, which would "
            "show it"
        )

    @property
    def hidden(self) -> bool:
        """Are models of classes or counts so uncertain that groups would not show?"""
        return self.uploads.curvature_varies and self.n < ROWS_TO_SEE * self.dim

    @property
    def told(self) -> bool:
        """Did users say how noisy they are?"""
        return self.noise.source != "spread"

    @property
    def seen_by(self) -> str:
        """What shows groups: without a word of the users on their noise, a guess at it."""
        return "the users' noise" if self.told else "the spread of the users' models, as a guess,"

    @property
    def times(self) -> str:
        """How many times their noise users of a group differ by."""
        return short(math.sqrt(self.tau2_in_noise))

    @property
    def in_noise(self) -> str:
        """Distance of the nearest two groups in standard deviations of a user's model."""
        return "?" if self.distance is None else short(self.distance.in_noise)

    @cached_property
    def moved(self) -> int:
        """Users in hand elsewhere than the noise puts them, with groups matched at their best."""
        if self.judged is None:
            return 0
        together = np.zeros((self.judged.n_clusters, self.n_clusters), dtype=np.intp)
        np.add.at(together, (self.judged.labels, self.labels), 1)
        return self.n_users - int(together[linear_sum_assignment(-together)].sum())


def decide(case: Case, held: Comparison | None = None) -> Verdict:
    """The verdict. What comes first rules out what comes later; rows ``held`` out decide where the
    uploads cannot."""
    if case.untold and case.where is not None:
        return _by_terms(case, case.where)
    if case.untold:
        return _unknown(case, held, case.untold, ROWS_PER_PARAMETER)
    if case.n_clusters == 1 and case.hidden and not case.where:
        why = (
            f"with {case.n:g} rows for {case.dim} parameters models of classes or counts are so "
            "uncertain that no groups would show, were there any"
        )
        return _unknown(case, held, why, ROWS_TO_SEE)
    if case.n_clusters == 1:
        return _no_groups(case)
    if case.errors.refit > NO_GAIN:
        return _advise(
            "local",
            f"Users of a group differ {case.times} times as much as their own models "
            f"are uncertain; what the {_visible(case)} could add leaves "
            f"{share(case.errors.refit)} of the local models' error.",
        )
    misplaced = case.misplaced
    crowded = misplaced > max(MISPLACED * case.n_users, 1.0)
    rows = case.rows_needed() if crowded else None
    if rows is not None:
        return _collect(
            rows,
            f"The {_visible(case)} overlap: {few(misplaced)} of {case.n_users} users are in a "
            f"wrong one, since the nearest two are only {case.in_noise} standard deviations of a "
            "user's model apart.",
        )
    return _groups(case)


def _unknown(case: Case, held: Comparison | None, why: str, per_parameter: int) -> Verdict:
    """How good the models are, the uploads cannot tell: rows held out decide, if there are any."""
    untold = f"The uploads do not tell how good the models are: {why}."
    enough = rounded(per_parameter * case.dim)
    if held is None and case.dim > MANY_PARAMETERS:
        return _advise("unknown", f"{untold} {LOOK}")
    if held is None:
        untold += f" About {enough:,} rows per user would tell. {LOOK}"
        return Verdict("unknown", SENTENCES["unknown"], untold, enough)
    ours, rival, (gain, chance) = (
        held.ours,
        held.beaten_by(held.ours),
        held.gain(held.ours, "local"),
    )
    mean = {name: f"{held.metric} {number(value)}" for name, value, *_ in held.rows()}
    seen = (
        f"On {held.n_rows:,} held-out rows the mean user has {mean[ours]} with {NAMES[ours]} and "
    )
    seen += f"{mean['local']} with a model of its own"
    advice: Advice = "local" if gain <= 0 else "one-shot" if gain > chance else "unknown"
    if rival is not None and rival != "local":
        advice, seen = "unknown", f"{seen}, but {mean[rival]} with another method: {NAMES[rival]}"
    elif abs(gain) <= chance:
        seen += ", no more apart than chance would explain"
    return _advise(advice, f"{seen}. {untold}")


def _by_terms(case: Case, where: str) -> Verdict:
    """Many users have no model of their own to measure by: what their data terms say together."""
    lone = (
        f"How good the models are cannot be told from this: {share(case.unsure)} of the users lack "
        "a full model of their own to compare with (too few rows, a column that does not vary, a "
        "level never seen)."
    )
    if case.n_clusters == 1 and not where:
        return _advise("one-model", f"Nothing in the users' rows sets them apart. {lone}")
    if case.n_clusters == 1:
        return _mixed(case, f"{_gradually(case)} {lone}")
    misplaced = case.misplaced
    placed = f"{few(misplaced)} of {case.n_users} users would be in a wrong one"
    if misplaced > max(MISPLACED * case.n_users, 1.0) and case.n < ROWS_PER_PARAMETER * case.dim:
        rows = ROWS_PER_PARAMETER * case.dim
        return _collect(rows, f"The users' rows show {case.n_clusters} groups, but {placed}.")
    inside = f" Users of a group still differ in {where}." if where else ""
    apart = f"The users' rows show {case.n_clusters} groups, and {placed}."
    return _advise("one-shot", f"{apart}{inside} {lone}")


def _mixed(case: Case, reason: str) -> Verdict:
    """Users differ one by one: as far as can be seen, where rows are too few to show groups."""
    if not case.hidden:
        return _advise("mixed", reason)
    few_rows = f"With {case.n:g} rows for {case.dim} parameters groups would hardly show"
    return Verdict("mixed", HIDDEN, f"{reason} {few_rows}: they may hide in this.")


def _gradually(case: Case) -> str:
    """That users differ one by one, and what gives them such models if these have not."""
    text = f"Users differ in {case.where}, one by one and not in groups"
    if case.combine == "mixed" and case.judged is None:
        return f"{text}: each is given a model between its own and the others'."
    return f"{text}: give each a model between its own and the others' ({DEFAULT})."


def _no_groups(case: Case) -> Verdict:
    tau2 = case.tau2_in_noise
    between = math.sqrt(2 * case.dim * tau2)  # a typical distance of two users' optima
    one, apart = case.errors.one, ""
    if case.judged is not None:
        apart = f"{_theirs(case.judged, case.n_users)}, and nothing sets them apart. "
    hide = (
        f" Groups closer than {VISIBLE:g} standard deviations of a user's model may hide in this."
    )
    if not case.where and (tau2 == 0 or one < SMALL):
        differ = "Users differ by no more than the noise of their models explains"
        if tau2 > 0:
            differ = f"Users differ by {case.times} times their noise, without groups"
        if not case.told:
            differ = "The users' models form one cloud (how noisy each is, nobody said)"
        return _advise(
            "one-model",
            f"{apart}{differ}; one model for all has {share(one + case.errors.precision)} of the "
            f"local models' error.{hide}",
        )
    if case.where:
        worth = f"such models have {share(case.errors.refit)} of the local models' error"
        if case.errors.refit > NO_GAIN:
            good = "nearly as good" if case.errors.refit < 1 else "better, by this estimate"
            worth = f"with these rows a user's own model is {good}: {worth}"
        return _mixed(
            case,
            f"{apart}{_gradually(case)} {worth[0].upper()}{worth[1:]}, one model for all has "
            f"{times_of(one + case.errors.precision)} it."
            f"{hide if between < VISIBLE and not case.hidden else ''}",
        )
    if case.errors.refit > NO_GAIN or (between >= VISIBLE and one >= 1):
        return _advise(
            "local",
            f"{apart}Users differ {case.times} times as much as their own models are "
            "uncertain, and no two of them alike: there are no groups to share a model.",
        )
    if between >= VISIBLE:
        return _advise(
            "one-model",
            f"{apart}Users differ by {case.times} times their noise, one by one and not in "
            f"groups; one model for all still has {share(one)} of the local error.",
        )
    return _collect(
        rows_after(case.n, case.dim, (between / VISIBLE) ** 2),
        f"{apart}Users do differ, by {case.times} times the noise of their models, but that "
        "noise is too large to see which of them are alike. Until then one model for all has "
        f"{share(one)} of the local models' error.",
    )


def _groups(case: Case) -> Verdict:
    """The groups are there and users are in the right ones: what is made of them?"""
    if case.judged is not None and not _serves(case, case.judged):
        return _other_groups(case, case.judged)
    # Averaging against pooling without curvature: n / (n - dim - 1) for squares.
    spare = case.n - case.dim - 1
    silent = case.uploads.curvature is None and not case.bare
    loss = case.n / spare if silent and spare > 0 else 1.0
    ratio = case.errors.used / max(case.errors.precision, 1e-300) * loss
    plain = {
        None: "models that users have",
        "mean": "means of their users' models",
        "samples": "means of their users' models, weighed by rows,",
    }
    if case.combine in plain and ratio > WORSE and case.dim <= MANY_PARAMETERS:
        return _advise(
            "precision",
            f"The groups are right, but the {plain[case.combine]} have {ratio:.1f} times the error "
            "of precision combining, which weighs every user by what its rows tell "
            f"(combine='precision', --combine precision).{_moved(case)}",
        )
    few_rows = f"with {case.n:g} rows for {case.dim} parameters"
    why = ""
    if case.combine != "mixed" and case.curvature_mismatch > MISMATCH:
        why = (
            f"{few_rows} the users' models are not yet additive (their quadratic approximations "
            "contradict each other)"
        )
    elif loss > WORSE and case.combine is not None:
        why = (
            f"{few_rows} averaging models has about {loss:.1f} times the error of pooling the "
            "rows, and so many parameters are too many to send curvature"
        )
    if why:
        return _advise(
            "refine",
            f"The groups are right, but {why}: five to ten rounds of gradients inside the groups "
            "bring each to the model of its pooled rows (odcl.baselines.one_shot, refine_rounds)."
            f"{_moved(case)}",
        )
    error = case.errors.used if case.combine == "mean" else min(case.errors.used, case.errors.refit)
    if case.judged is not None:
        error = case.judged.errors.used
    return _advise(
        "one-shot",
        f"The nearest two of {case.n_clusters} groups are {case.in_noise} standard deviations of "
        f"a user's model apart, {few(case.misplaced)} of {case.n_users} users would be in a "
        f"wrong one, and a user's model from its group has {share(error)} of the error of its own."
        f"{_moved(case)}{_refit(case)}",
    )


def _serves(case: Case, judged: Measured) -> bool:
    """Do the groups in hand serve users about as well as those that the noise shows?"""
    if case.n_clusters > 1 and judged.n_clusters in (1, case.n_users):
        return False  # no groups at all
    if judged.errors.used <= WORSE * max(case.errors.used, case.errors.precision):
        return True
    # Where nobody says its noise, that of users with few rows has tails of no known law: a user
    # or two in groups of their own are no reason.
    few_moved = case.moved <= max(2, FEW_MOVED * case.n_users)
    return not case.told and (few_moved or judged.errors.used <= case.errors.precision + SMALL)


def _other_groups(case: Case, judged: Measured) -> Verdict:
    k, own = case.n_clusters, judged.n_clusters
    place = {1: "one model for all", case.n_users: "one model per user"}.get(own, f"these {own}")
    if own == k:
        place = f"these, for {case.moved} of {case.n_users} users"
    made = ""
    if own < case.n_users:
        made = f", and its models have {times_of(judged.errors.used)} the error of a user's own"
    return Verdict(
        "one-shot",
        f"One shot is enough with other groups: {k} in place of {place}.",
        f"{_theirs(judged, case.n_users)}{made}. {case.seen_by.capitalize()} shows {k} groups "
        f"({DEFAULT}), the nearest two {case.in_noise} standard "
        "deviations of a user's model apart; combined by precision their models have "
        f"{times_of(case.errors.precision)} the error of a user's own, and "
        f"{few(case.misplaced)} of {case.n_users} users would be in a wrong one."
        f"{_refit(case)}",
    )


def _refit(case: Case) -> str:
    if case.tau2 == 0:
        return ""
    if case.where:
        return f" Users of a group still differ in {case.where}, by {case.times} times their noise."
    differ = f" Users of a group differ by {case.times} times their noise"
    if case.refit:
        return f"{differ}, and each refits around its group's model."
    return f"{differ}: let them refit around the group's model (refit='evidence')."


def scattered(times: float) -> str:
    """What is to be said of counts that scatter by more than their law allows; empty: nothing."""
    if times < OVERDISPERSED:
        return ""
    return (
        f"The counts scatter {short(times)} times as much as the Poisson law allows, which looks "
        "like differences between users: they may be smaller than they seem."
    )


def _advise(advice: Advice, reason: str) -> Verdict:
    return Verdict(advice, SENTENCES[advice], reason)


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
    """Two digits: no estimate here knows more."""
    return number(x, 2)


def few(expected: float) -> str:
    """A number of users that is expected, in words where it is small."""
    return "hardly any" if expected < 0.5 else f"about {short(max(round(expected), 1))}"


def _visible(case: Case) -> str:
    """The groups that were looked at, as a noun."""
    if case.judged is None:
        return f"{case.n_clusters} groups"
    return f"{case.n_clusters} groups that {case.seen_by} shows ({_has(case.judged)})"


def _has(judged: Measured) -> str:
    groups = "1 group" if judged.n_clusters == 1 else f"{judged.n_clusters} groups"
    return f"this result has {groups}"


def _theirs(judged: Measured, n_users: int) -> str:
    if judged.n_clusters == n_users:
        return "This result leaves every user in a group of its own"
    return _has(judged).capitalize()


def _moved(case: Case) -> str:
    """What is to be said of groups in hand that serve as well as those that the noise shows."""
    if case.judged is None:
        return ""
    other = "" if case.judged.n_clusters == case.n_clusters else f"{case.n_clusters} groups, "
    users = "1 user" if case.moved == 1 else f"{case.moved} users"
    return f" {case.seen_by.capitalize()} would show {other}{users} elsewhere than in this result."
