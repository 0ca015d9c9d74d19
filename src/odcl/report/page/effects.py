"""Pictures of what columns do to predictions: curves, and shares of the predictions' variance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from odcl._typing import Floats, Ints
from odcl.fitted.predict import Effect, common_model
from odcl.fitted.value import Fitted
from odcl.mixed.differences import open_curves
from odcl.report.page.facts import CurveFacts
from odcl.report.page.render import Markup, el
from odcl.report.page.svg import NAME_ROOM, ROW_TOP, WIDTH, Frame, picture, short

POINTS, MOST_CURVES = 61, 12
MOST_THIN = 40  # users whose curves are drawn
Z90 = 1.645
SLOPES = " Of a column that acts in a curve it is the slope of its line."


def curve_facts(fitted: Fitted, who: Ints, classes: list[str]) -> list[CurveFacts]:
    """The open curves in the table's units, of what all have in common and of the users ``who``."""
    if fitted.mixed is None:
        return []
    theta, cov = common_model(fitted)
    adds_to = {"poisson": "the log-rate"}.get(fitted.risk.loss.name, "the prediction")
    if fitted.risk.loss.classification:
        adds_to = "the log-odds" + f" of {classes[-1]}" * (len(classes) == 2)
    models, found = fitted.users.model[who], list[CurveFacts]()
    shape = theta.size // fitted.risk.n_outputs, fitted.risk.n_outputs
    told = open_curves(fitted.mixed, fitted.risk, fitted.units)
    for curve, one in zip(fitted.curves, told, strict=True):
        effect = Effect.of(fitted, curve.of, POINTS)
        value, half = effect.values(theta)[0], Z90 * effect.errors(cov)
        own = models.reshape(len(who), *shape)[:, effect.own] @ effect.turn.T
        alike = not (one.differs or one.sloped)
        for k in range(value.shape[1]):
            name = f"{one.name} [{classes[k]}]" if value.shape[1] > 1 else one.name
            lines = value[:, k], value[:, k] - half[:, k], value[:, k] + half[:, k]
            arrays = *lines, effect.rows, own[..., k]
            found.append(CurveFacts(name, effect.x, *arrays, alike, adds_to))
    return found[:MOST_CURVES]


def curve_figure(at: int, c: CurveFacts) -> tuple[Markup, str]:
    """A curve with its band and some users' own, and what is to be said of it."""
    some = np.linspace(0, len(c.own) - 1, min(len(c.own), MOST_THIN)).astype(int)
    thin = np.empty((0, len(c.x))) if c.alike else c.own[some] @ c.rows.T
    every = np.vstack([c.low, c.high, thin])
    low, high = float(np.nanmin(every)), float(np.nanmax(every))
    room = 0.05 * max(high - low, 1e-12)
    frame = Frame(float(c.x[0]), float(c.x[-1]), low - room, high + room)

    def path(x: Floats, y: Floats, kind: str) -> Markup:
        places = zip(map(frame.x, x.tolist()), map(frame.y, y.tolist()), strict=True)
        return el("path", d="M" + "L".join(f"{u:.1f},{v:.1f}" for u, v in places), class_=kind)

    lines = [path(c.x, y, "thin") for y in thin]
    lines.append(path(np.append(c.x, c.x[::-1]), np.append(c.low, c.high[::-1]), "band"))
    lines.append(path(c.x, c.common, "theirs thick"))
    axes = frame.axes(short(c.name, 54), short(f"added to {c.adds_to}", 54))
    about = (
        f"What it adds to {c.adds_to}, relative to its average. The thick line is what all users "
        f"have in common, with its 90 % band{'; thin lines are users' * (len(thin) > 0)}."
    )
    title = f"The curve of {c.name}. {about}"
    shown = picture(f"curve{at}", title, axes, *lines, data_y0=frame.y0, data_y1=frame.y1)
    return shown, about


def share_figure(shares: Sequence[tuple[str, float]]) -> tuple[Markup, str]:
    """Shares as bars, and what they are."""
    left, step, parts = 1.5 * NAME_ROOM, 24, list[Markup]()
    wide = (WIDTH - 60 - left) / max(abs(share) for _, share in shares)
    for at, (name, share) in enumerate(shares):
        y, size = ROW_TOP + step * at, wide * abs(share)
        box = {"x": left, "y": y, "width": f"{size:.1f}", "height": step - 8}
        parts += [
            el("text", short(name, 26), x=left - 8, y=y + 12, class_="label end"),
            el("rect", class_="option chosen" if share > 0 else "option", **box),
            el("text", f"{100 * share:.3g} %", x=f"{left + size + 5:.1f}", y=y + 12, class_="tick"),
        ]
    title = "; ".join(f"{name}: {100 * share:.3g} %" for name, share in shares)
    about = (
        "Shares of the variance of all predictions. Columns carry what all users have in common; a "
        "share below zero works against the others."
    )
    return picture("shares", title, *parts, height=ROW_TOP + step * len(shares)), about
