"""Write the kept results anew: ``python -m tests.golden [NAME ...]``."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from tests.golden.cases import NAMES, result

KEPT = Path(__file__).with_name("results.json")

if __name__ == "__main__":
    found = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    for name in sys.argv[1:] or NAMES:
        with tempfile.TemporaryDirectory() as folder:
            found[name] = result(name, Path(folder))
    lines = [f"{json.dumps(name)}: {json.dumps(found[name])}" for name in NAMES if name in found]
    KEPT.write_text("{\n" + ",\n".join(lines) + "\n}\n")
