"""Print the requirements of the image `control` from pyproject.toml; worker images add torch."""

import sys
import tomllib

EXTRAS = ("cluster", "s3", "hf", "parquet")
with open(sys.argv[1], "rb") as file:
    project = tomllib.load(file)["project"]
extras = project["optional-dependencies"]
print("\n".join(project["dependencies"] + [line for name in EXTRAS for line in extras[name]]))
