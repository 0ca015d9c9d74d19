"""The pages on Flower: their apps run, and say what the pages say they do."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("flwr", reason="Flower is not installed here: it has its own environment")

from flwr.app import Context, RecordDict
from flwr.serverapp import strategy as flower

from odcl.engines.flower import ODCL
from tests.engines.flower.world import FakeGrid, Node
from tests.pages import DOCS, blocks, run_page, same

PAGE = (DOCS / "flower.md").read_text(encoding="utf-8")


def sides(name):
    """The file of a diff before and after it."""
    text = PAGE.split(f"<!-- {name} -->\n")[1]
    lines = blocks(text)[0].text.splitlines()
    assert all(line[:1] in ("", " ", "+", "-") for line in lines)
    return ["\n".join(line[1:] for line in lines if line[:1] != other) for other in "+-"]


def app_of(code):
    names = {"__name__": "app"}
    exec(compile(code, "<page>", "exec"), names)
    return names["app"]


def grid(code):
    return FakeGrid({100 + i: Node(app_of(code), {"partition-id": i}) for i in range(8)})


def context(**config):
    return Context(1, 1, {}, RecordDict(), config)


def test_both_sides_of_the_diffs_run_and_lose_what_the_page_says(tmp_path, monkeypatch, capsys):
    (old_server, new_server), (old_client, new_client) = map(
        sides, ("server_app.py", "client_app.py")
    )
    losses = {}
    for kind in (flower.FedAvg, ODCL):
        plain = kind.start

        def start(self, *args, plain=plain, kind=kind, **kwargs):
            result = plain(self, *args, **kwargs)
            losses[kind.__name__] = result.evaluate_metrics_clientapp.popitem()[1]["loss"]
            return result

        monkeypatch.setattr(kind, "start", start)
    app_of(old_server)(grid(old_client), context())
    app_of(new_server)(grid(new_client), context(out=str(tmp_path / "run")))
    said = re.search(r"is\s+([\d.]+) with FedAvg's.*?and ([\d.]+) after", PAGE, flags=re.DOTALL)
    assert [f"{losses[name]:.2f}" for name in ("FedAvg", "ODCL")] == list(said.groups())
    assert capsys.readouterr().out.count("user ") == 8
    assert (tmp_path / "run" / "assignment.csv").exists()


def test_the_apps_setting_for_late_nodes_works(tmp_path):
    code, *others = [b.text for b in blocks(PAGE) if b.language == "python"]
    for other in others:
        exec(other, {})
    _, client = sides("client_app.py")
    app, everybody = app_of(code), grid(client)
    early = FakeGrid({n: everybody.online[n] for n in list(everybody.online)[:6]})
    app(early, context(out=str(tmp_path / "run"), late=False))
    app(everybody, context(out=str(tmp_path / "run"), late=True))
    lines = (tmp_path / "run" / "assignment.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines[1:]] == [str(i) for i in range(8)]


@pytest.mark.parametrize(
    ("page", "n_blocks"), [("reference/flower-engine.md", 4), ("flower-models.md", 2)]
)
def test_examples_with_a_grid_print_what_their_page_says(page, n_blocks, tmp_path, monkeypatch):
    """Blocks that name this test, on three nodes that run the page's latest ``app``."""
    monkeypatch.chdir(tmp_path)
    text = (DOCS / page).read_text(encoding="utf-8")
    parts = text.split("<!-- run by tests/engines/flower/test_page.py -->\n")[1:]
    names = {}
    nodes = {100 + i: Node(lambda *a: names["app"](*a), {"partition-id": i}) for i in range(3)}
    names["grid"] = FakeGrid(nodes)
    for part in parts:
        example = next(run_page(part, names))
        assert same(example.said.text, example.printed), example.printed
    assert len(parts) == n_blocks
