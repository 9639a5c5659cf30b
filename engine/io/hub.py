"""Addresses on the hub, hf://...: a branch is resolved to its commit once, when a run is planned, so that
exactly the planned content is read. Torch-free.
"""

import re
from typing import cast

from atelier.engine.config.error import ConfigError, printable
from atelier.engine.io.remote import open_system

HUB = "hf://"
FORMS = "hf://datasets/<owner>/<name>[@<revision>]/<path>, or hf://<owner>/<name>[@<revision>] for a model"
REACH = "check the network, and HF_ENDPOINT if set; or copy the files here and give their path"
ANSWER_S = 20.0
_COMMIT = re.compile(r"hf://(?:\w+/)?[^/@]+/[^/@]+@([0-9a-f]{40})(?:/|$)")


def pinned(url: str, place: str) -> str:
    """`url` at the current commit of its revision (default: the main branch); addresses of other stores, and
    of buckets, which have no commits, are unchanged. Raises ConfigError if the hub cannot be reached, or does
    not have or show it.
    """
    if not url.startswith(HUB) or "::" in url:
        return url
    shown = printable(url)
    try:
        import huggingface_hub  # optional; its import takes half a second
        from huggingface_hub import errors
    except ImportError as error:
        raise ConfigError(
            place, f"{shown} needs the package huggingface_hub", "pip install huggingface_hub (the extra hf)"
        ) from error
    huggingface_hub.logging.set_verbosity_error()  # otherwise it reports each retry
    try:
        system = cast(huggingface_hub.HfFileSystem, open_system(url)[0])
        found = huggingface_hub.parse_hf_uri(url)
        if found.is_bucket:
            return url
        api = huggingface_hub.HfApi(endpoint=system.endpoint, token=system.token)
        about = api.repo_info(found.id, repo_type=found.type, revision=found.revision, timeout=ANSWER_S)
    except errors.GatedRepoError:
        raise ConfigError(
            place, f"{shown} needs its owner's permission", "request access there, and set HF_TOKEN"
        ) from None
    except errors.RepositoryNotFoundError:
        raise ConfigError(
            place,
            f"{shown}: {system.endpoint} has no such repository, or does not show it",
            "check the name; a private one needs HF_TOKEN (a data set's address begins with hf://datasets/)",
        ) from None
    except errors.RevisionNotFoundError:
        raise ConfigError(
            place, f"{shown} has no such revision", "give a branch, tag or commit, or leave @... out"
        ) from None
    except errors.HfHubHTTPError as error:
        problem = f"{shown}: {system.endpoint} answered {error.response.status_code}"
        raise ConfigError(place, problem, "HF_TOKEN may be missing or wrong; else try again later") from None
    except (ValueError, errors.HFValidationError) as error:
        raise ConfigError(place, f"{shown} is not a hub address ({printable(error)})", FORMS) from None
    except Exception as error:  # from its HTTP client, which differs between versions
        problem = f"{shown} cannot be reached ({type(error).__name__}: {printable(error)})"
        raise ConfigError(place, problem, REACH) from error
    if not re.fullmatch(r"[0-9a-f]{40}", str(about.sha)):
        raise ConfigError(place, f"{shown}: {system.endpoint} names no commit of it", "check HF_ENDPOINT")
    kind = "" if found.type == "model" else f"{found.type}s/"
    path = f"/{found.path_in_repo}" if found.path_in_repo else ""
    return f"{HUB}{kind}{found.id}@{about.sha}{path}"


def commit_of(url: str) -> str:
    """The commit in a hub address; '' if there is none: a branch, or another store."""
    found = _COMMIT.match(url)
    return found[1] if found else ""


def without_commit(url: str) -> str:
    """The path in the repository, from its /, of an address with a commit; other addresses unchanged."""
    found = _COMMIT.match(url)
    return url[found.end(1) :] if found else url
