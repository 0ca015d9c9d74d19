"""Users after the fit: new ones, known ones with more rows, and a diagnosis of all of them."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d

from odcl._typing import Array, Bools, Floats, Ints
from odcl.data.federation import Federation, as_ids, check_owners, owner_ids, positions
from odcl.data.frames import FrameInput
from odcl.errors import InputError, Setting, show
from odcl.estimators.for_newcomers import Known, OnRequest
from odcl.exchange.upload import Uploads
from odcl.local.receive import Received
from odcl.method import Method, most_parameters
from odcl.server.assign import Assignment
from odcl.server.assign_models import GroupStatistics, assign_rows, place_of, with_more_rows
from odcl.server.result import ServerStep
from odcl.threads import one_thread

if TYPE_CHECKING:
    from odcl.diagnose import Diagnosis, Drift
    from odcl.engines.dask.buckets import UserFiles
    from odcl.evaluate.scores import Comparison


class LaterUsers(FrameInput):
    """A fitted estimator that assigns, adds and updates users."""

    users_: Array
    labels_: Ints
    theta_: Floats
    probability_: Floats
    n_rows_: Ints
    uploads_: Uploads | None
    _for_newcomers: Known | OnRequest

    user_files_: UserFiles | None = None  # of a table in pieces: where all users' models are
    _batches: frozenset[str] = frozenset()  # digests of the rows that update_user was given

    _adding: ClassVar = threading.Lock()

    @property
    def groups_(self) -> GroupStatistics:
        """The groups as users who come later are measured by them."""
        return self._for_newcomers.groups

    @property
    def pooled_theta_(self) -> Floats:
        """One model for all rows, in standardized units."""
        return self._for_newcomers.pooled_theta

    @property
    def n_users_(self) -> int:
        """All users, those among them whose models lie in files."""
        if self.user_files_ is None:
            return len(self.users_)
        return self.user_files_.n_users + len(self.users_) - self.user_files_.n_examples

    def _knows(self, ids: Array) -> Bools:
        """Which of these users have a model, here or in the files of a table in pieces."""
        if self.user_files_ is None:
            return positions(self.users_, ids) >= 0
        from odcl.estimators.scattered import with_users_of

        return positions(with_users_of(self, ids).users_, ids) >= 0

    def _in_files(self, ids: Array) -> Bools:
        """Which of these users have their models in the files of a table in pieces.

        There predictions look for them, whether or not the estimator holds them as examples too.
        """
        if self.user_files_ is None:
            return np.zeros(len(ids), np.bool_)
        at = positions(self.users_, ids)
        found: Bools = at < self.user_files_.n_examples  # those who were added come after these
        if (at < 0).any():
            found[at < 0] = self._knows(ids[at < 0])
        return found

    def assign(self, X: Any, y: Any) -> Assignment:
        """Which group a new user with these rows belongs to, and its model.

        ``X`` holds the rows of one user, with or without the users' column. Nothing is kept; see
        :meth:`add_user`.
        """
        return self._assign(X, y)

    def _assign(self, X: Any, y: Any, user: Any = None) -> Assignment:
        check_is_fitted(self, "theta_")
        rows, target = self._rows_of_one(X, y, user)
        found = self._place(rows, target)
        coef, intercept = self._in_table_units(found.theta[None])
        return replace(found, coef=coef[0], intercept=intercept[0])

    def _place(self, rows: Floats, target: Floats) -> Assignment:
        """Where a user with these rows, scaled and encoded, belongs."""
        with one_thread(rows.shape[1]):
            if self.mixture_ is not None:
                from odcl.server.assign import assign_mixed

                return assign_mixed(rows, target, self.risk_, self.mixture_, self.method_)
            return assign_rows(rows, target, self.risk_, self.groups_, self.method_)

    def _more_rows(
        self, at: int, rows: Floats, target: Floats
    ) -> tuple[Uploads, tuple[int, Floats, float], Received | None]:
        """The upload of a known user with more rows, its place (label, model, how surely)."""
        assert self.uploads_ is not None
        old = self.uploads_[at]
        if self.mixture_ is not None:
            from odcl.server.assign import place_mixed, with_more_terms

            more = self._place(rows, target)
            found = place_mixed(with_more_terms(old, more.upload), self.mixture_)
            return found.upload, (found.label, found.theta, found.probability), found.received
        upload = with_more_rows(old, rows, target, self.risk_)
        place = place_of(upload, self.groups_, self.method_.refit, self.labels_[at])
        if place[0] == self.labels_[at] and (self.labels_ == place[0]).sum() == 1:
            place = place[0], upload.models[0], place[2]  # alone there, as in the fit
        return upload, place, None

    def _digest(self, at: int, rows: Floats, target: Floats) -> str:
        """Of a user's rows in any order; who lacks the groups' models, its key, cannot try any."""
        table = np.column_stack([rows, target]) + 0.0  # -0 is 0
        content = f"{at} ".encode() + table[np.lexsort(table.T)].tobytes()
        key = hashlib.sha256(self.cluster_theta_.tobytes()).digest()  # updates leave them alone
        return hashlib.blake2b(content, key=key, digest_size=8).hexdigest()

    def _has_just(self, at: int, rows: Floats, target: Floats) -> bool:
        """Does the upload of a user tell of these rows and no others?"""
        assert self.uploads_ is not None
        old = self.uploads_[at]
        told = old.n_samples if old.observations is None else old.observations
        if not len(rows) == self.n_rows_[at] == told[0]:
            return False
        kept, new = old.to_arrays(), self._place(rows, target).upload.to_arrays()
        each = (np.allclose(kept[n], new[n], 1e-6, 1e-9) for n in kept.keys() & new.keys())
        return all(each)

    def add_user(self, user: Any, X: Any, y: Any) -> Assignment:
        """Assign a new user and remember it: ``predict`` knows it from now on.

        A user that fits no group keeps its own local model and has label -1. The other users'
        models, the groups and ``result_`` stay as they were.
        """
        found = self._assign(X, y, user)
        self._add_assigned([user], [found])
        return found

    def _add_assigned(self, users: Any, found: Sequence[Assignment]) -> None:
        """Remember new users where they were assigned."""
        check_is_fitted(self, "theta_")
        if not self._has_users:
            raise ValueError(
                "This model was fitted without users, so there are no groups to join: fit with "
                "users=... first."
            )
        ids = owner_ids(users)
        with self._adding:  # one thread at a time reads, changes and writes
            known = self._knows(ids)
            if known.any():
                raise ValueError(
                    f"User {ids[known].tolist()[0]!r} is known already: give the new user another "
                    "id, or give the known one more rows with update_user."
                )
            self.labels_ = np.append(self.labels_, [one.label for one in found])
            self.probability_ = np.append(self.probability_, [one.probability for one in found])
            rows = [int(one.upload.n_samples[0]) for one in found]
            self.n_rows_ = np.append(self.n_rows_, rows)
            self.theta_ = np.vstack([self.theta_, *(one.theta for one in found)])
            for one in found if self.mixture_ is not None else ():
                for name, values in self._sure_of(one.received).items():
                    setattr(self, name, np.concatenate([getattr(self, name), values[None]]))
            everybody = as_ids([*self.users_.tolist(), *ids.tolist()])
            if self.uploads_ is not None:
                for one in found:
                    self.uploads_ = self.uploads_.joined(one.upload)
                self.uploads_ = replace(self.uploads_, users=everybody)
            self.users_ = everybody  # last: whoever predicts meanwhile finds no user without model

    @staticmethod
    def _sure_of(received: Received | None) -> dict[str, Any]:
        """The attributes that say how sure one user's model is, if anything does."""
        if received is None:
            return {}
        named = {
            "covariance_": received.covariance,
            "noise_": received.noise,
            "dof_": received.dof,
        }
        return {name: values[0] for name, values in named.items() if values is not None}

    def update_user(
        self, user: Any, X: Any, y: Any, *, all_rows: bool = False, again: bool = False
    ) -> int:
        """More rows of a user that is known: its group and its model follow. Its new label.

        The rows come on top of those it had, which its upload stands for: for the squared loss the
        answer is that of a fit of all its rows, elsewhere it is second order. With ``all_rows`` the
        rows are everything the user has. Other users and the groups' models stay as they were.
        Rows that the user was given before, or has from the fit and no others since, would count
        twice and are refused unless ``again``; only a table as a whole is known again.
        Of a fit in pieces only users that were added later can be updated.
        """
        check_is_fitted(self, "theta_")
        rows, target = self._rows_of_one(X, y, user)
        with self._adding:
            at = int(positions(self.users_, owner_ids([user]))[0])
            if self._in_files(owner_ids([user]))[0]:
                raise ValueError(
                    f"The model of user {user!r} lies in files, as the table came in pieces, and "
                    "these stay as they are: fit again, with its new rows in the table, or fit in "
                    "memory, where users can be updated."
                )
            if at < 0:
                raise ValueError(f"User {user!r} is not known: add it with add_user.")
            if all_rows:
                found = self._place(rows, target)
                place, upload = (found.label, found.theta, found.probability), found.upload
                received = found.received
            elif self.uploads_ is None:
                raise InputError(
                    "The users' uploads were too large to keep, so the old rows cannot be added to "
                    "the new ones: give all rows of the user, and say ",
                    *(Setting("all_rows", True), "."),
                )
            else:
                digest = self._digest(at, rows, target)
                if not again and (digest in self._batches or self._has_just(at, rows, target)):
                    raise InputError(
                        f"User {show(user)} has had just these rows ({len(rows)}) before: they ",
                        *("would count twice. Leave them out, or say ", Setting("again", True)),
                        " if they are new and only look the same.",
                    )
                upload, place, received = self._more_rows(at, rows, target)
                self._batches |= {digest}
            if self.uploads_ is not None:
                self.uploads_ = self.uploads_.replaced(at, upload)
            count = len(rows) + (0 if all_rows else self.n_rows_[at])
            new = dict(zip(("labels_", "theta_", "probability_"), place, strict=True))
            new |= {"n_rows_": count, **self._sure_of(received)}
            for name, value in new.items():  # new arrays: result_ holds the old ones
                values = getattr(self, name).copy()
                values[at] = value
                setattr(self, name, values)
        return int(self.labels_[at])

    def drift(self, X: Any, y: Any, users: Any = None) -> Drift:
        """Do the models still hold on new rows? A :class:`odcl.diagnose.Drift`; nothing changes."""
        check_is_fitted(self, "theta_")
        from odcl.diagnose.drift import drift_of
        from odcl.estimators.scattered import with_users_of

        X, users = self._owned_rows(X, users)
        y = self.risk_.loss.encode(self._encode_known(self._checked_target(column_or_1d(y))))
        check_consistent_length(X, y)
        ids = np.zeros(len(X), np.intp) if users is None else check_owners(users, len(X))
        rows = Federation.from_arrays(X, y, ids)
        by = with_users_of(self, rows.users)
        if by.mixture_ is None or by.covariance_ is None:
            raise self._without_mixture("Promises about new rows")
        return drift_of(by, rows)

    def _without_mixture(self, what: str) -> ValueError:
        """Why a model that is not of mixed groups lacks something."""
        asked, dim = Method.of(self.method, clusterer=self.clusterer), self.theta_.shape[1]
        why = asked.resolved(self.risk_, dim, self.n_users_).fallback
        most = most_parameters(self.risk_)
        if why and dim > most:
            return ValueError(f"{what} need at most {most} parameters; this model has {dim}.")
        why = why or f"this model was fitted by {self.method_.clusterer}"
        return ValueError(f"{what} need mixed groups, the default, and {why}.")

    def diagnose(
        self, *, comparison: Comparison | None = None, resamples: int = 20, seed: int = 0
    ) -> Diagnosis:
        """Is one shot enough for these users? See :func:`odcl.diagnose.diagnose`.

        Of a table in pieces the model holds 2,000 users, drawn by their ids, who are diagnosed.
        ``comparison``, from :func:`odcl.compare`, decides where the uploads cannot.
        """
        check_is_fitted(self, "theta_")
        from odcl.diagnose import diagnose_step

        if not self._whole:
            raise ValueError(
                "This model holds the users of one site, and groups were found with those of "
                f"others: they were diagnosed in the round. It said: {self.reason_}"
            )
        if self.uploads_ is None:
            raise ValueError(
                "This model was written without its users' uploads, which were too large to keep, "
                "and they are what is diagnosed: fit it again on its rows."
            )
        kept = np.flatnonzero(self.labels_ >= 0)  # added users that fit no group are in none
        labels = self.labels_[kept]
        step = ServerStep(
            self.users_[kept],
            labels,
            self.cluster_theta_,
            self.cluster_theta_[labels],
            self.rule_,
            self.reason_,
            "",
            tau2=self.tau2_,
            mixture=self.mixture_,
        )
        found = diagnose_step(
            self.uploads_.take(kept),
            step,
            self.method_,
            features=self._units,
            comparison=comparison,
            resamples=resamples,
            seed=seed,
        )
        total = self.n_users_
        return replace(found, of_users=total) if total > len(self.users_) else found
