"""From measured facts to one sentence of advice and its reason: a table of rules."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from odcl.diagnose.measure import Errors, rows_after
from odcl.errors import count, number
from odcl.evaluate.scores import NAMES, Comparison

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


def decide(facts: Facts, held: Comparison | None = None) -> Verdict:
    """The verdict of the first rule that applies; rows ``held`` out decide where uploads cannot."""
    rule = next(rule for rule in RULES if rule.when(facts))
    if rule.advice == "unknown":
        rows = rule.rows(facts) if rule.rows else None
        return _untold(rule.reason.format_map(_words(facts)), rows, held)
    words = _words(facts)
    rows = None if rule.rows is None else rounded(rule.rows(facts))
    sentence = rule.sentence or SENTENCES[rule.advice]
    reason = " ".join(rule.reason.format_map(words).split())
    if facts.curves and not facts.silent:
        reason += (
            f" A user's own model is here its lines beside the common {facts.curves}, which no "
            "user would find alone."
        )
    if rule.advice == "mixed" and facts.hidden:
        sentence = HIDDEN
        reason += f" With {words['few_rows']} groups would hardly show: there may be some."
    tells_where = bool(facts.where) and (rule.advice == "mixed" or facts.silent)
    return Verdict(rule.advice, sentence.format(rows=rows, **words), reason, rows, tells_where)


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


class VerdictRule(NamedTuple):
    """Where ``when`` holds, the advice and the reason, with words of :func:`_words` filled in."""

    when: Callable[[Facts], object]
    advice: Advice
    reason: str
    rows: Callable[[Facts], float] | None = None  # to collect
    sentence: str | None = None  # in place of that of SENTENCES


_NO_OWN = (
    "How good the models are cannot be estimated: {unsure} of the users have no full model of "
    "their own to compare with (too few rows, a column that does not vary, a level never seen)."
)
_GRADUAL = (
    "Users differ in {where}, one by one and not in groups: {each} a model between its own and the "
    "others'{default}."
)
_HIDE = f"Groups closer than {VISIBLE:g} standard deviations of a user's model would not show."

# The first rule that applies decides.
RULES = (
    # Too many users cannot tell their noise: what the data terms say together.
    VerdictRule(
        lambda f: f.silent and f.k == 1 and not f.where,
        *("one-model", f"Nothing in the users' rows sets them apart. {_NO_OWN}"),
    ),
    VerdictRule(lambda f: f.silent and f.k == 1, "mixed", f"{_GRADUAL} {_NO_OWN}"),
    VerdictRule(
        lambda f: f.silent and f.crowded and f.n < ROWS_PER_PARAMETER * f.dim,
        "collect",
        "The users' rows show {k} groups, but {wrong} would be in a wrong one.",
        lambda f: ROWS_PER_PARAMETER * f.dim,
    ),
    VerdictRule(
        lambda f: f.silent,
        "one-shot",
        "The users' rows show {k} groups, and {wrong} would be in a wrong one. {still_differ} "
        + _NO_OWN,
    ),
    # No groups.
    VerdictRule(
        lambda f: f.k == 1 and f.hidden and not f.where,
        "unknown",
        "with {few_rows} models of classes or counts are too uncertain to show groups",
        lambda f: ROWS_TO_SEE * f.dim,
    ),
    VerdictRule(
        lambda f: f.k == 1 and f.where,
        "mixed",
        "{not_apart} " + _GRADUAL + " {worth}, one model for all has {one_times} it. {hide}",
    ),
    VerdictRule(
        lambda f: f.k == 1 and (f.tau2 == 0 or f.errors.one < SMALL),
        "one-model",
        "{not_apart} {cloud}; one model for all has {one_noise} of the local models' error. "
        + _HIDE,
    ),
    VerdictRule(
        lambda f: (
            f.k == 1 and (f.errors.drawn > NO_GAIN or (f.between >= VISIBLE and f.errors.one >= 1))
        ),
        "local",
        "{not_apart} Users differ by {differ}, and no two of them are alike: there are no groups "
        "to share a model.",
    ),
    VerdictRule(
        lambda f: f.k == 1 and f.between >= VISIBLE,
        "one-model",
        "{not_apart} Users differ by {differ}, one by one and not in groups; one model for all "
        "still has {one} of the local models' error.",
    ),
    VerdictRule(
        lambda f: f.k == 1,
        "collect",
        "{not_apart} Users do differ, by {differ}, but that noise is too large to see which of "
        "them are alike. Until then one model for all has {one} of the local models' error.",
        lambda f: rows_after(f.n, f.dim, (f.between / VISIBLE) ** 2),
    ),
    # Groups that users gain little by, that overlap, or that are not those in hand.
    VerdictRule(
        lambda f: f.errors.drawn > NO_GAIN and not f.curves,
        "local",
        "Users of a group differ by {differ}; what the {visible} could add leaves {drawn} of the "
        "local models' error.",
    ),
    VerdictRule(
        lambda f: f.rows_needed is not None and f.blurred,
        "one-shot",
        "The {visible} overlap: {wrong} are in a wrong one. Rows would not set them apart, and it "
        "matters little: users of a group differ by {differ}, and each has a model between its own "
        "and its group's, with {drawn} of the local models' error.",
    ),
    VerdictRule(
        lambda f: f.rows_needed is not None,
        "collect",
        "The {visible} overlap: {wrong} are in a wrong one, because the nearest two are only "
        "{apart} apart.",
        lambda f: f.rows_needed or 0,
    ),
    VerdictRule(
        lambda f: not f.serves,
        "one-shot",
        "{in_hand}. {shows} {k} groups (clusterer='auto', --clusters auto), the "
        "nearest two {apart} apart; models of their pooled rows have {pooled} the error "
        "of a user's own, and {wrong} would be in a wrong one. {inside}",
        sentence=OTHER,
    ),
    # Right groups: what is made of them?
    VerdictRule(
        lambda f: f.combine != "mixed" and f.times_pooled > WORSE,
        "default",
        "The groups are right, but these models have {times_pooled} times the error of models of "
        "the groups' pooled rows, which mixed groups have (clusterer='auto', --clusters auto). "
        "{moved}",
    ),
    VerdictRule(
        lambda f: True,
        "one-shot",
        "The nearest two of {k} groups are {apart} apart, {wrong} would be in a wrong one, and a "
        "user's model from its group has {error} of the error of its own. {moved} {inside}",
    ),
)


def _words(f: Facts) -> dict[str, str]:
    """What the reasons have to say of the facts."""
    e, same = f.errors, f.judged is None
    differ = f"{short(math.sqrt(f.tau2))} times their noise"
    shows = "the users' noise shows"
    has = f"this result has {f.judged} group{'s' * (f.judged != 1)}"
    own = f"these, for {f.moved} of {f.n_users} users" if f.judged == f.k else f"these {f.judged}"
    own = {1: "one model for all", f.n_users: "one model per user"}.get(f.judged or 0, own)
    made = f"and its models have {times_of(f.used)} the error of a user's own"
    elsewhere = f"{f.moved} user{'s' * (f.moved != 1)} elsewhere than in this result."
    worth = f"Such models have {share(e.drawn)} of the local models' error"
    if e.drawn > NO_GAIN:
        good = "nearly as good" if e.drawn < 1 else "better, by this estimate"
        worth = f"With these rows a user's own model is {good}: s{worth[1:]}"
    cloud = f"Users differ by {differ}, without groups"
    if f.tau2 == 0:
        cloud = "Users differ by no more than the noise of their models"
    inside = (
        f"Users of a group differ by {differ}: the default (clusterer='auto', --clusters auto) "
        "gives each a model between its own and its group's."
    )
    if f.where:
        inside = f"Users of a group still differ in {f.where}, by {differ}."
    error = min(e.used, e.drawn) if f.combine == "mixed" else e.used
    mixed = f.combine == "mixed" and same  # users have models between their own and the others'
    return {
        "k": str(f.k),
        "each": "each is given" if mixed else "give each",
        "default": "" if mixed else " (clusterer='auto', --clusters auto)",
        "own": own,
        "few_rows": f"{f.n:g} row{'s' * (f.n != 1)} for {count(f.dim, 'parameter')}",
        "unsure": share(f.unsure),
        "wrong": f"{few(f.misplaced)} of {f.n_users} users",
        "apart": f"{short(f.in_noise)} standard deviations of a user's model",
        "differ": differ,
        "where": f.where,
        "still_differ": f"Users of a group still differ in {f.where}." if f.where else "",
        "inside": inside if f.tau2 > 0 else "",
        "cloud": cloud,
        "hide": _HIDE if f.between < VISIBLE and not f.hidden else "",
        "not_apart": "" if same else f"{has.capitalize()}, and nothing sets them apart.",
        "worth": worth,
        "one": share(e.one),
        "one_noise": share(e.one + e.pooled),
        "one_times": times_of(e.one + e.pooled),
        "drawn": share(e.drawn),
        "pooled": times_of(e.pooled),
        "error": share(error if same else f.used),
        "in_hand": has.capitalize() if f.judged == f.n_users else f"{has.capitalize()}, {made}",
        "visible": f"{f.k} groups" if same else f"{f.k} groups that {shows} ({has})",
        "shows": shows.capitalize(),
        "moved": "" if same else f"{shows.capitalize()} {f.k} groups, with {elsewhere}",
        "times_pooled": f"{f.times_pooled:.1f}",
    }


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
