"""The server of the paper's linear federation: one round of ODCL, and what it says of it."""

import json
import time
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from odcl.engines.flower import ODCL

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    strategy = ODCL(
        min_replies=config["n-users"],
        timeout=config["timeout"],
        seed=config["seed"],
    )
    began = time.monotonic()
    strategy.start(grid)
    found = strategy.outcome
    assert found is not None
    said = {
        "reason": found.step.reason,
        "n_clusters": found.step.n_clusters,
        "bytes_up": found.ledger.total_up,
        "bytes_down": found.ledger.total_down,
        "seconds": time.monotonic() - began,
    }
    (Path(config["out"]) / "said.json").write_text(json.dumps(said), encoding="utf-8")
