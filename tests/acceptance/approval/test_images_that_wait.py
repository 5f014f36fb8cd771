"""The turn that continues after an approval shows the message's images and files again."""

from pathlib import Path
from typing import Any

import pytest

from kitchener import ImagePart
from kitchener.replaying import read_prompts
from tests.acceptance.approval.kit import Desk, model, open_desk, replayed
from tests.acceptance.replies.content_kit import png, replies, shown
from tests.acceptance.stack import scripted_config

ONE = [("delete", {"path": "a"})]
IMAGES = ("image/*",)
MODES = pytest.mark.parametrize("mode", [{}, {"context_mode": "enforce"}], ids=["attention", "authority"])


@MODES
async def test_the_turn_that_goes_on_shows_the_images_once(tmp_path: Path, mode: dict[str, Any]) -> None:
    """After a restart, and after each of two answers; another subject's image is not among them."""
    root, desk, rounds = tmp_path / "root", Desk(), [ONE, [("delete", {"path": "b"})]]
    async with open_desk(root, desk, model(*rounds, media_types=IMAGES), **mode) as runtime:
        supervisor = runtime.supervisor()
        waiting = await supervisor.handle_turn("tidy up", subject_id="ada", parts=[ImagePart(png(seed=1))])
        other = await supervisor.handle_turn("tidy up", subject_id="bo", parts=[ImagePart(png(seed=2))])
    provider = model(*rounds, media_types=IMAGES)
    async with open_desk(root, desk, provider, **mode) as runtime:
        again = await runtime.supervisor().approve(waiting.pending_approval[0])
        assert again is not None
        done = await runtime.supervisor().approve(again.pending_approval[0])
        assert done is not None
        assert done.response == "done: deleted a | deleted b"
    assert [shown(each) for each in replies(provider)] == [[png(seed=1)], [png(seed=1)]]
    for session_id, turns in ((waiting.session_id, 3), (other.session_id, 1)):
        assert await replayed(root, desk, session_id, **mode) == turns
    prompts = await read_prompts(done.turn_id, config=scripted_config(root, **mode))
    assert prompts.problem is None
    assert [each.is_verified for each in prompts.calls] == [True]


@MODES
async def test_a_model_that_takes_no_images_goes_on_without_them(tmp_path: Path, mode: dict[str, Any]) -> None:
    """The settings have changed since the call was asked for."""
    root, desk = tmp_path / "root", Desk()
    async with open_desk(root, desk, model(ONE, media_types=IMAGES), **mode) as runtime:
        waiting = await runtime.supervisor().handle_turn("tidy up", subject_id="ada", parts=[ImagePart(png())])
    provider = model(ONE, media_types=("text/*",))
    async with open_desk(root, desk, provider, **mode) as runtime:
        done = await runtime.supervisor().approve(waiting.pending_approval[0])
        assert done is not None
        assert done.error is None
    assert [shown(each) for each in replies(provider)] == [[]]
    assert desk.done == ["delete a"]
    assert await replayed(root, desk, waiting.session_id, **mode) == 2
