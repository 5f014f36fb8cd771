"""An assistant that reads files unasked and asks before it writes: the request survives a restart, and a refusal is heard.

    python -m examples.file_assistant.main

The tools are those of an MCP server, `files_server.py`, and the settings are those of `kitchener.toml`. A model of fixed rules
takes the steps that a real one would take: it lists the folder, reads the files side by side, and writes down what is to do.
The README says how to talk with the assistant in a terminal.
"""

import re
import shutil
import sys
import tempfile
from pathlib import Path

import anyio

from kitchener import RuntimeConfig, open_runtime, replay_session
from kitchener.gateway import PromptRequest, ToolUse
from kitchener.runtime import load_config
from kitchener.testing import ScriptedProvider, use_tool

HERE = Path(__file__).parent
MESSAGE = "Collect what is to do in todo.txt, please."


def next_step(request: PromptRequest) -> str | ToolUse | tuple[ToolUse, ...]:
    """What the model of fixed rules does next, from the results that it has so far."""
    results = [(each.tool_id, each.content) for each in request.messages if each.role == "tool"]
    if not results:
        return use_tool("files__list_directory", path=".")
    read = [content for tool_id, content in results if tool_id == "files__read_text_file"]
    if not read:
        names = re.findall(r"\[FILE\] ([\w.]+)", results[0][1])
        return tuple(use_tool("files__read_text_file", path=name) for name in names if name != "todo.txt")
    tool_id, content = results[-1]
    if tool_id == "files__read_text_file":
        tasks = [task.strip() for each in read for task in re.findall(r"To do: ([\w ]+)", each)]
        return use_tool("files__write_file", path="todo.txt", content="".join(f"- {task}\n" for task in tasks))
    return "I did not write the list." if '"error"' in content else "The list is in todo.txt."


def settings(home: Path) -> RuntimeConfig:
    """Those of the file, for a folder and ledgers below `home`, and for the model of fixed rules."""
    server = {"command": sys.executable, "args": [str(HERE / "files_server.py"), str(home / "documents")]}
    changed = {"mcp": {"files": server}, "router": {"default_provider": "fixed"}}
    return load_config(HERE / "kitchener.toml", root=home / "ledgers", overrides=changed).config


async def main(home: Path) -> None:
    """One request, allowed after a restart; the same once more, refused; and the record of it all."""
    shutil.copytree(HERE / "documents", home / "documents")
    todo, config = home / "documents" / "todo.txt", settings(home)
    providers = {"fixed": ScriptedProvider(next_step)}

    async with open_runtime(config, providers=providers) as runtime:
        asked = await runtime.supervisor("ASSISTANT").handle_turn(MESSAGE, subject_id="ada")
    print(f"ada: {MESSAGE}\nbot: {asked.response}\n")
    assert len(asked.pending_approval) == 1
    assert not todo.exists(), "nothing is written before somebody allows it"

    print("(The process ends. A new one finds the request in the ledger.)\n")
    async with open_runtime(config, providers=providers) as runtime:
        assistant = runtime.supervisor("ASSISTANT")
        done = await assistant.approve(asked.pending_approval[0], answered_by="ada")
        assert done is not None
        print(f"ada: yes\nbot: {done.response}\n{todo.read_text()}")
        assert todo.read_text().count("- ") == 2

        todo.write_text("- nothing\n")
        again = await assistant.handle_turn(MESSAGE, session_id=asked.session_id)
        refused = await assistant.deny(again.pending_approval[0], reason="I have a list already.", answered_by="ada")
        assert refused is not None
        print(f"ada: {MESSAGE}\nada: no, I have a list already.\nbot: {refused.response}\n")
        assert todo.read_text() == "- nothing\n"
        for ledger in (runtime.ledgers("ASSISTANT").ho1m, runtime.ledgers("ASSISTANT").ho2m):
            assert (await ledger.verify()).ok

    report = await replay_session(asked.session_id, config=config)
    print(report.text())
    assert report.is_identical


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        anyio.run(main, Path(folder))
