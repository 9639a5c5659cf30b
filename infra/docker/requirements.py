"""Print an image's requirements from pyproject.toml: `control` has all but torch, which worker images add."""

import sys
import tomllib

EXTRAS = ("cluster", "s3", "hf", "parquet")
with open(sys.argv[1], "rb") as file:
    project = tomllib.load(file)["project"]
extras = project["optional-dependencies"]
wanted = project["dependencies"] + [line for name in EXTRAS for line in extras[name]]
print("\n".join(line for line in wanted if not line.startswith("torch")))
