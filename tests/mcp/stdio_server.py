"""A small MCP server over standard input and output, without the vendor's library, that can misbehave in many ways.

    python stdio_server.py FOLDER

It lists the tools of FOLDER/tools.json, and appends the name of each called tool to FOLDER/calls. What a tool does follows from
its name. It speaks the handshake of 2025-11-25, starts in a few milliseconds and needs no package.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

FOLDER = Path(sys.argv[1])
HELD: list[object] = []


def send(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def answer(request_id: object, text: str, **fields: Any) -> None:
    send({"id": request_id, "result": {"content": [{"type": "text", "text": text}], **fields}})


def echo(request_id: object, arguments: dict[str, Any], params: dict[str, Any]) -> None:
    answer(request_id, str(arguments.get("text", "")))


def die(request_id: object, arguments: dict[str, Any], params: dict[str, Any]) -> None:
    sys.stderr.write("out of memory\n")
    sys.stderr.flush()
    os._exit(3)


def die_once(request_id: object, arguments: dict[str, Any], params: dict[str, Any]) -> None:
    if (FOLDER / "died").exists():
        answer(request_id, "die_once ran")
    else:
        (FOLDER / "died").touch()
        os._exit(3)


def hold(request_id: object, arguments: dict[str, Any], params: dict[str, Any]) -> None:
    HELD.append(request_id)


def release(request_id: object, arguments: dict[str, Any], params: dict[str, Any]) -> None:
    for each in (*HELD, request_id):
        answer(each, "released")
    HELD.clear()


def garbage(request_id: object, arguments: dict[str, Any], params: dict[str, Any]) -> None:
    sys.stdout.write('this is no JSON\n{"jsonrpc": 7}\n[]\n\n')
    answer(request_id, "after garbage")


def big(request_id: object, arguments: dict[str, Any], params: dict[str, Any]) -> None:
    answer(request_id, "x" * int(arguments.get("size", 10_000_000)))


def fails(request_id: object, arguments: dict[str, Any], params: dict[str, Any]) -> None:
    answer(request_id, "the disk is full", isError=True)


def refused(request_id: object, arguments: dict[str, Any], params: dict[str, Any]) -> None:
    send({"id": request_id, "error": {"code": -32602, "message": "no such thing"}})


def wrong_form(request_id: object, arguments: dict[str, Any], params: dict[str, Any]) -> None:
    send({"id": request_id, "result": {"content": "no list"}})


def environment(request_id: object, arguments: dict[str, Any], params: dict[str, Any]) -> None:
    answer(request_id, json.dumps(dict(os.environ)))


def change(request_id: object, arguments: dict[str, Any], params: dict[str, Any]) -> None:
    (FOLDER / "tools.json").write_text(json.dumps(arguments["tools"]))
    send({"method": "notifications/tools/list_changed"})
    answer(request_id, "changed")


def progress(request_id: object, arguments: dict[str, Any], params: dict[str, Any]) -> None:
    token = (params.get("_meta") or {}).get("progressToken")
    for value in (1, 2):
        send({"method": "notifications/progress", "params": {"progressToken": token, "progress": value, "total": 2}})
    answer(request_id, "done")


TOOLS = (echo, die, die_once, hold, release, garbage, big, fails, refused, wrong_form, environment, change, progress)
BY_NAME = {each.__name__: each for each in TOOLS}


def call(request_id: object, name: str, params: dict[str, Any]) -> None:
    with (FOLDER / "calls").open("a") as calls:
        calls.write(f"{name}\n")
    if name in BY_NAME:
        BY_NAME[name](request_id, params.get("arguments") or {}, params)
    else:
        answer(request_id, f"{name} ran")


def main() -> None:
    if (FOLDER / "deaf").exists():  # hangs before it has said anything
        time.sleep(3_600)
    if (FOLDER / "broken").exists():
        sys.exit("no such table: settings")
    for line in sys.stdin:
        message = json.loads(line)
        request_id, method, params = message.get("id"), message.get("method"), message.get("params") or {}
        if method == "initialize":
            capabilities = {"tools": {"listChanged": True}}
            info = {"name": "faults", "version": "1"}
            result = {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": info}
            send({"id": request_id, "result": result})
        elif method == "tools/list":
            send({"id": request_id, "result": {"tools": json.loads((FOLDER / "tools.json").read_text())}})
        elif method == "tools/call":
            call(request_id, params["name"], params)
        elif request_id is not None:
            send({"id": request_id, "error": {"code": -32601, "message": "method not found"}})
        else:
            with (FOLDER / "notes").open("a") as notes:
                notes.write(f"{method}\n")


main()
