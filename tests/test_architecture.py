"""The house: rooms from left to right, and imports that point only to the left.

Everything is read off the source; what fits load is asked of a Python of their own.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

from odcl.data.synthetic import store_tables
from odcl.data.tables import write_table
from tests.helpers import run_python

SOURCE = Path(__file__).parents[1] / "src"

# A module may import from its own room and from rooms that stand before it.
ROOMS = (
    "errors",
    "declared",
    "_typing",
    "files",
    "threads",
    "risk",
    "data",
    "artifact",
    "mixed",
    "wide",
    "privacy",
    "exchange",
    "local",
    "clustering",
    "method",
    "server",
    "fitted",
    "engines",
    "theory",
    "evaluate",
    "diagnose",
    "plan",
    "report",
    "estimators",
    "runs",
    "paper",
    "cli",
)

# Doors to a room on the right: imports inside a function, for the convenience of whoever holds the
# value and types one more dot. (function that imports, room): what it is good for.
DOORS = {
    ("odcl.diagnose.diagnosis.Diagnosis.__str__", "report"): "print(diagnosis)",
    ("odcl.diagnose.drift.Drift.__str__", "report"): "print(drift)",
    ("odcl.engines.files.combine.CombinedRound.__str__", "report"): "print(round)",
    ("odcl.engines.files.combine._diagnosed", "diagnose"): "the verdict that sites receive",
    ("odcl.engines.files.last_step.SiteModels.estimator", "estimators"): "models that predict",
    ("odcl.engines.files.round.write_round", "report"): "the coordinator's report",
    ("odcl.engines.files.round.write_round", "runs"): "the coordinator's page",
    ("odcl.engines.flower.result.write_result", "runs"): "the run's tables",
    ("odcl.engines.flower.result.add_late", "runs"): "the run's tables",
    ("odcl.engines.in_process.Result.diagnose", "diagnose"): "result.diagnose()",
    ("odcl.engines.in_process.Result.summary", "evaluate"): "the error, where truth is known",
    ("odcl.estimators.base.ODCLEstimator.fit", "runs"): "fit(Dask frame)",
    ("odcl.estimators.base.ODCLEstimator.fit_federation", "runs"): "fit_federation(Dask frame's)",
    ("odcl.estimators.base.ODCLEstimator.report", "runs"): "model.report(path)",
    ("odcl.estimators.public.ODCLRegressor.predict", "runs"): "predict(Dask frame)",
    ("odcl.estimators.public.ODCLClassifier.predict", "runs"): "predict(Dask frame)",
    ("odcl.evaluate.Comparison.__str__", "report"): "print(comparison)",
    ("odcl.plan.search.Plan.__str__", "report"): "print(plan)",
    ("odcl.theory.bounds.MethodTable.__str__", "report"): "print(odcl.theory.table1(...))",
}

# Optional, or slow to load: imported where they are used, never with the module.
HEAVY = ("matplotlib", "pandas", "polars", "rich", "cryptography", "flwr", "ray")
HEAVY += ("dask", "distributed", "fsspec", "torch")
# Modules that are nothing without such a package: their folder loads them by name, when asked.
AT_HOME = {
    "odcl.engines.flower": "flwr",
    "odcl.engines.flower.apps.table": "flwr",
    "odcl.engines.flower.certs": "cryptography",
}


class Import(NamedTuple):
    """One name that a module imports."""

    importer: str  # the module
    function: str  # dotted name of the function around the import; "" at module level
    for_types: bool  # under ``if TYPE_CHECKING``
    module: str  # imported, or imported from
    name: str  # "" where the module itself is imported

    def __str__(self) -> str:
        where = f"{self.importer}.{self.function}" if self.function else self.importer
        return f"{where} imports {self.name or 'the module'} of {self.module}"


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted((SOURCE / "odcl").rglob("*.py"))}


def imports_of(importer: str) -> Iterator[Import]:
    def below(node: ast.AST, around: tuple[str, ...], function: str, types: bool):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for one in child.names:
                    yield Import(importer, function, types, one.name, "")
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{importer} has an import relative to its place"
                for one in child.names:
                    whole = f"{child.module}.{one.name}"
                    is_module = whole in MODULES
                    module, name = (whole, "") if is_module else (child.module, one.name)
                    yield Import(importer, function, types, module, name)
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                inside = (*around, child.name)
                yield from below(child, inside, function or ".".join(inside), types)
            elif isinstance(child, ast.ClassDef):
                yield from below(child, (*around, child.name), function, types)
            elif isinstance(child, ast.If):
                for_types = types or ast.unparse(child.test) == "TYPE_CHECKING"
                yield from below(child, around, function, for_types)
            else:
                yield from below(child, around, function, types)

    tree = ast.parse(MODULES[importer].read_text(encoding="utf-8"))
    return below(tree, (), "", False)


IMPORTS = [one for importer in MODULES for one in imports_of(importer)]
OURS = [one for one in IMPORTS if one.module.split(".")[0] == "odcl"]


def room(module: str) -> str:
    """The room of a module; "" for the front door, ``odcl`` itself and ``python -m odcl``."""
    inside = module.split(".")[1:]
    return inside[0] if inside and inside != ["__main__"] else ""


def to_the_right(one: Import) -> bool:
    """Does an import lead from a room to one behind it?"""
    here, there = room(one.importer), room(one.module)
    return bool(here and there) and ROOMS.index(there) > ROOMS.index(here)


# Commands hold options and print. Runs do the work, or the engine that a command is about.
OF_COMMANDS = {"", "_typing", "cli", "errors", "files", "data", "report", "runs"}
SUBJECTS = {
    "run": {"engines"},  # a late site of a round by file
    "fit": {"method"},
    "flower": {"engines"},
    "plan": {"plan", "privacy"},
    "paper": {"engines", "evaluate", "paper"},
    "site": {"artifact", "engines"},
    "task": {"engines", "method", "risk"},
    "task_columns": {"engines", "method", "privacy", "risk"},
}


def listed(imports: list[Import]) -> str:
    return "\n".join(map(str, imports))


def test_every_module_is_in_a_room():
    assert {room(module) for module in MODULES} - {""} == set(ROOMS)


def test_imports_point_to_rooms_on_the_left():
    wrong = [
        one
        for one in OURS
        if to_the_right(one)
        and (f"{one.importer}.{one.function}", room(one.module)) not in DOORS
        # What a door gives back has a type.
        and not (one.for_types and (one.importer, room(one.module)) in DOOR_MODULES)
    ]
    assert not wrong, listed(wrong)


DOOR_MODULES = {
    (importer, there)
    for function, there in DOORS
    for importer in MODULES
    if function.startswith(f"{importer}.")
}


def test_commands_leave_the_work_to_runs_and_to_their_engine():
    wrong = [
        one
        for one in OURS
        if room(one.importer) == "cli"
        and room(one.module) not in OF_COMMANDS
        and room(one.module) not in SUBJECTS.get(one.importer.split(".")[-1], ())
    ]
    assert not wrong, listed(wrong)


def test_every_door_is_used():
    used = {(f"{one.importer}.{one.function}", room(one.module)) for one in OURS if one.function}
    assert set(DOORS) <= used, f"closed by now: {sorted(set(DOORS) - used)}"


def test_rooms_know_of_the_front_door_its_version_alone():
    """``from odcl import KMeansPP`` inside the house would go around all rooms."""
    wrong = [
        one
        for one in OURS
        if room(one.importer) and not room(one.module) and one.name != "__version__"
    ]
    assert not wrong, listed(wrong)


def test_no_two_modules_wait_for_each_other():
    """A cycle at module level is an ImportError for whoever imports the wrong one first."""
    graph: dict[str, set[str]] = {module: set() for module in MODULES}
    for one in OURS:
        if not one.function and not one.for_types:
            graph[one.importer].add(one.module)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def test_private_names_stay_in_their_room():
    """Neither ``from odcl.local.fit import _solve`` nor a module named so of another room."""
    wrong = [
        one
        for one in OURS
        if room(one.importer) != room(one.module)
        and any(map(is_private, [one.name, *one.module.split(".")[2:]]))
    ]
    assert not wrong, listed(wrong)


def test_optional_and_heavy_packages_are_imported_where_they_are_used():
    at_once = [one for one in IMPORTS if not one.function and not one.for_types]
    wrong = [
        one
        for one in at_once
        if (heavy := one.module.split(".")[0]) in HEAVY
        and not any(
            f"{one.importer}.".startswith(f"{home}.") and heavy == own
            for home, own in AT_HOME.items()
        )
    ]
    assert not wrong, listed(wrong)


def test_importing_odcl_loads_nothing_that_takes_time():
    lines = run_python("import sys, odcl\nprint(*{name.split('.')[0] for name in sys.modules})")
    heavy = {"numpy", "scipy", "sklearn", "pyarrow", "joblib", "safetensors", *HEAVY}
    assert not heavy & set(lines[0].split())


# -- fitted state ----------------------------------------------------------------------------------


def parsed(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


def test_fitted_state_is_set_in_one_place():
    """An estimator of users holds one ``Fitted``; what it shows is read off that."""
    found = set()
    for module in MODULES:
        for function in ast.walk(parsed(module)):
            if not isinstance(function, ast.FunctionDef):
                continue
            for node in ast.walk(function):
                stored = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
                ours = stored and (node.attr == "_fitted" or room(module) == "estimators")
                if ours and node.attr.endswith(("_", "_fitted")):
                    found.add(f"{module}.{function.name}")
    assert found == {"odcl.estimators.attributes._hold"}


def test_models_estimators_and_fits_have_types():
    """No parameter or field of such a name is declared as ``Any``."""
    wrong = []
    for module in MODULES:
        for node in ast.walk(parsed(module)):
            if isinstance(node, ast.arg):
                name, kind = node.arg, node.annotation
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                name, kind = node.target.id, node.annotation
            else:
                continue
            if name in ("model", "estimator", "fitted") and kind and ast.unparse(kind) == "Any":
                wrong.append(f"{module}:{node.lineno} {name}")
    assert not wrong, "\n".join(wrong)


def test_a_class_name_means_one_thing():
    classes: dict[str, list[str]] = {}
    for name, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes.setdefault(node.name, []).append(name)
    assert not {name: where for name, where in classes.items() if len(where) > 1}


# -- what a fit loads ------------------------------------------------------------------------------

LOADED = "print(sum(name.split('.')[0] == 'odcl' for name in sys.modules))"


def test_a_fit_of_arrays_loads_what_it_uses():
    lines = run_python(
        "import sys, numpy as np, odcl\n"
        "rng = np.random.default_rng(0)\n"
        "X, users = rng.normal(size=(600, 3)), np.repeat(np.arange(30), 20)\n"
        "y = X @ [1, 2, 3] * (2 * (users % 2) - 1) + rng.normal(size=600)\n"
        f"odcl.fit(odcl.Federation.from_arrays(X, y, users))\n{LOADED}"
    )
    assert int(lines[-1]) <= 47


def test_odcl_fit_loads_what_it_uses(tmp_path):
    """Reading, fitting, comparing, diagnosing and the page; no other engines and losses."""
    write_table(tmp_path / "stores.csv", store_tables(0)[0])
    lines = run_python(
        "import os, sys\n"
        f"os.chdir({str(tmp_path)!r})\n"
        "from odcl.cli.main import run_command\n"
        "words = 'fit stores.csv --user store --target sales --out run --quiet'\n"
        f"assert run_command(words.split()) == 0\n{LOADED}"
    )
    assert int(lines[-1]) <= 123
