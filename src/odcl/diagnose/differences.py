"""How users of a group still differ, in words: the same in a fit, its reason and its diagnosis."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

LEVEL = "(level)"  # the prediction for average features
MOST = 6  # coefficients named one by one


def differences_text(differences: Mapping[str, float], n_groups: int) -> str:
    """Which coefficients users of a group differ in, and by how much; empty: in none.

    ``differences`` are standard deviations in the table's units by name, 0 where users are the
    same.
    """
    where = differing(differences)
    if not where:
        return ""
    text = f"{'Users of a group still' if n_groups > 1 else 'Users'} differ in {where}"
    same = ["the level" if name == LEVEL else name for name, sd in differences.items() if sd == 0]
    if not same:
        return f"{text}."
    verb = "is" if len(same) == 1 else "are"
    return f"{text}; {_listed(same)} {verb} the same for all of them."


def differing(differences: Mapping[str, float]) -> str:
    """The coefficients that differ, the level first: 'the level (standard deviation 12) and b'."""
    vary = sorted(
        ((name, sd) for name, sd in differences.items() if sd > 0), key=lambda it: it[0] != LEVEL
    )
    return _listed(
        f"{'the level' if name == LEVEL else name} ({'standard deviation ' * (i == 0)}{sd:.3g})"
        for i, (name, sd) in enumerate(vary)
    )


def _listed(some: Iterable[str]) -> str:
    words = list(some)
    if len(words) > MOST:
        words = [*words[:MOST], f"{len(words) - MOST} more"]
    return " and ".join(part for part in (", ".join(words[:-1]), *words[-1:]) if part)
