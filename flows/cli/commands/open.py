"""`atelier open <run|model>`: open the page of a run in Prefect or MLflow, or of a model in MLflow."""

import json
import os
import sys
import webbrowser
from argparse import Namespace
from contextlib import suppress
from pathlib import Path
from typing import TypedDict

from atelier.engine.config.error import AtelierError, ConfigError, nearest, printable
from atelier.engine.io.local_url import file_url
from atelier.engine.io.storage import is_local, local_path
from atelier.flows.run.named_run import one_run, runs_called
from atelier.flows.run.queued_runs import queued_run
from atelier.flows.run.store_check import open_store
from atelier.infra.report.run_detail import run_detail
from atelier.infra.stack.service import answers
from atelier.infra.stack.stack import join_stack
from atelier.infra.store.run_manifest import RunManifest, manifests
from atelier.infra.store.store import Store
from atelier.infra.tracking.address import tracking_address, without_secret

PAGES = ("prefect", "mlflow", "registered", "model", "report")  # the best first, of a run and of a model
SCREENS = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")


class OpenedPage(TypedDict):
    """Output of `atelier open --json`. `what` is run or model, `pages` has every page that answers, `url` the
    one of them that is opened without --json.
    """

    what: str
    id: str
    pages: dict[str, str]
    url: str


def run(options: Namespace) -> int:
    """Print the address, and open it if there is a browser. Returns the exit code. Raises ConfigError for a
    word that is neither a run nor a model, and if no server has a page of it.
    """
    if options.page and options.page not in PAGES:
        near = nearest(options.page, PAGES)
        way_out = (f"did you mean {near}? " if near else "") + f"there are: {', '.join(PAGES)}"
        raise ConfigError("open --page", f"no page {options.page!r}", way_out)
    store = open_store()
    what, name, pages = _found(store, options.what)
    chosen = options.page or next((one for one in PAGES if one in pages and one != "report"), "")
    if chosen not in pages:
        raise ConfigError(
            "open", f"{what} {name} has no page{f' {chosen}' if chosen else ''} here", _way_out(pages)
        )
    url = pages[chosen]
    if options.json:
        print(json.dumps(OpenedPage(what=what, id=name, pages=pages, url=url), indent=1))
        return 0
    print(printable(url, 0), flush=True)
    if not _open(url):
        print("no browser opens here; open the address above in one", file=sys.stderr)
    return 0


def _way_out(pages: dict[str, str]) -> str:
    start = "`atelier up` starts the servers of pages"
    return f"there are: {', '.join(pages)} (--page)" if pages else start


def _open(url: str) -> bool:
    """Open the page in a browser with a screen; a browser of the terminal would take the terminal."""
    has_screen = sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in SCREENS)
    with suppress(webbrowser.Error):
        return has_screen and webbrowser.open(url)
    return False


def _found(store: Store, word: str) -> tuple[str, str, dict[str, str]]:
    """For a run or a model that the word names: "run" or "model", its id, name -> address of pages."""
    run = one_run(runs_called(manifests(store), word), word, "open")
    if run is not None:
        return "run", run.id, _of_run(store, run)
    try:
        model = store.resolve(word, "model")
    except AtelierError as error:
        if (waiting := queued_run(store.root, word)) is not None:
            return "run", waiting.id, _prefect(store, waiting.flow_run, "")
        raise ConfigError(
            "open", f"no run is called {word}, and {error}", "`atelier runs` lists the runs"
        ) from None
    pages = _asked(store, "model", model.fingerprint)
    made = [one for one in manifests(store) if one.id == model.provenance.get("run")]
    return "model", model.fingerprint, {**pages, **(_of_run(store, made[0]) if made and not pages else {})}


def _of_run(store: Store, manifest: RunManifest) -> dict[str, str]:
    pages = _prefect(store, manifest.links.get("flow_run", ""), manifest.links.get("prefect.url", ""))
    pages |= _asked(store, "run", manifest.id)
    stored = manifest.links.get("mlflow.flow", "")  # on another server than the one in use
    if not pages.get("mlflow") and stored.startswith("http") and answers(stored.partition("/#")[0]):
        pages["mlflow"] = stored
    report = run_detail(store, manifest)["report"]
    if report and is_local(report) and (path := Path(local_path(report))).exists():
        pages["report"] = file_url(path)
    return {name: url for name, url in pages.items() if url}


def _prefect(store: Store, flow_run: str, stored: str) -> dict[str, str]:
    """The page on the server in use if it has the run, else where the run was."""
    join_stack(store.root)
    if flow_run and os.environ.get("PREFECT_API_URL"):
        from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError  # late: 1.5 s

        from atelier.infra.stack import prefect_api  # as above

        with suppress(ObjectNotFound, PrefectHTTPStatusError):
            if prefect_api.read_run(flow_run) is not None:
                return {"prefect": prefect_api.page(flow_run)}
    return {"prefect": stored} if stored and answers(stored) else {}


def _asked(store: Store, what: str, name: str) -> dict[str, str]:
    """Pages that the MLflow server in use has of a run or model; none without a server, or if it refuses. It
    may have been started after the run, on the same database.
    """
    uri = tracking_address("", store)
    if not uri.startswith("http") or not answers(without_secret(uri)):
        return {}
    from mlflow.exceptions import MlflowException  # late: two seconds

    from atelier.infra.tracking.direct import model_pages_of, run_page  # as above

    with suppress(MlflowException):
        return {"mlflow": run_page(store, name)} if what == "run" else model_pages_of(store, name)
    return {}
