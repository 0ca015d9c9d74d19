"""The recipe of docs/scale.md for Spark, as it stands there, gives the result in memory."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests.engines.dask.tables import in_memory, sales

RECIPE = Path(__file__).parents[2] / "docs" / "scale.md"


@pytest.fixture(scope="module")
def spark():
    sql = pytest.importorskip("pyspark.sql", reason="PySpark is not installed")
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java, which is not at hand")
    builder = sql.SparkSession.builder.master("local[2]")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "4",
    }.items():
        builder = builder.config(name, value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        session = builder.getOrCreate()
        yield session
        session.stop()


def test_the_recipe_gives_the_result_in_memory(spark, tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", RECIPE.read_text("utf-8"), re.DOTALL)
    table = sales()
    own = {
        "spark": spark,
        "df": spark.createDataFrame(table.to_pandas()).repartition(3),
        "folder": str(tmp_path / "uploads"),
    }
    exec(compile(code, RECIPE.name, "exec"), own)
    found = own["predictions"].toPandas()
    whole = in_memory(table)
    assert own["step"].n_clusters == whole.n_clusters_
    wanted = np.sort(whole.predict(table))
    assert_allclose(np.sort(found["prediction"].to_numpy()), wanted, rtol=1e-8, atol=1e-8)
