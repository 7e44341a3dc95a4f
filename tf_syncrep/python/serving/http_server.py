"""`tf-syncrep serve-model`: a follower by HTTP, in TensorFlow Serving's REST form."""

from __future__ import annotations

import asyncio
import base64
import json
import signal
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging
from aiohttp import web

from tf_syncrep.python.serving.follower import SERVE, Follower

# Larger requests are refused with status 413.
_MOST_BYTES = 64 * 2**20
_MODEL = "/v1/models/{name:[^/:]+}"


class ServeError(Exception):
    """Nothing can be served; the message says why, in one line."""


def serve(folder: str, name: str, host: str, port: int) -> None:
    """Serves what is published in a folder until SIGTERM or SIGINT.

    `port`: 0 for a free one. Raises ServeError.
    """
    try:
        follower = Follower(folder, on_version=_tell)
    except ValueError as error:
        raise ServeError(str(error)) from error
    with follower:
        asyncio.run(_serve(follower, name, host, port))


def _tell(follower: Follower) -> None:
    print(f"version {follower.version}: {follower.updates} updates", flush=True)


async def _serve(follower: Follower, name: str, host: str, port: int) -> None:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def end(signum: int, frame: Any) -> None:
        del signum, frame
        # More of them may come while it ends, which the loop would leave to Python.
        if not loop.is_closed():
            loop.call_soon_threadsafe(ended.set)

    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, end)
    runner = web.AppRunner(_Api(follower, name).app(), access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        at_host, at_port = runner.addresses[0][:2]
        at_host = f"[{at_host}]" if ":" in at_host else at_host
        print(f"serving http://{at_host}:{at_port}/v1/models/{name}", flush=True)
        await ended.wait()
    except OSError as error:
        raise ServeError(f"cannot listen at {host}, port {port}: {error}") from error
    finally:
        await runner.cleanup()


class _Api:
    """The paths, and what is answered."""

    def __init__(self, follower: Follower, name: str):
        self._follower, self._name = follower, name

    def app(self) -> web.Application:
        app = web.Application(client_max_size=_MOST_BYTES, middlewares=[_with_errors])
        app.router.add_get("/healthz", self._health)
        app.router.add_get(_MODEL, self._status)
        app.router.add_post(f"{_MODEL}:predict", self._predict)
        return app

    async def _health(self, request: web.Request) -> web.Response:
        del request
        numbers = self._follower.numbers()
        return _json(numbers, status=200 if numbers["version"] else 503)

    async def _status(self, request: web.Request) -> web.Response:
        self._check_name(request)
        version = self._follower.version
        state = "AVAILABLE" if version else "LOADING"
        status = {"error_code": "OK", "error_message": ""}
        one = {"version": str(version), "state": state, "status": status}
        return _json({"model_version_status": [one]})

    async def _predict(self, request: web.Request) -> web.Response:
        self._check_name(request)
        text = await request.read()
        # TensorFlow, and the wait while a version is applied, would hold up others.
        return await asyncio.to_thread(self._answer, text)

    def _answer(self, text: bytes) -> web.Response:
        body = _parsed(text)
        with self._follower.reading() as model:
            names = sorted(model.signatures[SERVE].structured_input_signature[1])
        if "inputs" in body:
            given = body["inputs"]
            inputs = given if isinstance(given, dict) else _only(names, given)
            outputs = _arrays(self._follower(**inputs))
            found = outputs if len(outputs) > 1 else next(iter(outputs.values()))
            return _json({"outputs": found})
        rows = body["instances"]
        outputs = _arrays(self._follower(**_columns(names, rows)))
        return _json({"predictions": _rows(outputs, len(rows))})

    def _check_name(self, request: web.Request) -> None:
        if (name := request.match_info["name"]) != self._name:
            raise web.HTTPNotFound(
                text=f"The model that is served is {self._name!r}. Received: {name!r}"
            )


@web.middleware
async def _with_errors(request: web.Request, handler: Any) -> web.StreamResponse:
    """Answers errors as TensorFlow Serving does."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        message, status = error.text or error.reason, error.status
    except (ValueError, tf.errors.InvalidArgumentError) as error:
        message, status = str(error), 400
    except RuntimeError as error:  # There is no version yet.
        message, status = str(error), 503
    except Exception as error:
        logging.exception("A request failed")
        message, status = str(error), 500
    return _json({"error": message}, status)


def _json(content: Any, status: int = 200) -> web.Response:
    text = json.dumps(content, default=_of_bytes)
    return web.Response(text=text, status=status, content_type="application/json")


def _of_bytes(value: bytes) -> Any:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return _in_base64(value)


def _in_base64(value: bytes) -> dict[str, str]:
    return {"b64": base64.b64encode(value).decode()}


def _to_bytes(found: dict[str, Any]) -> Any:
    """Returns the bytes for which an object stands, or the object."""
    if found.keys() != {"b64"}:
        return found
    return base64.b64decode(found["b64"], validate=True)


def _parsed(text: bytes) -> dict[str, Any]:
    """Returns the body of a request, with either `inputs` or `instances`."""
    try:
        body = json.loads(text, object_hook=_to_bytes)
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(
            f"A request must be JSON, with bytes in base64. Received: {error}"
        ) from error
    has = sorted(body) if isinstance(body, dict) else body
    if not isinstance(body, dict) or ("inputs" in body) == ("instances" in body):
        raise ValueError(
            "A request must be an object with either `instances`, a list of rows, or "
            f"`inputs`, the columns. Received: {_short(has)}"
        )
    if (name := body.get("signature_name", SERVE)) != SERVE:
        raise ValueError(f"`signature_name` must be {SERVE!r}. Received: {name!r}")
    return body


def _columns(names: list[str], rows: Any) -> dict[str, list[Any]]:
    """Returns the inputs of which a request has rows."""
    if not isinstance(rows, list) or not rows:
        raise ValueError(
            f"`instances` must be a list of at least one row. Received: {_short(rows)}"
        )
    rows = [row if isinstance(row, dict) else _only(names, row) for row in rows]
    for row in rows:
        if set(row) != set(names):
            raise ValueError(
                f"Each of `instances` must have the inputs {names}. Received: "
                f"{sorted(row)}"
            )
    return {name: [row[name] for row in rows] for name in names}


def _only(names: list[str], value: Any) -> dict[str, Any]:
    """Returns the inputs of a model that has only one."""
    if len(names) != 1:
        raise ValueError(
            f"Values must be given by the names of the inputs, {names}. Received: "
            f"{_short(value)}"
        )
    return {names[0]: value}


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."


def _arrays(outputs: Mapping[str, tf.Tensor]) -> dict[str, Any]:
    return {name: _array(name, x) for name, x in outputs.items()}


def _array(name: str, tensor: tf.Tensor) -> Any:
    if tensor.dtype != tf.string:
        return tensor.numpy().tolist()
    values = np.asarray(tensor.numpy(), object)
    # The end of its name says that an output is of bytes, as in TensorFlow Serving.
    if name.endswith("_bytes"):
        values = np.vectorize(_in_base64, otypes=[object])(values)
    return values.tolist()


def _rows(outputs: Mapping[str, Any], num_rows: int) -> list[Any]:
    """Returns what is predicted for each row."""
    for name, values in outputs.items():
        if not isinstance(values, list) or len(values) != num_rows:
            raise ValueError(
                f"The output {name!r} is not of rows: ask by `inputs`. Received: "
                "`instances`"
            )
    if len(outputs) == 1:
        return next(iter(outputs.values()))
    rows = zip(*outputs.values(), strict=True)
    return [dict(zip(outputs, row, strict=True)) for row in rows]
