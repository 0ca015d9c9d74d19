"""The task card: written for people, read with suspicion, the same task again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from odcl import KMeansPP, Method, Risk
from odcl.engines.files import Feature, Task, fit_site
from odcl.exchange.upload import Uploads
from odcl.risk.losses import Huber, Multinomial
from tests.engines.files.world import class_task, frames, task
from tests.helpers import refusal

KEY = "ab" * 32
TASKS = {
    "plain": task(),
    "logistic": class_task(short_terms=True, missing="drop"),
    "classes of numbers": replace(class_task(), classes=(0, 1)),
    "multinomial": task(risk=Risk(Multinomial(3), 0.01, True), classes=("a", "b", "c")),
    "huber": task(risk=Risk(Huber(1.5), 0.0, True)),
    "odd names": task(
        name='the "last" \\ one', features=(Feature("å b"), Feature("x=y", ("1", "ü")))
    ),
    "scaled": task(features=(Feature("a", None, 51.25, 17.3), Feature("b", None, -1e-7, 1e9))),
    "filled in": task(features=(Feature("a", None, 51.25, 17.3),), missing="mean"),
    "a method": task(method=Method("kmeans:4", combine="samples")),
    "at most": task(method=Method("auto:3")),
    "as many": task(method=Method(3)),
    "a clusterer's settings": task(method=Method(KMeansPP(3, n_init=2), smallest_group=2)),
    "short terms": task(short_terms=True, minimum_group=4),
    "scaled by whole numbers": task(features=(Feature("a", None, 60, 15), Feature("b"))),
    "levels of numbers": task(features=(Feature("a", (3, 1, 2)), Feature("b", (True, False)))),
    "keys": task(
        coordinator=(KEY,), sites={"north": ("bc" * 32, "cd" * 32), "far-1": ("de" * 32,)}
    ),
}


@pytest.mark.parametrize("name", TASKS)
def test_a_card_is_the_same_task_again(name, tmp_path):
    given = TASKS[name]
    given.write(tmp_path / "task.toml")
    again = Task.read(tmp_path / "task.toml")
    assert again == given
    assert again.digest == given.digest


def edited(old, new):
    text = task().to_toml()
    assert old in text
    return text.replace(old, new)


def test_cards_of_the_version_before_are_read(tmp_path):
    """They name the kind of a category and the format of numbers."""
    given = task(features=(Feature("a"), Feature("c", levels=("p", "q"))))
    old = given.to_toml().replace("[limits]", '[limits]\ndtype = "float64"')
    old = old.replace("levels = ", 'type = "category"\nlevels = ')
    assert 'type = "category"' in old
    (tmp_path / "task.toml").write_text(old)
    assert Task.read(tmp_path / "task.toml") == given


def test_the_card_says_of_every_field_that_leaves_what_it_tells():
    for given in (task(), class_task(), task(method=Method("silhouette"))):
        text = given.to_toml()
        for name, tells in given.leaves.items():
            assert f"# {tells}\n{name} = true" in text
            assert Uploads.parts()[name].tells == tells


def test_what_the_card_says_leaves_is_what_leaves():
    for given, classes in ((task(), False), (class_task(), True)):
        sent = fit_site(given, frames(1, classes=classes)["north"], site="north")
        assert list(sent.uploads.present) == list(given.leaves)


def test_everything_agreed_on_is_in_the_digest_and_keys_are_not():
    changes = {
        "name": "x",
        "target": "z",
        "risk": Risk("squared", 1.0, True),
        "method": Method("auto:2"),
        "round": 2,
        "missing": "drop",
        "smallest_cell": 6,
        "minimum_rows": 2,
        "features": (Feature("a"),),
        "classes": None,
    }
    digests = {replace(task(), **{name: value}).digest for name, value in changes.items()}
    assert len(digests) == len(changes)  # "classes" changes nothing, and has the plain digest
    assert task(coordinator=(KEY,)).digest == task().digest
    listed = [Feature("c", ("p", "other"), other=other) for other in (False, True)]
    assert len({task(features=(one,)).digest for one in listed}) == 2


def test_other_keys_have_another_digest_of_their_own():
    one = task().with_keys("coordinator", "0" * 64).with_keys("north", "1" * 64)
    two = task().with_keys("coordinator", "0" * 64).with_keys("north", "2" * 64)
    assert one.digest == two.digest
    assert one.keys_digest != two.keys_digest


def test_two_sites_cannot_share_a_key():
    one = task().with_keys("coordinator", "0" * 64).with_keys("north", "1" * 64)
    refusal(one.with_keys, "south", "1" * 64, match="one key stands at two names")
    refusal(one.with_keys, "coordinator", "1" * 64, match="one key stands at two names")


FAULTS = {
    "an unknown entry": (edited("round = 1", "runde = 1\nround = 1"), "'runde' is not known"),
    "a near miss": (edited("missing =", "mising ="), "did you mean 'missing'"),
    "an unknown entry of a feature": (
        edited("scale = 1.0", "sclae = 1.0"),
        "'sclae' is not known",
    ),
    "an unknown setting": (edited("combine =", "mix ="), "method.mix is not known"),
    "another format": (edited("format = 1", "format = 2"), "format 2, and this odcl reads 1"),
    "no format": (edited("format = 1", ""), "format is missing"),
    "no TOML": (edited("[risk]", "[risk"), "no TOML"),
    "a field that may not leave": (edited("means = true", "means = false"), "needs 'means'"),
    "a field that nobody needs": (
        edited("means = true", "means = true\ntheta = true"),
        "leaves.theta is allowed, and the method does not need it",
    ),
    "a field that is none": (edited("means = true", "means = true\nrows = true"), "no field"),
    "no loss": (edited('loss = "squared"', 'loss = "hinge"'), "names no loss"),
    "no number": (edited("l2 = 0.0", 'l2 = "little"'), "risk.l2 is"),
    "not finite": (edited("l2 = 0.0", "l2 = inf"), "risk.l2 is"),
    "no levels": (edited('levels = ["p", "q"]', 'levels = ["p"]'), "levels of 'c'"),
    "a column twice": (edited('name = "b"', 'name = "a"'), "'a' stands in it twice"),
    "the target as a feature": (edited('name = "b"', 'name = "y"'), "'y' stands in it twice"),
    "classes of a number": (
        edited('column = "y"', 'column = "y"\nclasses = ["a", "b"]'),
        "classes",
    ),
    "half a site": (
        edited("minimum_group = 1", "minimum_group = 1.5"),
        "minimum_group is 1.5",
    ),
    "no scale": (edited("scale = 1.0", "scale = 0.0"), "scale is 0.0, and not a number above 0"),
    "a key that is none": (task().to_toml() + '[keys]\ncoordinator = ["abc"]\n', "64 hexadecimal"),
    "a site's path": (
        task().to_toml() + f'[keys]\ncoordinator = ["{KEY}"]\n[keys.sites]\n"../x" = ["{KEY}"]\n',
        "cannot be the name of a site",
    ),
    "sites without the coordinator": (
        task().to_toml() + f'[keys.sites]\nnorth = ["{KEY}"]\n',
        "the coordinator has none",
    ),
    "features beyond counting": (
        task().to_toml() + "".join(f'[[feature]]\nname = "x{j}"\n' for j in range(20_000)),
        "20004 parameters, and 10000 are the most",
    ),
    "classes beyond counting": (
        edited('loss = "squared"', 'loss = "multinomial"').replace(
            'column = "y"', f'column = "y"\nclasses = {list(range(4000))}'
        ),
        "4000 classes",
    ),
    "deep": ("a = " + "[" * 5000 + "]" * 5000, "nested"),
    "empty": ("", "format is missing"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_card_that_cannot_be_used_says_which_entry_is_wrong(fault, tmp_path):
    text, reason = FAULTS[fault]
    (tmp_path / "task.toml").write_text(text)
    message = refusal(Task.read, tmp_path / "task.toml", match=reason)
    assert "task.toml is not a task card that can be used" in message


def test_a_card_of_other_bytes_or_too_many_is_refused(tmp_path):
    (tmp_path / "task.toml").write_bytes(b"\xff\xfe" * 100)
    refusal(Task.read, tmp_path / "task.toml", match="UTF-8")
    (tmp_path / "task.toml").write_bytes(b"#" * (2**20 + 1))
    refusal(Task.read, tmp_path / "task.toml", match="larger")


def test_a_task_in_python_is_checked_like_a_card():
    refusal(task, features=(), match="no feature")
    refusal(task, risk=Risk("logistic", 0.0, True), match="classes are not listed")
    shifted = (Feature("a", None, 1.0, 1.0),)
    refusal(task, features=shifted, risk=Risk("squared"), match="is shifted, and without")


def test_a_mean_that_was_not_agreed_is_not_filled_in():
    """A site would put 0 where the others' mean is 51.25."""
    refusal(task, missing="mean", match=r"none was agreed for a, b \(shift 0, scale 1\): give a")
    agreed = Feature("a", None, 51.25, 17.3)
    refusal(task, features=(agreed, Feature("b")), missing="mean", match="none was agreed for b ")
    given = task(features=(agreed, Feature("c", ("p", "q"))), missing="mean")
    assert given.schema("", "text").fill == {"a": 51.25}


def test_people_release_out_what_has_a_default(tmp_path):
    (tmp_path / "task.toml").write_text(
        """
        format = 1
        name = "stay"
        target = { column = "y" }
        feature = [{ name = "a" }, { name = "c", levels = ["p", "q"] }]
        risk = { loss = "squared" }
        [leaves]
        """
        + "\n".join(f"{name} = true" for name in task().leaves)
    )
    given = Task.read(tmp_path / "task.toml")
    assert given.columns == ("a", "c=q")
    assert (given.smallest_cell, given.minimum_rows, given.method.smallest_group) == (5, 5, 3)
    assert not given.method.short_terms
    assert np.array_equal(given.scaling.scale, [1, 1])
