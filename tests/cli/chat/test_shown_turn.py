"""What `chat` shows of a turn that ended in a way that its text does not tell."""

import pytest

from kitchener.cli.chat.shown_turn import ShownTurn
from kitchener.cli.terminal.status_line import StatusLine
from kitchener.records.turn import TextDelta
from tests.records.test_turn import result


@pytest.mark.parametrize("is_streamed", [True, False])
@pytest.mark.parametrize("truncated", [True, False])
async def test_a_reply_that_was_cut_is_marked(is_streamed: bool, truncated: bool, capsys: pytest.CaptureFixture[str]) -> None:
    shown = ShownTurn("ADMIN", StatusLine())
    if is_streamed:
        shown.take(TextDelta("WO-1", 1, "The three reasons are"))
    shown.finish(result(response="The three reasons are", truncated=truncated))
    found = capsys.readouterr().out
    assert found.count("The three reasons are") == 1
    assert ("limit of output tokens" in found) is truncated
