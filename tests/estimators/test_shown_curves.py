"""What people see of curves: words, points, names, shares of variance."""

import numpy as np
import pandas as pd
import pytest

from odcl import ODCLClassifier, ODCLRegressor
from odcl.cli.main import run_command
from odcl.data.curves import misfit
from odcl.report.page.sections import fit_page
from odcl.runs.evidence import Evidence
from odcl.runs.page import fit_facts


def stores(n_users=24, rows=40, seed=0):
    """Price acts in one curve for all, temperature in one of each store's own, promo in a line."""
    rng = np.random.default_rng(seed)
    user = np.repeat(np.arange(n_users), rows)
    price, promo = rng.uniform(1, 9, len(user)), rng.integers(0, 2, len(user))
    temperature = rng.normal(15, 6, len(user))
    z, own = (temperature - 15) / 6, rng.normal(0, 1.5, n_users)[user]
    y = 8 * np.exp(-(((price - 4) / 1.5) ** 2)) + (1 + own) * (z**2 - 1) + 3 * promo
    y += 20 + rng.normal(0, 3, n_users)[user] + rng.normal(0, 1, len(user))
    names = [f"store-{i:02}" for i in user]
    columns = {"store": names, "price": price, "temperature": temperature, "promo": promo}
    return pd.DataFrame(columns | {"sales": y})


@pytest.fixture(scope="module")
def table():
    return stores()


@pytest.fixture(scope="module")
def model(table):
    return ODCLRegressor(users="store", clusterer=1).fit(table.drop(columns="sales"), table.sales)


def test_words_say_which_columns_act_in_curves_and_whose_differ(model):
    said = "price acts in a curve, the same for all; temperature in a curve that differs between"
    assert model.reason_.endswith(f" {said} users.")
    assert "and the curve of temperature (" in model.reason_
    assert "price and promo are the same for all of them." in model.reason_


def test_differences_have_one_number_for_a_curve(model, table):
    """It is the spread of the users' curves on a row, here that of own * (z^2 - 1): 1.5 sqrt(2)."""
    found = model.differences_
    names = ["(level)", "price", "temperature", "promo", "the curve of temperature"]
    assert list(found) == names
    assert found["price"] == found["promo"] == 0
    assert found["the curve of temperature"] == pytest.approx(1.5 * np.sqrt(2), rel=0.25)


def test_without_curves_no_word_is_said_of_them(table):
    lines = ODCLRegressor(users="store", curves=False)
    lines.fit(table.drop(columns="sales"), table.sales)
    assert "curve" not in lines.reason_
    assert list(lines.differences_) == ["(level)", "price", "temperature", "promo"]


def with_column(table, name, x, user="store-07"):
    """A row for every value of a column, all else as in the first row of the table."""
    rows = pd.concat([table.drop(columns="sales").iloc[[0]]] * len(x), ignore_index=True)
    return rows.assign(store=user, **{name: x})


@pytest.mark.parametrize("name", ["price", "temperature", "promo"])
def test_a_curve_is_the_difference_of_predictions(model, table, name):
    found = model.curve(name, user="store-07", points=9)
    z = model.predict(with_column(table, name, found["x"]))
    np.testing.assert_allclose(np.diff(found["value"]), np.diff(z), atol=1e-9)
    if name != "promo":
        assert (found["x"].iloc[0], found["x"].iloc[-1]) == pytest.approx(
            (table[name].min(), table[name].max())
        )


@pytest.mark.parametrize("name", ["price", "temperature"])
def test_what_all_have_in_common_is_the_curve_of_an_average_user(model, table, name):
    found = model.curve(name, points=9)
    with pytest.warns(UserWarning, match="average users"):
        z = model.predict(with_column(table, name, found["x"], "nobody"))
    np.testing.assert_allclose(np.diff(found["value"]), np.diff(z), atol=1e-9)


def test_curves_are_measured_from_the_average_over_all_rows(table):
    """With one model for all rows: the mean of what price adds to each row is zero."""
    model = ODCLRegressor(users="store", clusterer=1, curves=["price"])
    model.fit(table.drop(columns="sales"), table.sales)
    found = model.curve("price", points=2001)
    assert np.interp(table.price, found["x"], found["value"]).mean() == pytest.approx(0, abs=1e-3)


def test_bands_hold_the_true_curve_and_are_the_covariance_of_the_model_and_its_misfit(model, table):
    """Of store-07's own curve, whose R and t are read off the mixture."""
    found = model.curve("price", points=40)
    truth = 8 * np.exp(-(((found["x"] - 4) / 1.5) ** 2))
    truth -= (8 * np.exp(-(((table.price - 4) / 1.5) ** 2))).mean()
    assert np.abs(found["value"] - truth).max() < 1
    at = model.users_.tolist().index("store-07")
    own = model.curve("temperature", user="store-07", points=2)
    draws = np.random.default_rng(0).multivariate_normal(
        model.theta_[at], model.covariance_[at], 4000
    )
    scaling, curve = model.scaling_, next(c for c in model.risk_.curves if c.name == "temperature")
    x = pd.DataFrame({"price": 5.0, "temperature": own["x"], "promo": 0})
    rows = scaling.apply(x.to_numpy(float))[:, [1, *curve.columns]]
    mean = model.uploads_.means[:, [1, *curve.columns]]
    seen = rows - np.average(mean, axis=0, weights=model.n_rows_)
    sd = (draws[:, [1, *curve.columns]] @ seen.T).std(axis=0)
    mixture = model.fitted_.mixed
    at, unit = mixture.coordinates, mixture.coordinates.target_scale
    bent = at.bends.of == next(i for i, c in enumerate(at.curves) if c.name == "temperature")
    second = mixture.centers[0] ** 2 + np.diag(mixture.covariances[0] + mixture.inside)
    height = (at.bends.rough * second)[bent].mean() * unit**2
    sd = np.sqrt(sd**2 + height * misfit(scaling.apply(x.to_numpy(float))[:, 1], curve))
    np.testing.assert_allclose((own["high"] - own["low"]) / 2, 1.645 * sd, rtol=0.05)


def test_columns_that_are_no_numbers_and_users_that_are_unknown_are_said_so(table):
    table = table.assign(town=pd.Categorical(np.where(table.price > 5, "a", "b")))
    model = ODCLRegressor(users="store", clusterer=1).fit(table.drop(columns="sales"), table.sales)
    with pytest.raises(ValueError, match="'town' is a category"):
        model.curve("town")
    with pytest.raises(ValueError, match="did you mean 'price'"):
        model.curve("prise")
    with pytest.raises(ValueError, match="'store-7' is not a user of the fit; did you mean"):
        model.curve("price", user="store-7")


def test_bends_have_names_beside_their_line_and_lines_only_have_none(model, table):
    names = ["user", "group", "price", "temperature", "promo"]
    bends = [f"{name}~{k}" for name in ("price", "temperature") for k in (1, 2, 3, 4)]
    assert list(model.coefficients()) == [*names, *bends, "(intercept)"]
    lines = ODCLRegressor(users="store", curves=False)
    lines.fit(table.drop(columns="sales"), table.sales)
    assert list(lines.coefficients()) == [*names, "(intercept)"]


@pytest.mark.parametrize(("curves", "clusterer"), [("auto", "auto"), ("auto", 1), (False, 3)])
def test_shares_of_variance_are_those_of_the_rows(table, curves, clusterer):
    """By brute force: the covariance of every part of every row with the row's prediction."""
    table = table.assign(town=table.store.str[-1].where(table.promo > 0, "x").astype("category"))
    X = table.drop(columns="sales")
    model = ODCLRegressor(users="store", curves=curves, clusterer=clusterer).fit(X, table.sales)
    fitted, z = model.fitted_, model.predict(X)
    where = np.searchsorted(model.users_, X["store"])
    rows = model._owned_rows(X, None)[0]
    rows = np.column_stack([fitted.scaling.apply(rows), np.ones(len(X))])
    common = model.mixture_.weights @ model.cluster_theta_
    centers, models = model.cluster_theta_[model.labels_][where], model.theta_[where]
    parts = {"(groups)": (rows * (centers - common)).sum(1)}
    parts["(users)"] = (rows * (models - centers)).sum(1)
    names = [name for j, name in enumerate(model.feature_names_) if j in fitted.scaling.used]
    for j, name in enumerate(names):
        bends = [k for c in model.risk_.curves if c.of == j for k in c.columns]
        feature = "town" if name.startswith("town") else name
        added = rows[:, [j, *bends]] @ common[[j, *bends]]
        parts[feature] = parts.get(feature, 0) + added
    found = model.importance()
    assert found.sum() == pytest.approx(1)
    assert set(found.index) == set(parts)
    for name, part in parts.items():
        assert found[name] == pytest.approx(np.cov(part, z)[0, 1] / z.var(ddof=1), abs=1e-6), name


def test_shares_of_classes_are_near_those_of_the_rows():
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"user": np.repeat(np.arange(30), 60), "a": rng.normal(3, 2, 1800)})
    X["b"] = 0.5 * X["a"] + rng.normal(0, 1, 1800)
    level = rng.normal(0, 1, 30)[X["user"]]
    y = rng.random(1800) < 1 / (1 + np.exp(-(level + 0.8 * (X["a"] - 3) - 0.5 * X["b"])))
    model = ODCLClassifier(users="user").fit(X, y)
    z, found = model.decision_function(X), model.importance()
    coef = model.mixture_.weights @ model.group_coef_
    for j, name in enumerate(["a", "b"]):
        share = np.cov(coef[j] * X[name], z)[0, 1] / z.var(ddof=1)
        assert found[name] == pytest.approx(share, abs=0.03)
    assert found["(users)"] > 0.2


def test_predict_says_once_how_many_rows_lie_beyond_the_curves(model, table, recwarn):
    inside = with_column(table, "price", [1.5, 8.5])
    model.predict(inside)
    model.predict(inside.assign(promo=7))  # acts in a line
    assert not recwarn
    model.predict(
        with_column(table, "price", [1.5, -20, 50, 51]).assign(temperature=[15, 80, 15, 15])
    )
    said = [str(one.message) for one in recwarn]
    assert said == ["3 rows lie beyond the values that were seen: curves go on as lines."]
    z = model.predict(with_column(table, "price", [20.0, 30.0, 40.0]))
    assert np.diff(z, 2) == pytest.approx([0], abs=1e-9)


def test_the_command_says_it_too(table, tmp_path, capsys):
    train, far = tmp_path / "train.csv", tmp_path / "far.csv"
    table.to_csv(train, index=False)
    table.head(3).assign(price=[50, 5, 60]).to_csv(far, index=False)
    run = tmp_path / "run"
    run_command(["fit", str(train), "--user", "store", "--target", "sales", "--out", str(run)])
    run_command(["predict", str(run), str(far)])
    said = capsys.readouterr().err
    assert said.count("2 rows lie beyond the values that were seen: curves go on as lines\n") == 1
    header = (run / "groups.csv").read_text().splitlines()[0]
    assert header.startswith("group,users,price,temperature,promo,price~1,")


def test_the_page_draws_the_curves_and_its_level_is_the_mean_prediction(model, table):
    facts = fit_facts(model.fitted_, Evidence.of(model.fitted_))
    price, temperature = facts.curves
    assert (price.name, price.alike, temperature.alike) == ("price", True, False)
    common = model.curve("temperature", points=len(temperature.x))
    own = model.curve("temperature", user="store-07", points=len(temperature.x))
    for shown, told in (
        (temperature.x, "x"),
        (temperature.common, "value"),
        (temperature.low, "low"),
    ):
        np.testing.assert_allclose(shown, common[told], atol=1e-9)
    at = facts.users.ids.index("store-07")
    np.testing.assert_allclose(temperature.rows @ temperature.own[at], own["value"], atol=1e-9)
    assert dict(facts.shares)["price"] == pytest.approx(model.importance()["price"])
    c = facts.coefficients
    assert not any("~" in name for name in c.names)
    level = c.user[at, list(c.users).index(list(c.names).index("(level)"))]
    everywhere = model.predict(table.drop(columns="sales").assign(store="store-07")).mean()
    assert level == pytest.approx(everywhere, rel=1e-6)
    page = fit_page(facts).decode()
    assert page.count('class="thin"') == len(model.users_)
    assert page.count('class="band"') == 2
    assert "What predictions depend on" in page


def test_axes_say_what_a_curve_adds_to(table):
    X = table.drop(columns="sales")
    busy = np.where(table.sales > table.sales.median(), "busy", "calm")
    many = (table.sales > table.sales.median()) + np.random.default_rng(0).poisson(1, len(X))
    for kind, loss, y, said in (
        (ODCLClassifier, "logistic", busy, "added to the log-odds of calm"),
        (ODCLRegressor, "poisson", many, "added to the log-rate"),
        (ODCLRegressor, "squared", table.sales, "added to the prediction"),
    ):
        model = kind(loss, users="store", clusterer=1).fit(X, y)
        assert said in fit_page(fit_facts(model.fitted_, Evidence.of(model.fitted_))).decode()


def test_a_periodic_curve_closes_has_no_slope_and_no_groups_no_plan_of_groups(tmp_path):
    rng, user = np.random.default_rng(0), np.repeat(np.arange(12), 40)
    hour, x = rng.integers(0, 24, 480), rng.normal(size=480)
    y = 3 * np.sin(2 * np.pi * hour / 24) + x + rng.normal(size=12)[user] + rng.normal(size=480)
    frame = pd.DataFrame({"store": user, "hour": hour, "x": x, "sales": y})
    model = ODCLRegressor(users="store", periodic={"hour": 24}, clusterer=1)
    model.fit(frame.drop(columns="sales"), frame.sales)
    found = model.curve("hour", points=25)
    np.testing.assert_allclose(found["x"], np.arange(25), atol=1e-9)
    first, last = (found[["value", "low", "high"]].iloc[at] for at in (0, -1))
    np.testing.assert_allclose(first, last, atol=1e-9)
    facts = fit_facts(model.fitted_, Evidence.of(model.fitted_))
    assert list(facts.coefficients.names) == ["x", "(level)", "(intercept)"]
    at = list(facts.users.ids).index("3")
    shown = facts.coefficients.user[at, list(facts.coefficients.users).index(0)]
    assert shown == pytest.approx(model.coefficients()["x"].iloc[3])
    table, run = tmp_path / "sales.csv", tmp_path / "run"
    frame.to_csv(table, index=False)
    asked = ["--periodic", "hour=24", "--clusters", "auto:1", "--out", str(run)]
    run_command(["fit", str(table), "--user", "store", "--target", "sales", *asked])
    assert "odcl plan" not in (run / "report.html").read_text()  # which needs groups


def test_the_page_counts_bytes_of_closed_curves_and_a_closed_period_has_no_coefficient():
    """Of two columns that may bend one does; users send the bends of both."""
    table = stores(rows=20).drop(columns="temperature")
    table["hour"] = np.random.default_rng(1).integers(0, 24, len(table))
    X, y = table.drop(columns="sales"), table.sales
    model = ODCLRegressor(users="store", periodic={"hour": 24}, clusterer=1).fit(X, y)
    assert [curve.name for curve in model.risk_.curves] == ["price"]
    facts = fit_facts(model.fitted_, Evidence.of(model.fitted_))
    assert "hour" not in facts.coefficients.names
    privacy = next(one for one in facts.sections if one.name == "privacy")
    *fields, total = privacy.tables[0].rows
    assert not any(cells[2] for cells in fields)
    numbers = 1 + 12 + 12 * 13 // 2  # rows, averages with the target's, and a triangle
    assert total[1:] == (
        "per user, with bends of every column that may act in a curve",
        f"{8 * numbers:,}",
    )


def test_a_page_without_curves_has_shares_alone(table):
    lines = ODCLRegressor(users="store", curves=False)
    lines.fit(table.drop(columns="sales"), table.sales)
    facts = fit_facts(lines.fitted_, Evidence.of(lines.fitted_))
    assert not facts.curves
    assert sum(share for _, share in facts.shares) == pytest.approx(1)
    assert "The curve of" not in fit_page(facts).decode()
    privacy = next(one for one in facts.sections if one.name == "privacy")
    *fields, total = (int(cells[2].replace(",", "")) for cells in privacy.tables[0].rows)
    assert total == sum(fields) == lines.uploads_.n_bytes[0]


def test_columns_of_few_values_categories_and_groups_that_are_not_there_are_refused(model, table):
    X, y = table.drop(columns="sales"), table.sales
    with pytest.raises(ValueError, match="'promo' is to act in a curve, and has at most three val"):
        ODCLRegressor(users="store", curves=["promo"]).fit(X, y)
    kinds = X.assign(kind=np.where(np.arange(len(X)) % 2, "a", np.where(X.price > 2, "b", "c")))
    with pytest.raises(ValueError, match="'kind' is a category: a curve is of a column of numb"):
        ODCLRegressor(users="store", curves=["kind"]).fit(kinds, y)
    with pytest.raises(ValueError, match="group=9 is not one of the"):
        model.curve("price", group=9)
    with pytest.raises(ValueError, match="name one of both"):
        model.curve("price", user=table.store.iloc[0], group=0)


def test_where_columns_are_too_many_for_curves_it_is_said():
    """Two bends each of 34 columns are more than 100 parameters; declared ones have room."""
    rng = np.random.default_rng(0)
    users, X = np.repeat(np.arange(20), 40), rng.uniform(-3, 3, (800, 34))
    y = X[:, 0] ** 2 + 3 * np.cos(X[:, 1]) + rng.normal(size=20)[users] + rng.normal(size=800)
    with pytest.warns(UserWarning, match="34 columns are too many .* enough for 32. All act in li"):
        lines = ODCLRegressor().fit(X, y, users=users)
    assert not lines.risk_.curves
    with pytest.warns(UserWarning, match="The rest act in lines"):
        model = ODCLRegressor(periodic={1: 2 * np.pi}).fit(X, y, users=users)
    assert [curve.of for curve in model.risk_.curves] == [1]
    model = ODCLRegressor(curves=[0], periodic={1: 2 * np.pi}).fit(X, y, users=users)
    assert [curve.of for curve in model.risk_.curves] == [0, 1]
    with pytest.raises(ValueError, match=r"34 columns cannot act in curves .* enough for 32"):
        ODCLRegressor(curves=list(range(34))).fit(X, y, users=users)


def test_a_user_apart_makes_no_curve_differ_between_groups():
    rng = np.random.default_rng(4)
    users, X = np.repeat(np.arange(40), 20), rng.normal(size=(800, 3))
    y = X.sum(axis=1) + X[:, 0] ** 2 + rng.normal(size=40)[users] + rng.normal(size=800)
    X[5, 0] = 1e6
    with pytest.warns(UserWarning, match="mistyped"):
        reason = ODCLRegressor().fit(X, y, users=users).reason_
    assert "makes up a group of its own" in reason
    assert "Users differ in" in reason  # there are no groups that they could differ inside
    assert "x0 acts in a curve, the same for all." in reason
