"""A request's objects, its body and its turn's arguments are freed when it is answered."""

from collections import Counter
from pathlib import Path

import pytest

from kitchener.testing import ScriptedProvider
from tests.acceptance.stack import echo
from tests.serve.shared.requests import serving
from tests.shared.cycles import left_in_cycles


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_leaves_nothing_to_the_collector(tmp_path: Path, stream: bool) -> None:
    async with serving(tmp_path, ScriptedProvider(echo, record=False)) as client:
        assert await left_in_cycles(lambda: client.chat("hello", stream=stream)) == Counter()
        assert await left_in_cycles(lambda: client.chat("hello", "echo: hello", "and more", stream=stream)) == Counter()
        assert await left_in_cycles(lambda: client.chat("hello", stream=stream, model="NOBODY")) == Counter()
