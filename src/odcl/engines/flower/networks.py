"""PyTorch modules: as a frozen feature map under odcl's own head, or averaged whole, by group.

``frozen_features(load, network)``   the rows are what the network makes of them; risk, method and
                                     everything else are as without it (full data terms)
``ModuleFit(make, train)``           users train a module and send its parameters, a bare model

PyTorch is imported by the caller who makes the module: anything with ``state_dict`` and
``load_state_dict`` will do, of tensors or NumPy arrays.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from odcl._typing import Array, Floats
from odcl.data.federation import Federation, positions
from odcl.engines.files.envelope import Refused
from odcl.engines.flower.fits import Fit, NodeData, NodeModels
from odcl.engines.flower.request import MOST_BARE, expect_bare
from odcl.engines.wire import Agreed
from odcl.exchange.upload import Uploads

State = Mapping[str, Any]  # name -> tensor or array
Train = Callable[[Any, Floats, Array], None]  # (module, X, y): trains it in place
LossOf = Callable[[Any, Floats, Array], float]  # (module, X, y): mean loss of the rows


# -- a frozen network as feature map ---------------------------------------------------------------


def frozen_features(
    load: Callable[[Any], Any], network: Any, *, batch_size: int = 256, sha256: str | None = None
) -> Callable[[Any], Any]:
    """A ``load`` whose features are what ``network`` makes of the features of another.

    ``network`` is a PyTorch module, which is put into evaluation mode and run without gradients, or
    any function from a batch of rows to an array. Rows may have any shape that it takes; what it
    gives is flattened to one vector per row. All nodes must use the same network: with ``sha256``,
    its :func:`network_digest`, a node with another one sends nothing.
    """
    if sha256 is not None and (found := network_digest(network)) != sha256:
        raise ValueError(
            f"This node's network has the digest {found}, and {sha256} is agreed on: features of "
            "different networks cannot be compared. Load the agreed weights."
        )

    def through(X: Any) -> Floats:
        rows = np.asarray(X)
        with _frozen(network) as run:
            parts = [run(rows[i : i + batch_size]) for i in range(0, len(rows), batch_size)]
        return np.concatenate([part.reshape(len(part), -1) for part in parts])

    def each(given: Any) -> Any:
        """(X, y), (X, y, X_test, y_test), rows of a federation, or all of these by user."""
        if isinstance(given, NodeData):
            test = None if given.test is None else each(given.test)
            return NodeData(each(given.train), test)
        if isinstance(given, Federation):
            return replace(given, X=through(given.X))
        if isinstance(given, Mapping):
            return {user: each(rows) for user, rows in given.items()}
        if isinstance(given, tuple) and len(given) in (2, 4):
            some = [len(y) > 0 for y in given[1::2]]
            return tuple(
                through(part) if i % 2 == 0 and some[i // 2] else part
                for i, part in enumerate(given)
            )
        return given  # NodeData.of says what is wrong with it

    return lambda context: each(load(context))


@contextmanager
def _frozen(network: Any) -> Iterator[Callable[[Array], Floats]]:
    """The network as a function of arrays; it is left in the mode in which it was."""
    if not hasattr(network, "state_dict"):
        yield lambda rows: np.asarray(network(rows), dtype=np.float64)
        return
    import torch

    one = next((v for v in network.state_dict().values() if v.is_floating_point()), torch.zeros(()))

    def run(rows: Array) -> Floats:
        out = network(torch.as_tensor(rows).to(device=one.device, dtype=one.dtype))
        return np.asarray(out.double().cpu().numpy(), dtype=np.float64)

    was = network.training
    network.eval()
    try:
        with torch.no_grad():
            yield run
    finally:
        network.train(was)


def network_digest(network: Any) -> str:
    """SHA-256 of a module's parameters and buffers, with their names, types and shapes."""
    digest = hashlib.sha256()
    for name, value in network.state_dict().items():
        array = np.ascontiguousarray(_array(value))
        digest.update(f"{name} {value.dtype} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


# -- whole modules, averaged by group --------------------------------------------------------------


class ModuleFit(Fit):
    """Users train a module of their own; modules are averaged inside each group.

    make : builds the module. Averages make sense among modules that started alike, so it is called
        under the seed that the server sends, and every user starts from the same parameters.
    train : ``train(module, X, y)`` trains it in place on one user's rows (arrays).
    loss : ``loss(module, X, y)``, the mean loss of rows that are held out.

    All floating-point entries of the ``state_dict`` are sent, running means of normalisation
    included, as one flat vector of float64; their types are restored. Whole numbers, such as
    ``num_batches_tracked``, are not: they stay as ``make`` has built them.
    """

    def __init__(self, make: Callable[[], Any], train: Train, loss: LossOf | None = None) -> None:
        self.make, self.train, self.loss_of = make, train, loss

    @cached_property
    def n_parameters(self) -> int:
        """How many numbers a model has."""
        n = sum(int(np.prod(v.shape)) for v in _floating(self._built(0).state_dict()).values())
        if not 0 < n <= MOST_BARE:
            raise ValueError(
                f"The module has {n:,} floating-point numbers in its state, and 1 to {MOST_BARE:,} "
                "can be sent: freeze most of it, and send a head (frozen_features)."
            )
        return n

    def _built(self, seed: int) -> Any:
        with _seeded(seed):
            return self.make()

    def module(self, theta: Floats, seed: int = 0) -> Any:
        """A module with these parameters."""
        built = self._built(seed)
        set_flat(built, theta)
        return built

    def fitted(self, found: NodeModels, user: Any) -> Any:
        """The module of one user, with the model that the user ended up with."""
        return self.module(found.model(user), found.request.seed)

    # -- the one shot --------------------------------------------------------------------------

    def uploads(self, rows: Federation, agreed: Agreed, *, seed: int) -> Uploads:
        """The parameters of each user's module, and its number of rows."""
        self._expect_bare(agreed)
        theta = np.empty((rows.n_users, agreed.dim))
        for i, (_, X, y) in enumerate(rows):
            built = self._built(seed)
            with _seeded(seed):
                self.train(built, X, y)
            theta[i] = flat(built)
        return Uploads(rows.users, rows.n_samples, theta)

    def loss(self, test: Federation, train: Federation, agreed: Agreed, theta: Floats) -> float:
        """Mean loss of rows held out, each by its user's module; NaN if no loss was given."""
        at = positions(train.users, test.users)
        known = np.flatnonzero(at >= 0)
        if self.loss_of is None or len(known) == 0:
            return float("nan")
        rows = [test.rows(i) for i in known.tolist()]
        models = [self.module(theta[at[i]]) for i in known.tolist()]
        pairs = zip(models, rows, strict=True)
        each = [self.loss_of(model, test.X[own], test.y[own]) for model, own in pairs]
        return float(np.average(each, weights=test.n_rows[known]))

    def _expect_bare(self, agreed: Agreed) -> None:
        expect_bare(agreed.method, "A module")
        if agreed.dim != self.n_parameters:
            raise Refused(
                f"The module has {self.n_parameters:,} parameters, and models of {agreed.dim:,} "
                "are asked for: the server's risk must be None."
            )


# -- states as vectors -----------------------------------------------------------------------------


def flat(module: Any) -> Floats:
    """The floating-point entries of a module's state as one vector of float64."""
    parts = [_array(value).ravel() for value in _floating(module.state_dict()).values()]
    return np.concatenate(parts, dtype=np.float64) if parts else np.zeros(0)


def set_flat(module: Any, theta: Floats) -> None:
    """Set a module's floating-point entries, in their own types and shapes; others stay."""
    state, at = dict(module.state_dict()), 0
    sizes = {name: int(np.prod(value.shape)) for name, value in _floating(state).items()}
    if theta.shape != (sum(sizes.values()),):
        raise ValueError(
            f"A model of shape {theta.shape} is no state of this module, which has "
            f"{sum(sizes.values()):,} numbers."
        )
    for name, size in sizes.items():
        old = state[name]
        state[name] = _like(theta[at : at + size].reshape(tuple(old.shape)), old)
        at += size
    module.load_state_dict(state)


def _floating(state: State) -> dict[str, Any]:
    """The entries that are averaged, in their order."""
    return {name: value for name, value in state.items() if _is_floating(value)}


def _is_floating(value: Any) -> bool:
    if hasattr(value, "is_floating_point"):
        if value.is_complex():
            raise ValueError("A module with complex parameters cannot be averaged here.")
        return bool(value.is_floating_point())
    return np.asarray(value).dtype.kind == "f"


def _array(value: Any) -> Array:
    """A tensor or array as an array; half precision as float64, which holds it."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = (value.double() if value.is_floating_point() else value).numpy()
    return np.asarray(value)


def _like(array: Floats, old: Any) -> Any:
    if hasattr(old, "detach"):
        import torch

        return torch.from_numpy(np.array(array)).to(device=old.device, dtype=old.dtype)
    return array.astype(np.asarray(old).dtype)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """PyTorch's own draws from this seed; elsewhere they go on as they were."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield
