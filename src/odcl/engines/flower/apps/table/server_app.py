"""The server: `ODCL(...)` where `FedAvg(...)` would stand."""

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from odcl.engines.flower import ODCL
from odcl.risk.risk import Risk

app = ServerApp()


def listed(text: str) -> list[tuple[str, list[float]]]:
    """Columns with their numbers: "age=50/20,bmi=25/4" or "hour=24"."""
    pairs = [part.partition("=") for part in text.split(",") if part]
    return [(name.strip(), [float(n) for n in numbers.split("/")]) for name, _, numbers in pairs]


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    times = {"wait": config["wait"], "timeout": config["timeout"]}
    place = Path(config["result-dir"]).absolute() if config["result-dir"] else None
    if config["late"]:  # nodes that have their models are not asked again
        strategy = ODCL.from_result(config["result-dir"], **times)
    else:
        strategy = ODCL(
            Risk(config["loss"], config["l2"], intercept=True),
            min_replies=config["min-replies"],
            nodes=config["nodes"] or None,
            result_dir=place,
            force=config["force"],
            seed=config["seed"],
            features=config["features"].split(","),
            user=config["user"],
            target=config["target"],
            curves={name: (value, spread) for name, (value, spread) in listed(config["curves"])},
            periodic={name: period for name, (period,) in listed(config["periodic"])},
            **times,
        )
    result = strategy.start(grid)
    for round_, metrics in result.evaluate_metrics_clientapp.items():
        for name, value in metrics.items():
            print(f"round {round_}: {name} {value:g}")
