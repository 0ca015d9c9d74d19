"""Rounds, the server's side: how the users' answers become the next models."""

from __future__ import annotations

import warnings
from functools import partial

import numpy as np

from odcl._typing import Floats, Ints
from odcl.clustering.labels import sum_by_cluster
from odcl.rounds.users import Answers, StepSize, resolve_step
from odcl.server.combine import average_by_cluster


def start_rng(seed: int) -> np.random.Generator:
    """The stream from which first models are drawn."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0,)))


def random_models(shape: tuple[int, ...], seed: int) -> Floats:
    """First models that know nothing: N(0, 1) per coordinate."""
    return start_rng(seed).standard_normal(shape)


# -- IFCA ------------------------------------------------------------------------------------------


def combine_gradients(models: Floats, answers: Answers, step: float) -> Floats:
    """Option I: the sum over the users of a model, divided by all users."""
    m = len(answers.labels)
    return models - step / m * _sums(answers.replies, answers, models.shape)


def combine_models(models: Floats, answers: Answers, step: float) -> Floats:
    """Option II: the mean over the users of a model; a model without users stays."""
    ones = np.ones((*answers.labels.shape, 1))
    counts = _sums(ones, answers, (*models.shape[:2], 1))
    sums = _sums(answers.replies, answers, models.shape)
    return np.where(counts > 0, sums / np.maximum(counts, 1.0), models)


def _sums(values: Floats, answers: Answers, shape: tuple[int, ...]) -> Floats:
    """Sum of the users' values for each model of each start, (starts, n_models, ...)."""
    starts, k, size = shape
    which = answers.labels + k * np.arange(starts)
    total = np.zeros((starts * k, size))
    found = sum_by_cluster(values.reshape(-1, size), which.ravel())
    total[: len(found)] = found
    return total.reshape(shape)


# -- a few rounds inside clusters ------------------------------------------------------------------


def steps_in_clusters(L: Floats, labels: Ints, step_size: StepSize = "auto") -> Floats:
    """The step of each cluster, (n_clusters,), from its users' smoothness ``L``, (n_users,).

    The cluster's risk is as smooth as the mean of its users' risks, so that 1 / mean L_i ("auto")
    is below 2/L_k; a ``step_size`` that is not below 2 / mean L_i is cut to 1 / mean L_i, with a
    warning.
    """
    mean = np.maximum(average_by_cluster(L[:, None], labels)[:, 0], 1e-300)
    safe = 1.0 / mean
    wanted = np.array([resolve_step(step_size, partial(float, own)) for own in mean])
    long = wanted >= 2.0 * safe
    if long.any():
        warnings.warn(
            f"step_size={step_size} is not below 2/L in {int(long.sum())} of {len(mean)} clusters "
            f"(L up to {mean.max():.3g}), where descent would run away: it is cut to 1/L there.",
            UserWarning,
            stacklevel=4,
        )
    return np.where(long, safe, wanted)


def descend_in_clusters(centers: Floats, gradients: Floats, labels: Ints, steps: Floats) -> Floats:
    """One step of each cluster on the mean of its users' risks, (n_clusters, dim).

    theta_k <- theta_k - step_k * mean of grad f_i(theta_k) over i in C_k
    """
    return centers - steps[:, None] * average_by_cluster(gradients, labels)
