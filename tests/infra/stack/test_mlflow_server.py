"""MLflow's start page shows the view of training runs if the browser has chosen none."""

import asyncio
from typing import Any

from atelier.infra.stack.mlflow_server import CHOICES, StartPage

PAGE = b"<html><head><title>MLflow</title></head><body></body></html>"


async def mlflow(scope: Any, receive: Any, send: Any) -> None:
    names = {name for name, _ in scope["headers"]}
    is_conditional = b"if-none-match" in names
    headers = [
        (b"content-length", str(len(PAGE)).encode()),
        (b"etag", b"1"),
        (b"x-frame-options", b"SAMEORIGIN"),
    ]
    await send({"type": "http.response.start", "status": 304 if is_conditional else 200, "headers": headers})
    await send({"type": "http.response.body", "body": PAGE[:20], "more_body": True})
    await send({"type": "http.response.body", "body": PAGE[20:]})


def answered(path: str, method: str = "GET") -> tuple[int, dict[bytes, bytes], bytes]:
    events: list[Any] = []

    async def send(event: Any) -> None:
        events.append(event)

    scope: Any = {"type": "http", "path": path, "method": method, "headers": [(b"if-none-match", b"1")]}
    asyncio.run(StartPage(mlflow)(scope, None, send))
    body = b"".join(event.get("body", b"") for event in events)
    return events[0]["status"], dict(events[0]["headers"]), body


def test_the_start_page_sets_each_choice_that_was_not_made_and_keeps_other_headers():
    status, headers, body = answered("/")
    assert status == 200 and headers[b"x-frame-options"] == b"SAMEORIGIN" and b"etag" not in headers
    assert int(headers[b"content-length"]) == len(body)
    assert all(f"getItem('{key}')===null".encode() in body for key in CHOICES)
    assert body.index(b"<script>") < body.index(b"</head>")


def test_other_pages_are_passed_on_unchanged():
    assert answered("/api/2.0/mlflow/runs/search", "POST")[2] == PAGE
    assert answered("/static-files/x.js")[0] == 304
