"""Addresses of the MLflow pages of a run or a model, asked of the server in use: it may have been started
after the run, on the same database.
"""

from atelier.infra.stack.service import answers
from atelier.infra.store.store import Store
from atelier.infra.tracking.address import tracking_address, without_secret
from atelier.infra.tracking.own_database import own_files
from atelier.infra.tracking.page import Links


def mlflow_server(store: Store) -> str:
    """The URL of the MLflow server in use, without a password; '' if there is none, or it does not answer."""
    uri = tracking_address("", store)
    return without_secret(uri) if uri.startswith("http") and answers(without_secret(uri)) else ""


def run_page(store: Store, run_id: str) -> str:
    """The page of a flow's run; '' if the server in use has none. Raises what MLflow's client raises."""
    from atelier.infra.tracking.backend import Backend  # imports MLflow: two seconds

    backend = Backend(tracking_address("", store), own_files(store))
    found = backend.find_run(backend.experiments(), {"atelier.run": run_id, "atelier.kind": "flow"})
    return Links(backend.page).run(found.info.experiment_id, found.info.run_id) if found is not None else ""


def model_pages_of(store: Store, fingerprint: str) -> dict[str, str]:
    """Pages of a model by what they show: `registered` (its newest version), `model` (where it is logged,
    with its lineage). Raises as above.
    """
    from atelier.infra.tracking.backend import Backend, tag_filter  # as above

    backend = Backend(tracking_address("", store), own_files(store))
    links, pages = Links(backend.page), dict[str, str]()
    mine = {"atelier.fingerprint": fingerprint}
    versions = backend.client.search_model_versions(tag_filter(mine))
    if versions:
        newest = max(versions, key=lambda one: one.creation_timestamp or 0)
        pages["registered"] = links.registered(newest.name, str(newest.version))
    models = backend.find_models(backend.experiments(), mine | {"atelier.kind": "model"})
    if models:
        pages["model"] = links.model(str(models[0].experiment_id), models[0].model_id)
    return pages
