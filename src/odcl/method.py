"""How groups are found, combined and used: one value that says it all.

``Method()`` is ours, ``Method.paper()`` the paper's. It alone resolves names, says which fields of
an upload it needs, and goes to JSON and back unchanged: run folders, engines and provenance hold
the same thing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Annotated, Any

from odcl.clustering.spec import ClustererSpec, clusterer_spec
from odcl.declared import (
    OPTIONAL,
    Count,
    Positive,
    check_fields,
    fields_from_json,
    fields_to_json,
    one_of,
)
from odcl.errors import InputError, Setting
from odcl.exchange.upload import PRIVATE_FIELDS, TERM_FIELDS
from odcl.privacy import Privacy
from odcl.risk.risk import Risk, is_column, most_parameters

COMBINERS = ("mean", "samples")
TERM_LOSSES = ("squared", "huber", "logistic", "poisson", "multinomial")


@dataclass(frozen=True)
class Method:
    """One round of clustered learning (Algorithm 1, step 2, and what comes after it).

    Parameters
    ----------
    clusterer : "auto" (groups, and how users of a group differ, from the users' data terms),
        "auto:4" (at most four groups; "auto:1" is the mixed model without groups), a number of
        groups; or a clusterer of the users' models: "kmeans:4", "spectral:4", "gradient:4",
        "elbow", "silhouette", "convex", one of odcl's own, or any object with fit() and labels_ (in
        one process only).
    combine : how models of a group become one: "mean" (the paper), or "samples", the mean weighed
        by the users' rows. Mixed groups settle it themselves.
    standardize : bring features to a scale common to all users first.
    smallest_group : groups with fewer users are dissolved into the others.
    short_terms : may the data term of a user with fewer rows than parameters leave it? The term
        spans its rows (that of a single row is the row, up to sign). If not, the user sends what
        the average of its rows says, nothing where it has one row only, and takes part all the
        same: its own model comes from its own rows. Beyond 100 parameters (40 of classes) users
        send sums of differences between rows, and then half as many as would tell the rows. Where
        the method looks at models, these are sent in any case.
    curves : for :func:`odcl.fit`: may columns of numbers act in curves? True, or a list of columns
        by number; their bends' units are mean and standard deviation of all rows. Models then have
        numbers for ``odcl.data.curves.with_bends(X, result.risk.curves)``. A user sends about
        (1 + 5d)^2 / 2 numbers in place of (1 + d)^2 / 2, and more users have fewer rows than
        parameters. Estimators have the setting themselves.
    privacy : a :class:`~odcl.privacy.Privacy`: uploads have noise that hides any row.
        None: they are exact sums.
    robust : may no few users bend what others receive? Nobody counts more than is usual (one
        and a quarter median users, where users are even), users who cannot be members of
        any group take no part in others' models and are named, and the others' pull is bounded. It
        takes as long as before where all is well, and two to six times where liars are many.
    """

    clusterer: Any = "auto"
    combine: Annotated[str, one_of(COMBINERS)] = "mean"
    standardize: bool = True
    smallest_group: Positive = 1
    short_terms: bool = True
    curves: bool | tuple[Count, ...] = field(default=False, metadata=OPTIONAL)
    privacy: Privacy | None = field(default=None, metadata=OPTIONAL)
    robust: bool = field(default=False, metadata=OPTIONAL)
    # Why models are clustered in place of mixed groups; set by :meth:`resolved`, not written down.
    fallback: str = field(default="", compare=False, repr=False, metadata=OPTIONAL)

    def __post_init__(self) -> None:
        object.__setattr__(self, "clusterer", clusterer_spec(self.clusterer))
        curves = self.curves
        if isinstance(curves, list | tuple):
            if not all(map(is_column, curves)):
                raise ValueError(
                    f"curves={curves!r} is not True, False or a list of columns, counted from 0."
                )
            object.__setattr__(self, "curves", tuple(map(int, curves)) or False)
        try:
            check_fields(self)
        except ValueError as error:
            raise ValueError(f"Method: {error}.") from None
        if not isinstance(self.privacy, Privacy | None):
            raise ValueError(f"privacy={self.privacy!r} is neither a Privacy nor None.")

    @classmethod
    def paper(cls, n_clusters: Any = None) -> Method:
        """The paper's setting: K-means++ (K by silhouette unless given), plain means."""
        clusterer = "silhouette" if n_clusters is None else _of_models(n_clusters)
        return cls(clusterer, standardize=False)

    @classmethod
    def of(cls, method: str | Method = "default", **changes: Any) -> Method:
        """A method by name ("default", "paper") or itself, with some settings changed.

        A change of None, or of "auto" for the clusterer, changes nothing. What makes the paper's
        setting the paper's cannot be changed beside its name.
        """
        if not isinstance(method, Method) and method not in ("default", "paper"):
            raise ValueError(f"method={method!r} is not 'default', 'paper' or a Method.")
        changes = {name: value for name, value in changes.items() if value is not None}
        if isinstance(changes.get("clusterer"), str) and changes["clusterer"] == "auto":
            del changes["clusterer"]
        if method != "paper":
            return replace(method if isinstance(method, Method) else cls(), **changes)
        asked = changes.pop("combine", "mean")
        if asked != "mean":
            raise InputError(
                *(Setting("method", "paper"), " means ", Setting("combine", "mean")),
                *(", and ", Setting("combine", asked), " was asked for: leave one of them out."),
            )
        return replace(cls.paper(changes.pop("clusterer", None)), **changes)

    def resolved(self, risk: Risk | None, dim: int, n_users: int | None = None) -> Method:
        """The method for a risk and a size of models.

        Where mixed groups cannot be found, K-means++ finds groups of the users' models (K by
        silhouette unless it is given), each user takes its group's mean, and ``fallback`` says why.
        """
        why = self._fallback(risk, dim, n_users) if self.clusterer.uses_terms else ""
        if self.privacy is not None and (why or not self.clusterer.uses_terms):
            raise InputError(
                "Private uploads are data terms, and the users' models would leave here, because "
                f"{why or 'this method clusters models'}: nothing of them would be private."
            )
        if not why:
            return self
        asked = dict(self.clusterer.params)
        most, k = asked.get("max_groups"), asked.get("n_groups")
        told = [("n_clusters", k or (1 if most == 1 else "silhouette"))]
        if most is not None and told[0][1] == "silhouette":
            told.insert(0, ("max_clusters", most))
        clusterer = ClustererSpec("KMeansPP", tuple(told))
        return replace(self, clusterer=clusterer, fallback=why)

    def _fallback(self, risk: Risk | None, dim: int, n_users: int | None) -> str:
        """Why mixed groups are not for this risk and size of models, or an empty string.

        They look at data terms (``risk`` None: there are none; of counts up to 100 parameters) and
        do not average models.
        """
        if risk is None:
            return "the uploads hold no data terms"
        if risk.loss.name not in TERM_LOSSES:
            return f"the {risk.loss.name} loss has no data term"
        if n_users == 1:
            return "one user has nobody to be compared with"
        most = most_parameters(risk)
        wide = risk.loss.classification or risk.loss.has_data_terms
        if dim > most and not wide:
            return f"{dim} parameters are more than the {most} up to which data terms are sent"
        return f"combine={self.combine!r} was asked for" if self.combine != "mean" else ""

    # -- what follows --------------------------------------------------------------------------

    @property
    def needs(self) -> tuple[str, ...]:
        """The fields of an upload that leave a user, data terms by loss and size."""
        if self.privacy is not None:
            return ("n_samples", *PRIVATE_FIELDS)
        if self.clusterer.uses_terms:
            return ("n_samples", *TERM_FIELDS, *(() if self.short_terms else ("observations",)))
        return ("theta", "n_samples")

    # -- JSON ----------------------------------------------------------------------------------

    def to_json(self, *, described: bool = False) -> dict[str, Any]:
        """A dict for JSON; ``described`` takes the text of a clusterer that cannot be written."""
        words = fields_to_json(replace(self, clusterer="auto", fallback=""))
        return words | {"clusterer": self.clusterer.to_json(described=described)}

    @classmethod
    def from_json(cls, words: Any) -> Method:
        """What :meth:`to_json` wrote; a ValueError says what is wrong with other words."""
        if isinstance(words, dict) and "clusterer" in words:
            words = {**words, "clusterer": ClustererSpec.from_json(words["clusterer"])}
        return fields_from_json(cls, words)


def _of_models(clusterer: Any) -> Any:
    """A number of groups as the paper has them: K-means++ of models."""
    whole = isinstance(clusterer, Integral) and not isinstance(clusterer, bool)
    return f"kmeans:{clusterer}" if whole else clusterer
