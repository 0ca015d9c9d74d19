"""What runs on a piece of a table: Arrow tables in, Arrow tables out, whoever carries them.

    terms of rows    -> upload_rows(rows, job)                     one row per user
    last step        -> user_models(uploads, job, step)            one row per user
    predictions      -> predict_rows(rows, models, groups)         one row per row

Each user must be whole in one piece: rows are brought together by user first (a shuffle, or
``repartition``), or, with squared loss, pieces of uploads are added up by :func:`merge_uploads`.
"""

from odcl.engines.partition.look import Job
from odcl.engines.partition.models import UserColumns, user_models
from odcl.engines.partition.predict import predict_rows
from odcl.engines.partition.uploads import merge_uploads, upload_rows

__all__ = [
    "Job",
    "UserColumns",
    "merge_uploads",
    "predict_rows",
    "upload_rows",
    "user_models",
]
