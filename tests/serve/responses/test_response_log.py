"""The logs of ended responses are also bounded in bytes: a reply in small pieces is many times as long as its text."""

from kitchener.serve.responses.response_log import ResponseLog, ResponseLogs
from kitchener.serve.responses.response_objects import ResponseHead

MEBIBYTE = 1_048_576


def kept_log(logs: ResponseLogs, number: int, text_bytes: int = 1) -> ResponseLog:
    log = ResponseLog()
    log.begin(ResponseHead(f"resp_{number}", 0, "ADMIN", None))
    logs.keep(log)
    log.add_text("x" * text_bytes)
    return log


def test_the_oldest_ended_logs_go_when_all_of_them_are_too_long_and_those_that_run_stay() -> None:
    logs = ResponseLogs()
    running = kept_log(logs, 0, 40 * MEBIBYTE)
    for number in range(1, 5):
        kept_log(logs, number, 10 * MEBIBYTE).close()
    kept_log(logs, 5)
    assert running.size > 40 * MEBIBYTE
    assert [number for number in range(6) if logs.of(f"resp_{number}") is None] == [1]
    running.close()
    kept_log(logs, 6)
    assert [number for number in range(7) if logs.of(f"resp_{number}") is not None] == [2, 3, 4, 5, 6]


def test_of_short_ones_the_newest_are_kept() -> None:
    logs = ResponseLogs()
    for number in range(300):
        kept_log(logs, number).close()
    assert [number for number in range(300) if logs.of(f"resp_{number}") is not None] == list(range(44, 300))
