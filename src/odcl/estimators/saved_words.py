"""The words of a saved model: settings, losses, classes and ids as JSON and back, checked."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from odcl._typing import Array
from odcl.risk.loss import Loss
from odcl.risk.losses import Huber, Logistic, Multinomial, Poisson, Squared

# The multinomial keeps a basis of n_classes^2 numbers: no file may ask for more than 200 MB.
MOST_CLASSES = 5000
_LOSSES: dict[str, type[Loss]] = {
    kind.name: kind for kind in (Squared, Logistic, Poisson, Huber, Multinomial)
}


def expect(holds: bool, why: str) -> None:
    """Refuse a value read from a file; the reader adds the file's name."""
    if not holds:
        raise ValueError(why)


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_size(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value) and value >= 0


# -- settings ------------------------------------------------------------------------------------


def setting_to_json(value: Any) -> Any:
    """Simple settings as they are, losses by name; other objects (clusterers, solvers) as text."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return {"object": repr(value)}
    if isinstance(value, str | int | float | bool | None):
        return value
    if type(value) in _LOSSES.values():
        return {"loss": loss_to_json(value)}
    text = repr(value)
    return {"object": type(value).__name__ if " at 0x" in text else text}


def setting_from_json(value: Any, n_classes: int | None) -> Any:
    if not isinstance(value, dict):
        return value
    return loss_from_json(value["loss"], n_classes) if "loss" in value else str(value["object"])


def number_to_json(value: float) -> float | str:
    """JSON has no word for infinity and NaN; ``float`` reads the text again."""
    return float(value) if math.isfinite(value) else repr(float(value))


# -- losses and classes --------------------------------------------------------------------------


def loss_to_json(loss: Loss) -> dict[str, Any]:
    if type(loss) not in _LOSSES.values():
        raise ValueError(
            f"A loss of your own ({type(loss).__name__}) cannot be written without its code: save "
            "models of the losses " + ", ".join(_LOSSES) + ", or keep the coefficients (models_)."
        )
    words: dict[str, Any] = {"name": loss.name}
    if isinstance(loss, Huber):
        words["delta"] = loss.delta
    if isinstance(loss, Multinomial):
        expect(loss.n_classes <= MOST_CLASSES, f"Models of {MOST_CLASSES} classes are the largest.")
        words["n_classes"] = loss.n_classes
    return words


def loss_from_json(words: Any, n_classes: int | None) -> Loss:
    """The loss, if it is one for so many classes (None: for numbers)."""
    kind = _LOSSES[words["name"]]
    fits = n_classes in ((2,) if kind is Logistic else (None,))
    if kind is Multinomial:
        fits = n_classes is not None and words["n_classes"] == n_classes
    expect(fits, f"a {kind.name} loss and {n_classes or 'no'} classes")
    if kind is Huber:
        expect(is_size(words["delta"]), f"Huber's delta is {words['delta']!r}")
        return Huber(words["delta"])
    return Multinomial(words["n_classes"]) if kind is Multinomial else kind()


def classes_to_json(classes: Array) -> dict[str, Any]:
    values = classes.tolist()
    if not all(isinstance(v, str | int | float | bool) for v in values):
        raise ValueError(
            f"Class {values[0]!r} cannot be written: classes on disk are text or numbers. Fit with "
            "such labels, e.g. with their text."
        )
    return {"dtype": classes.dtype.str, "values": values}


def classes_from_json(words: Any) -> Array:
    values, dtype = words["values"], np.dtype(words["dtype"])
    expect(dtype.kind in "biufUO", f"classes of type {dtype}")
    expect(isinstance(values, list) and len(values) >= 2, "a classifier has two classes or more")
    expect(len(values) <= MOST_CLASSES, f"more than {MOST_CLASSES} classes")
    expect(all(isinstance(v, str | int | float | bool) for v in values), "a class is no label")
    if dtype.kind == "U":  # a type of 10^9 letters would take as many bytes a class
        dtype = np.dtype(f"U{max(len(str(v)) for v in values)}")
    classes = np.array(values, dtype=dtype)
    expect(classes.tolist() == values, "the classes are not of their type")
    expect(len(set(values)) == len(values), "a class is there twice")
    return classes


# -- ids -----------------------------------------------------------------------------------------


def id_to_json(user: Any) -> Any:
    if isinstance(user, tuple):
        return {"tuple": [id_to_json(part) for part in user]}
    if isinstance(user, float) and not math.isfinite(user):
        return {"float": repr(user)}
    if isinstance(user, str | int | float | bool | None):
        return user
    raise ValueError(
        f"User {user!r} cannot be written: ids on disk are text, numbers, None, or tuples of "
        "these. Fit with such ids, e.g. with their text."
    )


def id_from_json(value: Any) -> Any:
    expect(not isinstance(value, list), "an id is a list")
    if not isinstance(value, dict):
        return value
    if "tuple" in value:
        return tuple(id_from_json(part) for part in value["tuple"])
    return float(value["float"])
