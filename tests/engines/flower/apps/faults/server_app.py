"""The server of a made federation with nodes that do wrong."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from odcl.engines.flower import ODCL

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    ODCL(
        min_replies=config["min-replies"],
        nodes=config["nodes"],
        wait=config["wait"],
        timeout=config["timeout"],
        result_dir=config["result-dir"],
        force=True,
    ).start(grid)
