"""An alias on the pages of MLflow's registered models."""

from atelier.infra.store import Store
from atelier.infra.tracking.address import tracking_address


def show_alias(store: Store, fingerprint: str, alias: str) -> list[str]:
    """Give `alias` to every registered version of the model; `name@alias` of each. Raises what MLflow's
    client raises.
    """
    from atelier.infra.tracking.backend import Backend  # MLflow: two seconds

    backend = Backend(tracking_address("", store), f"{store.root}/mlartifacts")
    found = []
    for version in backend.client.search_model_versions(f"tags.`atelier.fingerprint` = '{fingerprint}'"):
        backend.alias(version.name, alias, str(version.version))
        found.append(f"{version.name}@{alias}")
    return found
