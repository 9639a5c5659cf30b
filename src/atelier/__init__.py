"""Atelier: a workflow-DAG experiment platform for language models.

The folders engine, infra, tasks, flows and conf are parts of this package: installed and frozen code has them
beside this file, a checkout at its top.
"""

from pathlib import Path

IMPORT_ROOT = Path(__file__).resolve().parent.parent  # what has to be on Python's path
PROJECT = IMPORT_ROOT / "atelier"  # the folder that engine, infra, tasks, flows and conf lie in
if not (PROJECT / "engine").is_dir():
    PROJECT = IMPORT_ROOT.parent
    __path__.append(str(PROJECT))
