"""The benchmark of what a prefix cache can serve: it counts what is shared, and nothing else."""

import json
import sys
from pathlib import Path

import anyio
import pytest

from benchmarks import prefix
from kitchener.records.prompt import Message
from kitchener.testing.prompt_requests import prompt_request


def test_a_prompt_shares_what_it_begins_with_and_no_more() -> None:
    async def measured() -> dict[str, object]:
        found = prefix.Prompts()
        for said in ("Where is it?", "Where was it?", "Where was it?"):
            messages = (Message("system", "Be brief."), Message("user", said))
            found.add(prompt_request("", messages=messages))
        return found.figures()

    figures = anyio.run(measured)
    system = len('{"role": "system", "content": "Be brief."}')
    second = system + len('\n{"role": "user", "content": "Where was it?"}')
    common = second - len('was it?"}')
    assert figures == {
        "prompts": 3,
        "mean_chars": second,
        "system_share": round(100 * system / second, 1),
        "cacheable_share": round(100 * (common + second) / (2 * second), 1),
        "mean_uncached_chars": (second - common) // 2,
    }


@pytest.mark.parametrize("mode", ["off", "enforce"])
def test_the_benchmark_plays_dialogues_and_messages(
    mode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    dialogue = [{"speaker": "user", "text": "A table, please."}, {"speaker": "system", "text": "For how many?"}]
    data = tmp_path / "said.jsonl"
    data.write_text("\n".join(map(json.dumps, ({"turns": dialogue}, {"message": "For two."}))), encoding="utf-8")
    assert list(zip(range(3), prefix.exchanges(data), strict=False)) == [
        (0, ("A table, please.", "For how many?")),
        (1, ("For two.", prefix.REPLIES[0])),
        (2, ("A table, please.", "For how many?")),
    ]
    given = ["prefix.py", "--data", str(data), "--turns", "4", "--mode", mode, "--budget", "1000", "--json"]
    monkeypatch.setattr(sys, "argv", given)
    prefix.main()
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (report["turns"], report["mode"], report["budget"]) == (4, mode, 1000)
    for figures in report["work_orders"].values():
        assert figures["prompts"] == 4
        assert figures["system_share"] <= figures["cacheable_share"] < 100
