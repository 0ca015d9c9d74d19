"""From measured facts to one sentence of advice and its reason."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

from odcl.diagnose.measure import Errors, rows_after
from odcl.errors import count, number
from odcl.evaluate import NAMES, Comparison

Advice = Literal["one-shot", "default", "collect", "one-model", "mixed", "local", "unknown"]
SENTENCES: dict[Advice, str] = {
    "one-shot": "One shot is enough.",
    "default": "Use the default in place of means of models.",
    "collect": "Collect about {rows:,} rows per user.",
    "one-model": "There is no group structure here: use one model.",
    "mixed": "No groups: users differ gradually.",
    "local": "Users do as well with models of their own: stay local.",
    "unknown": "It is not known whether one shot is enough.",
}
HIDDEN = "No groups can be seen: users seem to differ gradually."
AUTO = "(clusterer='auto', --clusters auto)"
OTHER = "One shot is enough with other groups: {k} in place of {own}."

NO_GAIN = 0.8  # a model drawn to its group with more of the local error than this gains nothing
SMALL = 0.1  # one model for all with less of the local error than this: differences do not matter
VISIBLE = 6.0  # distance, in a user's standard deviations, at which groups cannot be overlooked
WORSE = 1.5  # times the best error from which another way is advised
OVERDISPERSED = 1.3  # deviances of small counts come near 1.2 without that
ROWS_PER_PARAMETER = 3  # what we ask for where users have hardly more rows than parameters
ROWS_TO_SEE = 5  # rows per parameter below which classes and counts hide groups of any size


@dataclass(frozen=True)
class Verdict:
    """What to do next: one of seven, in a sentence, with the reason in another."""

    advice: Advice
    sentence: str
    reason: str
    rows: int | None = None  # rows per user that would show groups, where that is the question
    tells_where: bool = False  # does the reason name the coefficients that users differ in?

    def __str__(self) -> str:
        return f"{self.sentence} {self.reason}"


@dataclass(frozen=True)
class Facts:
    """What decides: the groups that the users' noise shows, and those in hand if they are others.

    ``where`` names the coefficients that users of a group differ in: "" where they do not differ.
    """

    n_users: int
    dim: int
    n: float  # median rows per user
    k: int  # groups that the noise shows
    judged: int | None  # groups in hand; None: they are the same
    moved: int  # users whose group in hand is another, with groups matched at their best
    errors: Errors  # of models of the groups that the noise shows
    used: float  # error of the models in hand
    in_noise: float  # distance of the nearest two groups in standard deviations of a user's model
    misplaced: float  # expected number of users in a wrong group
    crowded: bool  # too many: more rows come first
    rows_needed: int | None  # rows at which hardly any would be; None: no number helps
    tau2: float  # variance between users of a group, in units of their noise
    unsure: float  # share of users whose rows do not determine their noise
    silent: bool  # too many: the users' noise says nothing about groups
    curved: bool  # curvature depends on the model, as for classes and counts
    combine: str | None  # how the models in hand were made of their groups; None: in another way
    where: str
    curves: str = ""  # "curve of price": what own models are beside; "": there are no curves

    @property
    def hidden(self) -> bool:
        """Models of classes or counts are so uncertain that groups would not show."""
        return self.curved and self.n < ROWS_TO_SEE * self.dim

    @property
    def blurred(self) -> bool:
        """Users of a group differ by more than noise, and each has a model of its own."""
        return self.tau2 > 1 and self.combine == "mixed" and self.judged is None

    @property
    def between(self) -> float:
        """Typical distance of two users' optima, in standard deviations of a user's model."""
        return math.sqrt(2 * self.dim * self.tau2)

    @property
    def times_pooled(self) -> float:
        """Error of the combining used, in units of pooled rows."""
        return self.errors.used / max(self.errors.pooled, 1e-300)

    @property
    def serves(self) -> bool:
        """The groups in hand serve users about as well as those that the noise shows."""
        if self.judged is None:
            return True
        if self.judged in (1, self.n_users):  # no groups at all
            return False
        return self.used <= WORSE * max(self.errors.used, self.errors.pooled)


def decide(f: Facts, held: Comparison | None = None) -> Verdict:
    """The verdict on these facts; rows ``held`` out decide where uploads cannot."""
    found = _silent(f, held) if f.silent else _no_groups(f) if f.k == 1 else _groups(f)
    advice, reason, wanted, sentence = found
    if advice == "unknown":
        return _untold(reason, wanted, held)
    rows = None if wanted is None else rounded(wanted)
    sentence, reason = sentence or SENTENCES[advice], " ".join(reason.split())
    if f.curves and not f.silent:
        reason += (
            f" A user's own model is here its lines beside the common {f.curves}, which no "
            "user would find alone."
        )
    if advice == "mixed" and f.hidden:
        sentence = HIDDEN
        reason += f" With {_few_rows(f)} groups would hardly show: there may be some."
    tells_where = bool(f.where) and (advice == "mixed" or f.silent)
    return Verdict(advice, sentence.format(rows=rows), reason, rows, tells_where)


def untold_by_models(held: Comparison | None) -> Verdict:
    """The verdict on bare models, of which nothing but their distances is known."""
    return _untold("users sent models, and not how sure these are", None, held)


def _untold(why: str, wanted: float | None, held: Comparison | None) -> Verdict:
    """The uploads do not tell how good the models are: held-out rows decide, if there are any."""
    untold = f"The uploads do not show how good the models are: {why}."
    if held is not None:
        advice, seen = _seen_on(held)
        if held.beaten_by(held.ours) == "odcl":
            advice = "default"
        return Verdict(advice, SENTENCES[advice], f"{seen} {untold}")
    rows = None if wanted is None else rounded(wanted)
    look = (
        "Held-out rows show what the models are worth: `odcl fit` prints that comparison, and "
        "odcl.compare makes it in Python."
    )
    enough = f"About {rows:,} rows per user would. " if rows else ""
    return Verdict("unknown", SENTENCES["unknown"], f"{untold} {enough}{look}", rows)


def _seen_on(held: Comparison) -> tuple[Advice, str]:
    """What rows held out advise, and a sentence on what they show."""
    ours, rival = held.ours, held.beaten_by(held.ours)
    gain, chance = held.gain(ours, "local")
    mean = {name: f"{held.metric} {number(value)}" for name, value, *_ in held.rows()}
    seen = (
        f"On {held.n_rows:,} held-out rows the mean user has {mean[ours]} with {NAMES[ours]} and "
        f"{mean['local']} with a model of its own"
    )
    advice: Advice = "local" if gain <= 0 else "one-shot" if gain > chance else "unknown"
    if rival is not None and rival != "local":
        advice, seen = "unknown", f"{seen}, but {mean[rival]} with another method: {NAMES[rival]}"
    elif abs(gain) <= chance:
        seen += ", a difference that chance explains"
    return advice, f"{seen}."


def of_wide_groups(
    k: int,
    n_users: int,
    misplaced: float,
    *,
    alike: bool,
    asked: bool,
    moved: int | None,
    held: Comparison | None,
) -> Verdict:
    """The verdict on groups of wide users, which are found in what users held out differ in.

    ``asked``: so many groups were asked for; ``moved`` users are elsewhere in the groups in hand
    (None: these are the same). Where users do as well with models of their own, or another method
    does better, rows ``held`` out decide.
    """
    if moved == 0:
        same = f"users' rows show the same {k} groups, and not what means of models are worth"
        return _untold(same, None, held)
    each = "each has a model" if moved is None else "the default gives each a model"
    advice: Advice = "one-shot" if k > 1 else "one-model" if alike else "mixed"
    said = f"{k} groups were asked for" if asked else f"Users held out confirm {k} groups"
    said += f", and {few(misplaced)} of {n_users} users would be in a wrong one."
    who, theirs = ("Users of a group", "its group's") if k > 1 else ("Users", "that of all")
    if k == 1:
        said = "One group was asked for." if asked else "No groups show on users held out."
    differ = f"still differ: {each} between its own and {theirs}"
    said += f" {who} {'differ only by noise' if alike else differ}."
    if moved:
        said += (
            f" This is what the default finds (clusterer='auto'): {moved} users are elsewhere here."
        )
    if held is not None:
        seen = _seen_on(held)
        decides = seen[0] == "local" or held.beaten_by(held.ours) is not None
        advice, said = seen[0] if decides else advice, f"{said} {seen[1]}"
    sentence = OTHER.format(k=k, own="these") if moved and k > 1 else SENTENCES[advice]
    return Verdict(advice, sentence, said)


# -- what to advise, by what the users' rows show --------------------------------------------------


class Found(NamedTuple):
    """Advice and its reason."""

    advice: Advice
    reason: str
    rows: float | None = None  # to collect
    sentence: str = ""  # in place of that of SENTENCES


def _silent(f: Facts, held: Comparison | None) -> Found:
    """Too many users cannot tell their noise: what the data terms say together, and held rows."""
    worth = (
        f"Errors are not estimated, because {share(f.unsure)} of the users cannot fit such a model "
        "alone (few rows, a column that does not vary, a level never seen): held-out rows show "
        "what models are worth."
    )
    if held is not None:
        worth = _seen_on(held)[1]
    if f.k == 1 and not f.where:
        return Found("one-model", f"Nothing in the users' rows sets them apart. {worth}")
    if f.k == 1:
        return Found("mixed", f"{_gradual(f)} {worth}")
    shown, wrong = f"The users' rows show {f.k} groups", f"{_wrong(f)} would be in a wrong one."
    if f.crowded and f.n < ROWS_PER_PARAMETER * f.dim:
        return Found("collect", f"{shown}, but {wrong}", ROWS_PER_PARAMETER * f.dim)
    differ = f"Users of a group still differ in {f.where}." if f.where else ""
    return Found("one-shot", f"{shown}, and {wrong} {differ} {worth}")


def _no_groups(f: Facts) -> Found:
    e, differ = f.errors, _differ(f)
    hide = f"Groups closer than {VISIBLE:g} standard deviations of a user's model would not show."
    asked = "" if f.judged is None else f"{_has(f).capitalize()}, and nothing sets them apart."
    still = f"{share(e.one)} of the local models' error."
    if f.hidden and not f.where:
        why = f"with {_few_rows(f)} models of classes or counts are too uncertain to show groups"
        return Found("unknown", why, ROWS_TO_SEE * f.dim)
    if f.where:
        worth = f"Such models have {share(e.drawn)} of the local models' error"
        if e.drawn > NO_GAIN:
            good = "nearly as good" if e.drawn < 1 else "better, by this estimate"
            worth = f"With these rows a user's own model is {good}: s{worth[1:]}"
        worth += f", one model for all has {times_of(e.one + e.pooled)} it."
        hide = hide if f.between < VISIBLE and not f.hidden else ""
        return Found("mixed", f"{asked} {_gradual(f)} {worth} {hide}")
    if f.tau2 == 0 or e.one < SMALL:
        cloud = f"Users differ by {differ}, without groups"
        if f.tau2 == 0:
            cloud = "Users differ by no more than the noise of their models"
        worth = f"one model for all has {share(e.one + e.pooled)} of the local models' error."
        return Found("one-model", f"{asked} {cloud}; {worth} {hide}")
    if e.drawn > NO_GAIN or (f.between >= VISIBLE and e.one >= 1):
        alone = "and no two of them are alike: there are no groups to share a model."
        return Found("local", f"{asked} Users differ by {differ}, {alone}")
    if f.between >= VISIBLE:
        serves = f"one by one and not in groups; one model for all still has {still}"
        return Found("one-model", f"{asked} Users differ by {differ}, {serves}")
    noisy = "but that noise is too large to see which of them are alike."
    until = f"Until then one model for all has {still}"
    rows = rows_after(f.n, f.dim, (f.between / VISIBLE) ** 2)
    return Found("collect", f"{asked} Users do differ, by {differ}, {noisy} {until}", rows)


def _groups(f: Facts) -> Found:
    """Groups: do users gain by them, do they overlap, and are they those in hand?"""
    e, same, differ = f.errors, f.judged is None, _differ(f)
    visible = f"{f.k} groups"
    if not same:
        visible += f" that the users' noise shows ({_has(f)})"
    apart = f"{short(f.in_noise)} standard deviations of a user's model"
    wrong = f"{_wrong(f)} would be in a wrong one"
    inside = ""
    if f.where and f.tau2 > 0:
        inside = f"Users of a group still differ in {f.where}, by {differ}."
    elif f.tau2 > 0:
        inside = (
            f"Users of a group differ by {differ}: the default {AUTO} gives each a model between "
            "its own and its group's."
        )
    if e.drawn > NO_GAIN and not f.curves:
        left = f"{share(e.drawn)} of the local models' error."
        text = f"Users of a group differ by {differ}; what the {visible} could add leaves {left}"
        return Found("local", text)
    if f.rows_needed is not None and f.blurred:
        return Found(
            "one-shot",
            f"The {visible} overlap: {_wrong(f)} are in a wrong one. Rows would not set them "
            f"apart, and it matters little: users of a group differ by {differ}, and each has a "
            f"model between its own and its group's, with {share(e.drawn)} of the local models' "
            "error.",
        )
    if f.rows_needed is not None:
        text = f"The {visible} overlap: {_wrong(f)} are in a wrong one, because the nearest two are"
        return Found("collect", f"{text} only {apart} apart.", f.rows_needed)
    if not f.serves:
        hand = _has(f).capitalize()
        if f.judged != f.n_users:
            hand += f", and its models have {times_of(f.used)} the error of a user's own"
        text = (
            f"{hand}. The users' noise shows {f.k} groups {AUTO}, the nearest two {apart} apart; "
            f"models of their pooled rows have {times_of(e.pooled)} the error of a user's own, and "
            f"{wrong}. {inside}"
        )
        own = f"these {f.judged}"
        if f.judged == f.k:
            own = f"these, for {f.moved} of {f.n_users} users"
        own = {1: "one model for all", f.n_users: "one model per user"}.get(f.judged or 0, own)
        return Found("one-shot", text, sentence=OTHER.format(k=f.k, own=own))
    moved = ""
    if not same:
        who = f"{f.moved} user{'s' * (f.moved != 1)}"
        moved = f"The users' noise shows {f.k} groups, with {who} elsewhere than in this result."
    if f.combine != "mixed" and f.times_pooled > WORSE:
        text = (
            f"The groups are right, but these models have {f.times_pooled:.1f} times the error of "
            f"models of the groups' pooled rows, which mixed groups have {AUTO}. {moved}"
        )
        return Found("default", text)
    error = min(e.used, e.drawn) if f.combine == "mixed" else e.used
    text = (
        f"The nearest two of {f.k} groups are {apart} apart, {wrong}, and a user's model from its "
        f"group has {share(error if same else f.used)} of the error of its own. {moved} {inside}"
    )
    return Found("one-shot", text)


def _gradual(f: Facts) -> str:
    mixed = f.combine == "mixed" and f.judged is None  # models between users' own and the others'
    given = "each is given" if mixed else "give each"
    default = "" if mixed else f" {AUTO}"
    return (
        f"Users differ in {f.where}, one by one and not in groups: {given} a model between its own "
        f"and the others'{default}."
    )


def _differ(f: Facts) -> str:
    return f"{short(math.sqrt(f.tau2))} times their noise"


def _wrong(f: Facts) -> str:
    return f"{few(f.misplaced)} of {f.n_users} users"


def _has(f: Facts) -> str:
    return f"this result has {f.judged} group{'s' * (f.judged != 1)}"


def _few_rows(f: Facts) -> str:
    return f"{f.n:g} row{'s' * (f.n != 1)} for {count(f.dim, 'parameter')}"


def scattered(times: float) -> str:
    """What is to be said of counts that scatter by more than their law allows; empty: nothing."""
    if times < OVERDISPERSED:
        return ""
    return (
        f"The counts scatter {short(times)} times as much as the Poisson law allows, which looks "
        "like differences between users: these may be smaller than they seem."
    )


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
