"""The server of a made federation with nodes that do wrong."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from odcl.engines.flower import ODCL

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    times = {"wait": config["wait"], "timeout": config["timeout"]}
    if config["late"]:
        ODCL.from_result(config["result-dir"], **times).start(grid)
        return
    ODCL(
        min_replies=config["min-replies"],
        nodes=config["nodes"],
        result_dir=config["result-dir"],
        force=True,
        **times,
    ).start(grid)
