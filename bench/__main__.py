"""Run the measurements named on the command line, or all of them."""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

from threadpoolctl import threadpool_limits

from bench import (
    classes,
    convex,
    curves,
    files,
    groups,
    intervals,
    local_solve,
    mixed,
    pieces,
    private,
    real_tables,
    robust,
    sample,
    scale,
    speed,
    threads,
    wide,
)

PARTS = {
    "local": local_solve.run,
    "convex": convex.run,
    "groups": groups.run,
    "mixed": mixed.run,
    "tables": real_tables.run,
    "curves": curves.run,
    "intervals": intervals.run,
    "classes": classes.run,
    "wide": wide.run,
    "files": files.run,
    "private": private.run,
    "robust": robust.run,
    "sample": sample.run,
    "scale": scale.run,
    "pieces": pieces.run,
    "speed": speed.run,
    "threads": threads.run,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="part", help=", ".join(PARTS))
    parser.add_argument("--quick", action="store_true", help="smaller and fewer: about a minute")
    parser.add_argument(
        "--data",
        type=Path,
        default=Path("../shared/data"),
        help="folder with mnist/, cifar10-two-classes/ and tables/; without them, less is measured",
    )
    text = (
        "users of the parts 'scale' [default: 100,000], 'pieces' [default: up to 1,000,000] and "
        "'wide' in pieces [default: not measured]"
    )
    parser.add_argument("--users", type=int, help=text)
    text = "part 'curves': also 1,000,000 users in pieces, or --users"
    parser.add_argument("--scale", action="store_true", help=text)
    text = "seeds of each board of the parts 'wide' [default: 5, of some 10] and 'private' [3]"
    parser.add_argument("--seeds", type=int, help=text)
    args = parser.parse_args()
    if unknown := set(args.parts) - set(PARTS):
        parser.error(f"{', '.join(sorted(unknown))}: not one of {', '.join(PARTS)}")
    warnings.simplefilter("ignore")
    with threadpool_limits(1):
        for name in args.parts or PARTS:
            more = {"users": args.users} if name in ("scale", "pieces", "wide", "curves") else {}
            more |= {"scale": args.scale} if name == "curves" else {}
            more |= {"seeds": args.seeds} if name in ("wide", "private") else {}
            PARTS[name](quick=args.quick, data=args.data, **more)


if __name__ == "__main__":
    main()
