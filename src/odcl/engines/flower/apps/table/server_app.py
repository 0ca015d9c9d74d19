"""The server: `ODCL(...)` where `FedAvg(...)` would stand."""

from pathlib import Path

from flwr.app import Context, UserConfig
from flwr.serverapp import Grid, ServerApp

from odcl.engines.flower import ODCL
from odcl.method import Method
from odcl.privacy import Privacy
from odcl.risk.risk import Risk

app = ServerApp()


def listed(text: str, by: str = "/") -> list[tuple[str, list[float]]]:
    """Columns with their numbers: "age=50/20,bmi=25/4", "hour=24" or, by ":", "age=0:100"."""
    pairs = [part.partition("=") for part in text.split(",") if part]
    return [(name.strip(), [float(n) for n in numbers.split(by)]) for name, _, numbers in pairs]


def method(config: UserConfig) -> Method:
    """Bad uploads hurt their senders alone; with an epsilon, uploads are private as well."""
    if not config["epsilon"]:
        return Method(robust=True)
    if config["holdout"]:
        raise ValueError("No losses leave beside private uploads: set holdout to 0.")
    ends = dict(listed(str(config["ranges"]), ":"))
    features = [name.strip() for name in str(config["features"]).split(",")]
    if bare := [name for name in features if len(ends.get(name, [])) != 2]:
        raise ValueError(
            f"Private uploads need public ranges: ranges = '{bare[0]}=LOWEST:HIGHEST'."
        )
    low, _, high = str(config["target-range"]).partition(":")
    privacy = Privacy.within(
        [(ends[name][0], ends[name][1]) for name in features],
        epsilon=float(config["epsilon"]),
        delta=float(config["delta"]),
        target_range=(float(low), float(high)) if high else None,
    )
    return Method(robust=True, privacy=privacy)


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
            method(config),
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
