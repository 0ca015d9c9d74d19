"""How groups are found, combined and used: one value that says it all.

``Method()`` is ours, ``Method.paper()`` the paper's. It alone resolves names, says which fields of
an upload it needs, and goes to JSON and back unchanged: run folders, engines and provenance hold
the same thing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from numbers import Real
from typing import Any, get_args

from odcl.clustering.spec import ClustererSpec, clusterer_spec
from odcl.declared import OPTIONAL, fields_from_json
from odcl.errors import InputError, Setting
from odcl.exchange.download import Refit
from odcl.exchange.upload import TERM_FIELDS, Curvature
from odcl.risk.risk import Risk, most_parameters

COMBINERS = ("mean", "samples", "precision")
REFITS = ("evidence", "cv")
TERM_LOSSES = ("squared", "huber", "logistic", "poisson", "multinomial")


@dataclass(frozen=True)
class Method:
    """One round of clustered learning (Algorithm 1, step 2, and what comes after it).

    Parameters
    ----------
    clusterer : "auto" (groups, and how users of a group differ, from the users' data terms),
        "auto:4" (at most four groups; "auto:1" is the mixed model without groups), "mixture" (the
        noise mixture of the users' models), a number, "elbow", "silhouette", "convex", "kmeans:4",
        "spectral:4", "gradient:4", one of odcl's clusterers, or any object with fit() and labels_
        (in one process only).
    combine : "precision" (the pooled fit of the group), "mean" (the paper), "samples".
    refit : the user's last step: "evidence", "cv", a strength, or None (the paper).
    curvature : what users send of their curvature, where the method reads it: "auto" is all of it
        up to 100 parameters, save for users with fewer rows than parameters; "full"; "none".
    standardize : bring features to a scale common to all users first.
    smallest_group : groups with fewer users are dissolved into the others.
    short_terms : may the data term of a user with fewer rows than parameters leave it? The term
        spans its rows (that of a single row is the row, up to sign). If not, the user sends what
        the average of its rows says, nothing where it has one row only, and takes part all the
        same: its own model comes from its own rows. Beyond 100 parameters (40 of classes) users
        send sums of differences between rows, and then half as many as would tell the rows. Where
        the method looks at models, these are sent in any case, and curvatures of such users stay.
    """

    clusterer: Any = "auto"
    combine: str = "precision"
    refit: Refit = "evidence"
    curvature: Curvature = "auto"
    standardize: bool = True
    smallest_group: int = 1
    short_terms: bool = True
    # Why mixed groups gave way to the noise mixture; set by :meth:`resolved`, not written down.
    fallback: str = field(default="", compare=False, repr=False, metadata=OPTIONAL)

    def __post_init__(self) -> None:
        object.__setattr__(self, "clusterer", clusterer_spec(self.clusterer))
        if self.refit == "none":
            object.__setattr__(self, "refit", None)
        _one_of("combine", self.combine, COMBINERS)
        _one_of("curvature", self.curvature, get_args(Curvature))
        for name in ("standardize", "short_terms"):
            if getattr(self, name) not in (True, False):
                raise ValueError(f"{name}={getattr(self, name)!r} is neither True nor False.")
        if self.curvature == "full" and not self.short_terms:
            raise InputError(
                *(Setting("curvature", "full"), " sends what ", Setting("short_terms", False)),
                " keeps back, the span of the rows of users with few of them: leave one of them "
                "out.",
            )
        _check_refit(self.refit)
        size = self.smallest_group
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"smallest_group={size!r} is not a number of users from 1 on.")

    @classmethod
    def paper(cls, n_clusters: Any = None) -> Method:
        """The paper's setting: K-means++ (K by silhouette unless given), plain mean, no refit."""
        clusterer = "silhouette" if n_clusters is None else n_clusters
        return cls(clusterer, combine="mean", refit=None, curvature="none", standardize=False)

    @classmethod
    def of(cls, method: str | Method = "default", **changes: Any) -> Method:
        """A method by name ("default", "paper") or itself, with some settings changed.

        A change of None, or of "auto" for the clusterer, changes nothing. What makes the paper's
        setting the paper's cannot be changed beside its name.
        """
        if not isinstance(method, Method) and method not in ("default", "paper"):
            raise ValueError(f"method={method!r} is not 'default', 'paper' or a Method.")
        given = (
            method if isinstance(method, Method) else cls.paper() if method == "paper" else cls()
        )
        changes = {name: value for name, value in changes.items() if value is not None}
        if isinstance(changes.get("clusterer"), str) and changes["clusterer"] == "auto":
            del changes["clusterer"]
        for name in ("combine", "refit"):
            fixed, asked = getattr(given, name), changes.get(name)
            if method == "paper" and asked not in (None, fixed or "none"):
                raise InputError(
                    *(Setting("method", "paper"), " means ", Setting(name, fixed or "none")),
                    *(", and ", Setting(name, asked), " was asked for: leave one of them out."),
                )
        return replace(given, **changes)

    def resolved(self, risk: Risk | None, dim: int, n_users: int | None = None) -> Method:
        """The method for a risk and a size of models.

        Where mixed groups cannot be found they give way to the noise mixture of the users' models,
        and ``fallback`` says why.
        """
        why = self._fallback(risk, dim, n_users) if self.clusterer.uses_terms else ""
        if not why:
            return self
        names = {"max_groups": "max_clusters", "n_groups": "n_clusters"}
        kept = [(names[k], v) for k, v in self.clusterer.params if k in names]
        return replace(self, clusterer=ClustererSpec("NoiseMixture", tuple(kept)), fallback=why)

    def _fallback(self, risk: Risk | None, dim: int, n_users: int | None) -> str:
        """Why mixed groups are not for this risk and size of models, or an empty string.

        They look at data terms (``risk`` None: there are none), up to 100 parameters (40 of classes
        and counts), and settle combining and the last step themselves.
        """
        if risk is None:
            return "the uploads hold no data terms"
        if risk.loss.name not in TERM_LOSSES:
            return f"the {risk.loss.name} loss has no data term"
        if n_users == 1:
            return "one user has nobody to be compared with"
        most = most_parameters(risk)
        if dim > most:
            return f"{dim} parameters are more than the {most} up to which data terms are sent"
        plain, names = Method(), ("combine", "refit", "curvature")
        asked = [name for name in names if getattr(self, name) != getattr(plain, name)]
        if asked:
            return f"{asked[0]}={getattr(self, asked[0])!r} is settled by mixed groups themselves"
        return ""

    # -- what follows --------------------------------------------------------------------------

    @property
    def sends(self) -> Curvature:
        """What users send of their curvature: nothing where nobody reads it."""
        if self.clusterer.uses_terms:
            return "none"
        reads = self.clusterer.uses_covariance or self.clusterer.uses_noise
        reads = reads or self.combine == "precision" or self.refit == "evidence"
        return self.curvature if reads else "none"

    @property
    def needs(self) -> tuple[str, ...]:
        """The fields of an upload that leave a user (curvature or inverse_trace, by size)."""
        if self.clusterer.uses_terms:
            return ("n_samples", *TERM_FIELDS, *(() if self.short_terms else ("observations",)))
        more = () if self.sends == "none" else ("curvature", "dispersion", "inverse_trace")
        return ("theta", "n_samples", *more)

    # -- JSON ----------------------------------------------------------------------------------

    def to_json(self, *, described: bool = False) -> dict[str, Any]:
        """A dict for JSON; ``described`` takes the text of a clusterer that cannot be written."""
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.compare}
        return own | {"clusterer": self.clusterer.to_json(described=described)}

    @classmethod
    def from_json(cls, words: Any) -> Method:
        """What :meth:`to_json` wrote; a ValueError says what is wrong with other words."""
        if isinstance(words, dict) and "clusterer" in words:
            words = {**words, "clusterer": ClustererSpec.from_json(words["clusterer"])}
        return fields_from_json(cls, words)


def _one_of(name: str, value: Any, known: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name}={value!r} is not one of {', '.join(map(repr, known))}.")


def _check_refit(refit: Any) -> None:
    number = isinstance(refit, Real) and not isinstance(refit, bool)
    if number and math.isfinite(refit) and refit >= 0:
        return
    if refit is not None and refit not in REFITS:
        raise ValueError(
            f"refit={refit!r} is not one of None, 'evidence', 'cv' and a finite number >= 0."
        )
