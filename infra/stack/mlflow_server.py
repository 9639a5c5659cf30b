"""MLflow's server with pages that open in the view for training runs: `python -m
atelier.infra.stack.mlflow_server` takes the arguments of `mlflow server --app-name basic-auth`.

MLflow 3.17 opens every experiment in its view for traces of applications ("GenAI") until the user chooses the
other view, and shows an assistant. Both choices are kept in the browser. The start page sets them if nothing
was chosen.
"""

import sys
from typing import TYPE_CHECKING, cast

from atelier.engine.config.tested import is_on

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, ASGISendEvent, Scope

MODULE = "atelier.infra.stack.mlflow_server"
CHOICES = {  # localStorage key -> JSON
    "mlflow.workflowType_v1": '"machine_learning"',
    "mlflow.assistant.fab.autoOpenedOnFirstLoad_v1": "true",
    "_mlflow_model_registry_promo_modal_dismissed_v1": "true",
}
CONDITIONAL = (b"if-none-match", b"if-modified-since", b"accept-encoding")


def script() -> bytes:
    """The HTML element that sets each choice that this browser lacks."""
    lines = "".join(
        f"localStorage.getItem('{key}')===null&&localStorage.setItem('{key}','{value}');"
        for key, value in CHOICES.items()
    )
    return f"<script>try{{{lines}}}catch(e){{}}</script>".encode()


class StartPage:
    """ASGI middleware: adds `script` to the page at `/`."""

    def __init__(self, app: "ASGI3Application") -> None:
        self._app = app

    async def __call__(
        self, scope: "Scope", receive: "ASGIReceiveCallable", send: "ASGISendCallable"
    ) -> None:
        if scope["type"] != "http" or scope["path"] != "/" or scope["method"] != "GET":
            await self._app(scope, receive, send)
            return
        start: list[ASGISendEvent] = []
        parts: list[bytes] = []

        async def changed(event: "ASGISendEvent") -> None:
            if event["type"] == "http.response.start":
                start.append(event)
            elif event["type"] == "http.response.body" and start:
                parts.append(event.get("body", b""))
                if not event.get("more_body"):
                    await self._send(start[0], b"".join(parts), send)
            else:
                await send(event)

        headers = [pair for pair in scope["headers"] if pair[0] not in CONDITIONAL]
        await self._app(cast("Scope", {**scope, "headers": headers}), receive, changed)

    async def _send(self, start: "ASGISendEvent", page: bytes, send: "ASGISendCallable") -> None:
        page = page.replace(b"</head>", script() + b"</head>", 1)
        kept = [
            pair for pair in start.get("headers", ()) if pair[0].lower() not in (b"content-length", b"etag")
        ]
        headers = [*kept, (b"content-length", str(len(page)).encode())]
        await send(cast("ASGISendEvent", {**start, "headers": headers}))
        await send({"type": "http.response.body", "body": page, "more_body": False})


def create_app() -> "ASGI3Application":
    """MLflow's app with users and passwords, its start page changed."""
    from mlflow.server.auth import create_app as with_users  # takes seconds, and only the server needs it

    return StartPage(cast("ASGI3Application", with_users()))


def main(arguments: list[str]) -> None:
    """Run `mlflow server` with `create_app` in place of the app of basic-auth."""
    import mlflow.server  # as above
    from mlflow.cli import server

    if is_on("start page"):
        mlflow.server._find_app = lambda name: f"{MODULE}:create_app"
    server(arguments, standalone_mode=True, prog_name="mlflow server")


if __name__ == "__main__":
    main(sys.argv[1:])
