"""One folder for what is fitted, written whole and checked file by file when it is read.

files = {"model.json": json_bytes({...}), "models.safetensors": array_file({...})}
write_artifact("run", Artifact("model", files))
with open_artifact("run", kind="model") as stored:
    words = stored.words("model.json")
    arrays = stored.arrays("models.safetensors", {"theta": ArraySpec(("users", "dim"))})
"""
