"""Fits whose results are kept in files beside this one: real tables, the paper's worlds, commands.

Only public names and commands are used, so that the house can be rebuilt around them.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import odcl
from odcl.cli.main import run_command
from tests.helpers import SHARED_DATA

REAL = [
    "cigar",
    "diamonds",
    "gasoline",
    "grunfeld",
    "males",
    "nlschools",
    "produc",
    "sleepstudy",
    "sumhes",
    "verbagg",
]
NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")


def kept(values: Any) -> list[Any]:
    """A short record of an array: its shape, sums that see every entry, and a few entries."""
    array = np.asarray(values, dtype=float)
    flat = np.nan_to_num(array.ravel(), nan=-7.0)
    weight = np.cos(np.arange(flat.size))
    few = flat[:: max(1, flat.size // 12)][:12]
    return [list(array.shape), float(flat.sum()), float(weight @ flat), few.tolist()]


def of_model(model: Any, X: Any) -> dict[str, Any]:
    """What a fitted estimator says: groups, models, differences, predictions."""
    predict = getattr(model, "predict_proba", model.predict)
    return {
        "groups": model.n_clusters_,
        "labels": kept(model.labels_),
        "coef": kept(model.coef_),
        "intercept": kept(model.intercept_),
        "group_coef": kept(model.group_coef_),
        "differences": model.differences_,
        "probability": kept(model.probability_),
        "predictions": kept(predict(X)),
        "rule": model.rule_,
    }


# -- tables ----------------------------------------------------------------------------------------


def real_table(name: str) -> dict[str, Any]:
    table = pd.read_csv(SHARED_DATA / "tables" / f"{name}.csv", dtype={"user": str})
    X, y = table.drop(columns="target"), table["target"]
    kind = odcl.ODCLClassifier if set(y.unique()) <= {0, 1} else odcl.ODCLRegressor
    return of_model(kind(users="user").fit(X, y), X)


def wards(seed: int, n_users: int = 24, *, first: int = 0) -> pd.DataFrame:
    """A table as people have them: a category, a gap, a column constant within users, odd sizes."""
    rng = np.random.default_rng(seed)
    rows = rng.integers(3, 30, n_users)
    who = np.repeat(np.arange(n_users), rows)
    group = np.arange(n_users) % 2
    age = rng.normal(60, 15, len(who)).round()
    kind = rng.choice(["a", "b", "c"], len(who), p=[0.6, 0.35, 0.05])
    beds = rng.integers(10, 40, n_users)[who]
    stay = 3 + 0.08 * age * np.where(group[who], 1, -0.5) + 1.5 * (kind == "b")
    stay += rng.normal(size=n_users)[who] + rng.normal(size=len(who))
    names = np.array([f"ward-{first + i:02d}" for i in range(n_users)])
    table = pd.DataFrame({"ward": names[who], "age": age, "kind": kind, "beds": beds, "stay": stay})
    table["left"] = np.where(stay + rng.normal(size=len(who)) > stay.mean(), "yes", "no")
    return table.sample(frac=1, random_state=seed)


def messy(loss: str, **settings: Any) -> dict[str, Any]:
    table = wards(1)
    X = table.drop(columns=["stay", "left"])
    if loss == "logistic":
        return of_model(odcl.ODCLClassifier(users="ward", **settings).fit(X, table["left"]), X)
    y = table["stay"].clip(lower=0).round() if loss == "poisson" else table["stay"]
    model = odcl.ODCLRegressor(loss, users="ward", **settings).fit(X, y)
    found = of_model(model, X)
    if loss == "squared" and not settings:
        new = wards(2, 2, first=90)
        mine = new["ward"] == "ward-90"
        model.add_user("ward-90", new[mine].drop(columns=["stay", "left"]), new[mine]["stay"])
        more = wards(3, 1)
        model.update_user("ward-00", more.drop(columns=["stay", "left"]), more["stay"])
        found["later"] = of_model(model, X)
    return found


# -- the paper's worlds ----------------------------------------------------------------------------


def paper(method: odcl.Method, risk: str = "squared", n_users: int = 40) -> dict[str, Any]:
    if risk == "squared":
        world = odcl.linear_federation(n_users, 60, n_clusters=4)
    else:
        world = odcl.logistic_federation(n_users, 60)
    result = odcl.fit(world, odcl.Risk(risk), method, seed=3)
    return {
        "labels": kept(result.labels),
        "models": kept(result.models),
        "centers": kept(result.centers),
        "summary": NUMBER.findall(result.summary()),
    }


def many_users() -> dict[str, Any]:
    """Above 2,000 users groups are found on a sample."""
    result = odcl.fit(
        odcl.linear_federation(2400, 25, n_clusters=4), odcl.Risk("squared"), odcl.Method()
    )
    return {"labels": kept(result.labels), "models": kept(result.models)}


# -- commands --------------------------------------------------------------------------------------


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def command(line: str) -> list[str]:
    """The numbers that a command prints, in their order: its sentences may become better."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run_command([*line.split(), "--quiet"])
    assert code == 0, f"odcl {line}: {err.buffer.getvalue().decode()}"
    out.seek(0)
    text = re.sub(r"\b[0-9a-f]{12,}\b|\d{4}-\d\d-\d\d\S*|\S*\d[\d:]+ UTC", "", out.read())
    return [number for number in NUMBER.findall(text) if number]


def csv_numbers(path: str) -> dict[str, Any]:
    table = pd.read_csv(path)
    return {str(name): kept(table[name]) for name in table.select_dtypes("number").columns}


def commands(folder: Path) -> dict[str, Any]:
    """A table from fit to update, in memory."""
    with inside(folder):
        wards(1).to_csv("wards.csv", index=False)
        wards(2, 3, first=90).to_csv("new.csv", index=False)
        wards(4, 5).to_csv("more.csv", index=False)
        found: dict[str, Any] = {
            "fit": command("fit wards.csv --user ward --target stay --drop left --out run")
        }
        found["predict"] = command("predict run more.csv --interval 0.9 --out predictions.csv")
        found["predictions"] = csv_numbers("predictions.csv")
        found["diagnose"] = command("diagnose run")
        found["drift"] = command("diagnose run --table more.csv")
        found["assign"] = command("assign run new.csv --add")
        found["update"] = command("update run more.csv")
        found["later"] = command("predict run more.csv --out later.csv")
        found["later_predictions"] = csv_numbers("later.csv")
        found["yes_or_no"] = command("fit wards.csv --user ward --target left --out yes")
    return found


def pieces(folder: Path) -> dict[str, Any]:
    """The same table in three files, on Dask."""
    with inside(folder):
        table = wards(1).drop(columns="left")
        Path("folder").mkdir()
        for i in range(3):
            table[i::3].to_parquet(f"folder/{i}.parquet")
        found: dict[str, Any] = {
            "fit": command("fit folder --user ward --target stay --engine dask --out run")
        }
        found["predict"] = command("predict run folder --out predictions.csv")
        found["predictions"] = csv_numbers("predictions.csv")
    return found


def round_by_file(folder: Path) -> dict[str, Any]:
    """A card, three hospitals, one round, a model at one of them."""
    with inside(folder):
        command("task new --features age,beds --target stay --out task.toml")
        Path("uploads").mkdir()
        for i, site in enumerate(("north", "east", "south")):
            wards(10 + i, 8).drop(columns=["kind", "left"]).to_csv(f"{site}.csv", index=False)
            command(
                f"site fit task.toml {site}.csv --site {site} --user ward "
                f"--out uploads/{site}.upload"
            )
        found: dict[str, Any] = {"combine": command("combine task.toml uploads --out round")}
        found["receive"] = command(
            "site receive task.toml uploads/north.upload round/north.download north.csv "
            "--user ward --out model"
        )
        command("predict model north.csv --out predictions.csv")
        found["predictions"] = csv_numbers("predictions.csv")
    return found


IN_MEMORY: dict[str, Callable[[], dict[str, Any]]] = {
    "squared": lambda: messy("squared"),
    "huber": lambda: messy("huber"),
    "poisson": lambda: messy("poisson"),
    "logistic": lambda: messy("logistic"),
    "messy convex": lambda: messy("squared", clusterer="convex"),
    "messy kmeans": lambda: messy("squared", clusterer="kmeans:2"),
    "messy two groups": lambda: messy("squared", clusterer=2),
    "messy paper": lambda: messy("squared", method="paper"),
    "short terms": lambda: messy("squared", method=odcl.Method(short_terms=False)),
    "paper: default": lambda: paper(odcl.Method()),
    "paper: K-means++": lambda: paper(odcl.Method.paper(n_clusters=4)),
    "paper: silhouette": lambda: paper(odcl.Method.paper()),
    "paper: convex": lambda: paper(odcl.Method.paper("convex")),
    "paper: spectral": lambda: paper(odcl.Method(odcl.SpectralKMeans(4))),
    "paper: logistic": lambda: paper(odcl.Method.paper(n_clusters=4), "logistic"),
    "paper: logistic default": lambda: paper(odcl.Method(), "logistic"),
    "many users": many_users,
}
BY_COMMAND: dict[str, Callable[[Path], dict[str, Any]]] = {
    "commands": commands,
    "pieces": pieces,
    "round by file": round_by_file,
}


def result(name: str, folder: Path) -> dict[str, Any]:
    """The record of a case by its name; a real table's name is ``real: NAME``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if name.startswith("real: "):
            return real_table(name.removeprefix("real: "))
        if name in BY_COMMAND:
            return BY_COMMAND[name](folder)
        return IN_MEMORY[name]()


NAMES = [*IN_MEMORY, *BY_COMMAND, *(f"real: {name}" for name in REAL)]
