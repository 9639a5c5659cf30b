"""Create self-contained registered versions: copies of weights and tokenizer, with the engine's code and the
predictor, no pickle.
"""

import json
import os
import shutil
import tempfile
import warnings
from contextlib import suppress
from pathlib import Path

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # MLflow's own deprecation warnings
    from mlflow.exceptions import MlflowException
    from mlflow.models import Model
    from mlflow.models.signature import ModelSignature
    from mlflow.pyfunc import save_model  # type: ignore[reportPrivateImportUsage]  # the documented name
    from mlflow.types import DataType, ParamSchema, ParamSpec

    from atelier.infra.tracking.predictor import DEFAULTS

from atelier import IMPORT_ROOT, PROJECT
from atelier.engine.config.project_roots import other_roots
from atelier.engine.config.record import Record
from atelier.engine.io.artifact import ArtifactInput
from atelier.engine.io.local_url import file_url
from atelier.engine.io.storage import is_local, local_path
from atelier.infra.code.provenance import versions
from atelier.infra.store.store import RECORD, Store
from atelier.infra.tracking.backend import Backend

EXTERNAL = "mlflow.model.isExternal"
VERSIONS = "mlflow.modelVersions"  # tag from which a logged model's page lists its versions
NEEDED = ("torch", "numpy", "pydantic", "safetensors", "tokenizers", "fsspec")


def new_version(
    backend: Backend,
    store: Store,
    record: Record,
    *,
    name: str,
    model_id: str,
    run_id: str,
    tags: dict[str, str],
) -> str:
    """Log the model's files to MLflow and create a version of `name`, unless one with this fingerprint
    exists; returns its number.
    """
    client = backend.client
    with suppress(MlflowException):
        client.create_registered_model(name)  # exists already, or the search below fails with the reason
    found = client.search_model_versions(
        f"name = '{name}' AND tags.`atelier.fingerprint` = '{record.fingerprint}'"
    )
    if found:
        return str(found[0].version)
    base = local_path(store.root) if is_local(store.root) else None
    with tempfile.TemporaryDirectory(prefix=".tmp-version-", dir=base) as folder:
        saved = save(record, store, Path(folder), model_id)
        client.log_model_artifacts(model_id, str(saved))
    with suppress(MlflowException):
        client.delete_logged_model_tag(model_id, EXTERNAL)
    # a server resolves models:/ itself; without one MLflow would look in the process's default database
    source = f"models:/{model_id}" if backend.page else client.get_logged_model(model_id).artifact_location
    version = client.create_model_version(
        name, source, run_id=run_id, tags=tags, model_id=model_id, await_creation_for=0
    )
    shown = client.get_logged_model(model_id).tags.get(VERSIONS, "[]")
    listed = [*json.loads(shown), {"name": name, "version": str(version.version)}]
    client.set_logged_model_tags(model_id, {VERSIONS: json.dumps(listed)})
    return str(version.version)


def save(record: Record, store: Store, folder: Path, model_id: str) -> Path:
    """Write a folder that `mlflow.pyfunc.load_model` reads; files are hard-linked where the file system
    allows.
    """
    stage, saved = folder / "stage", folder / "saved"
    (stage / "model").mkdir(parents=True)
    (stage / "code").mkdir()
    (stage / "model" / RECORD).write_text(record.text())
    defaults = {
        "max_tokens": DataType.long,
        "temperature": DataType.double,
        "top_p": DataType.double,
        "seed": DataType.long,
    }
    parameters = ParamSchema([ParamSpec(key, kind, DEFAULTS[key]) for key, kind in defaults.items()])
    have = versions()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice to give an input example, which would have to run the model
        save_model(
            str(saved),
            python_model=str(Path(__file__).with_name("predictor.py")),
            artifacts={"model": file_url(stage / "model"), "code": file_url(stage / "code")},
            signature=ModelSignature(params=parameters),
            pip_requirements=[f"{lib}=={have[lib]}" if lib in have else lib for lib in NEEDED],
            mlflow_model=Model(model_id=model_id),
        )
    code = saved / "artifacts" / "code" / "atelier"  # after MLflow has copied the staged folders
    shutil.copytree(PROJECT / "engine", code / "engine", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(IMPORT_ROOT / "atelier" / "__init__.py", code)
    for root in other_roots():
        for path in root.sources():
            target = code.parent / "roots" / root.name / path.relative_to(root.folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    source = ArtifactInput(url=store.address(record.kind, record.fingerprint), record=record)
    for entry in record.files:
        target = saved / "artifacts" / "model" / entry.path
        target.parent.mkdir(parents=True, exist_ok=True)
        _put(source.file(entry.path, folder / "fetched"), target)
    return saved


def _put(path: Path, target: Path) -> None:
    try:
        os.link(path, target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(path, target)
