"""Atelier: a workflow-DAG experiment platform for language models.

The folders engine, infra, tasks, flows and conf are parts of this package. Installed and frozen code has them
beside this file, a checkout at its top.
"""

from pathlib import Path

__version__ = "0.1.0"  # in the code, so that frozen code and images without a package know theirs
IMPORT_ROOT = Path(__file__).resolve().parent.parent  # must be on Python's path
PROJECT = IMPORT_ROOT / "atelier"  # the folder with engine, infra, tasks, flows and conf
if not (PROJECT / "engine").is_dir():
    PROJECT = IMPORT_ROOT.parent
    __path__.append(str(PROJECT))
