"""What somebody might change in a bundle: each change has a name, and every verifier must refuse it."""

from collections.abc import Callable
from typing import Any

import orjson

from kitchener.signing import signer_id
from tests.verifier.proofs import shown_rows

Bundle = dict[str, Any]
MOMENT = "2026-11-22T12:00:00.000000+00:00"
ZEROS = f"sha256:{'0' * 64}"


def part(content: Bundle, ledger: str) -> dict[str, Any]:
    return next(each for each in content["ledgers"] if each["ledger_id"].startswith(ledger))


def shown(content: Bundle, ledger: str) -> list[list[Any]]:
    """The rows of entries that are shown."""
    return shown_rows(part(content, ledger))


def row_of(content: Bundle, ledger: str, entry_type: str) -> list[Any]:
    """The first row whose body is of this type."""
    return next(row for row in shown(content, ledger) if orjson.loads(row[5])["entry_type"] == entry_type)


def _edit(ledger: str, entry_type: str, old: str, new: str) -> Callable[[Bundle], None]:
    def how(content: Bundle) -> None:
        row = row_of(content, ledger, entry_type)
        assert old in row[5]
        row[5] = row[5].replace(old, new)

    return how


def _on(ledger: str, key: str, how: Callable[[list[Any]], object]) -> Callable[[Bundle], None]:
    return lambda content: (how(part(content, ledger)[key]), None)[1]


def _set(ledger: str, key: str, field: str, value: Any) -> Callable[[Bundle], None]:
    return lambda content: part(content, ledger)[key].__setitem__(field, value)


def _put(ledger: str, key: str, value: Any) -> Callable[[Bundle], None]:
    return lambda content: part(content, ledger).__setitem__(key, value)


def _head(field: str, how: Callable[[Any], object]) -> Callable[[Bundle], None]:
    def change(content: Bundle) -> None:
        head = part(content, "HO2M:")["head"]
        head[field] = how(head[field])

    return change


def _shown(how: Callable[[list[list[Any]]], object]) -> Callable[[Bundle], None]:
    """Changes HO2m's rows that have a body."""
    return lambda content: (how(shown(content, "HO2M:")), None)[1]


def _cell(place: int, how: Callable[[Any], object]) -> Callable[[Bundle], None]:
    """Changes one value of a row without body, and of one with."""

    def change(content: Bundle) -> None:
        rows = part(content, "HO2M:")["rows"]
        for row in (rows[1], next(row for row in rows if len(row) == 5)):
            row[place] = how(row[place])

    return change


def _leave_out(content: Bundle, place: int) -> None:
    content["entries"] -= len(shown_rows(content["ledgers"].pop(place)))


def _hide(content: Bundle, ledger: str, entry_type: str) -> None:
    row_of(content, ledger, entry_type).pop()
    content["entries"] -= 1


def _begin_later(content: Bundle, ledger: str) -> None:
    """The rows begin one later than the head's chain says that they are."""
    found = part(content, ledger)
    seq, _, batch, _, chain_hash, _ = found["rows"].pop(0)
    found["before"] = {"batch": batch, "chain_hash": chain_hash, "seq": seq + 1}
    content["entries"] -= 1


def _swap(rows: list[list[Any]], one: int, other: int) -> None:
    rows[one][5], rows[other][5] = rows[other][5], rows[one][5]


def unsign(found: dict[str, Any], **more: object) -> None:
    found["head"] = {"chain_hash": found["rows"][-1][4], "ledger_id": found["ledger_id"], "seq": found["rows"][-1][0], **more}


def _no_rows(found: dict[str, Any]) -> None:
    found["rows"] = []
    found["head"] = {"chain_hash": ZEROS, "ledger_id": found["ledger_id"], "seq": 0}


def _longer_key(head: dict[str, Any]) -> None:
    """Bytes after the key, which a lax reader might take no notice of."""
    head["public_key"] += "00"
    head["signer"] = signer_id(head["public_key"])


CHANGES: dict[str, Callable[[Bundle], object]] = {
    "an edited answer": _edit("HO1M:", "LLM_CALL", '"finish_reason":"', '"finish_reason":"x'),
    "an edited message": _edit(
        "HO2M:", "TURN_STARTED", '"user_message":{"$sealed":{"ct":"', '"user_message":{"$sealed":{"ct":"x'
    ),
    "an edited subject": _edit("HO2M:", "SESSION_START", '"ada"', '"eve"'),
    "a row without its body": _shown(lambda rows: rows[2].pop()),
    "a message that is not shown, and not counted": lambda content: _hide(content, "HO2M:", "TURN_STARTED"),
    "an answer that is not shown, and not counted": lambda content: _hide(content, "HO1M:", "LLM_CALL"),
    "a context that is not shown, and not counted": lambda content: _hide(content, "CONTEXT:", "PROJECTION_COMPUTED"),
    "a turn's end that is not shown, and not counted": lambda content: _hide(content, "HO2M:", "TURN_COMPLETED"),
    "a body moved to another row": _on(
        "HO2M:", "rows", lambda rows: next(r for r in rows if len(r) == 5).append(rows[0].pop())
    ),
    "a body of another row": _shown(lambda rows: rows[2].__setitem__(5, rows[3][5])),
    "swapped bodies": _shown(lambda rows: _swap(rows, 2, 3)),
    "a body of another ledger": lambda content: row_of(content, "HO2M:", "TURN_STARTED").__setitem__(
        5, row_of(content, "HO1M:", "LLM_CALL")[5]
    ),
    "a body as null": _shown(lambda rows: rows[2].__setitem__(5, None)),
    "a body as a number": _shown(lambda rows: rows[2].__setitem__(5, 0)),
    "a body as true": _shown(lambda rows: rows[2].__setitem__(5, True)),
    "a body in a list": _shown(lambda rows: rows[2].__setitem__(5, [rows[2][5]])),
    "a body as a list of its bytes": _shown(lambda rows: rows[2].__setitem__(5, [*rows[2][5].encode()])),
    "a body as an object": _shown(lambda rows: rows[2].__setitem__(5, orjson.loads(rows[2][5]))),
    "an empty body": _shown(lambda rows: rows[2].__setitem__(5, "")),
    "a body with a blank after it": _shown(lambda rows: rows[2].__setitem__(5, rows[2][5] + " ")),
    "a body with a line feed": _shown(lambda rows: rows[2].__setitem__(5, rows[2][5] + "\n")),
    "two bodies": _shown(lambda rows: rows[2].append(rows[2][5])),
    "an empty body where none is shown": _on("HO2M:", "rows", lambda rows: next(r for r in rows if len(r) == 5).append("")),
    "a null where no body is shown": _on("HO2M:", "rows", lambda rows: next(r for r in rows if len(r) == 5).append(None)),
    "a body where none is shown": _on("HO2M:", "rows", lambda rows: next(r for r in rows if len(r) == 5).append("{}")),
    "a row too short": _on("HO2M:", "rows", lambda rows: next(r for r in rows if len(r) == 5).pop()),
    "a removed row": _on("HO2M:", "rows", lambda rows: rows.pop(2)),
    "a repeated row": _on("HO2M:", "rows", lambda rows: rows.insert(2, rows[2])),
    "swapped rows": _on("HO2M:", "rows", lambda rows: rows.insert(2, rows.pop(3))),
    "a cut tail of rows": _on("HO2M:", "rows", lambda rows: rows.pop()),
    "no rows": _on("SIGNALS", "rows", lambda rows: rows.clear()),
    "no rows, and a head that says so": lambda content: _no_rows(part(content, "SIGNALS")),
    "rows of text": _put("SIGNALS", "rows", "rows"),
    "rows as an object": _put("SIGNALS", "rows", {"length": 1}),
    "rows as null": _put("SIGNALS", "rows", None),
    "another number": _on("HO2M:", "rows", lambda rows: rows[1].__setitem__(0, 1)),
    "numbers as text": _cell(0, str),
    "numbers in lists": _cell(0, lambda seq: [seq]),
    "another commit": _on("HO2M:", "rows", lambda rows: rows[1].__setitem__(2, [9, 1, 1])),
    "commits as text": _cell(2, lambda batch: ",".join(map(str, batch))),
    "commits of text": _cell(2, lambda batch: [str(number) for number in batch]),
    "commits with a fourth number": _cell(2, lambda batch: [*batch, 1]),
    "another entry id": _on("HO2M:", "rows", lambda rows: rows[1].__setitem__(1, rows[2][1])),
    "entry ids in lists": _cell(1, lambda entry_id: [entry_id]),
    "another day": _cell(1, lambda entry_id: entry_id.replace("-", "/", 2)),
    "another entry hash": _on("HO2M:", "rows", lambda rows: rows[1].__setitem__(3, ZEROS)),
    "entry hashes in lists": _cell(3, lambda hashed: [hashed]),
    "entry hashes in capitals": _cell(3, str.upper),
    "chain hashes in lists": _cell(4, lambda hashed: [hashed]),
    "chain hashes in capitals": _cell(4, str.upper),
    "a row of text": _on("HO2M:", "rows", lambda rows: rows.__setitem__(1, "row")),
    "a row as null": _on("HO2M:", "rows", lambda rows: rows.__setitem__(1, None)),
    "a row as an object": _on("HO2M:", "rows", lambda rows: rows.__setitem__(1, {"seq": 1})),
    "another head": _set("HO2M:", "head", "chain_hash", ZEROS),
    "a head further on": _set("HO2M:", "head", "seq", 100_000),
    "a head of text": _put("HO2M:", "head", "head"),
    "a head as null": _put("HO2M:", "head", None),
    "a head without anything": _put("HO2M:", "head", {}),
    "a head in a list": lambda content: _put("HO2M:", "head", [part(content, "HO2M:")["head"]])(content),
    "a head whose number is text": _head("seq", str),
    "a head whose hash is in a list": _head("chain_hash", lambda value: [value]),
    "a head whose time is in a list": _head("timestamp", lambda value: [value]),
    "a head with a key in capitals": _head("public_key", str.upper),
    "a head with a key in a list": _head("public_key", lambda value: [value]),
    "a head with a longer key": lambda content: _longer_key(part(content, "HO2M:")["head"]),
    "a head with a signature in capitals": _head("sig", str.upper),
    "a head with a signature in a list": _head("sig", lambda value: [value]),
    "a head with a longer signature": _head("sig", lambda value: value + "00"),
    "a head with half a byte after its signature": _head("sig", lambda value: value + "0"),
    "a head with an empty signature": _set("HO2M:", "head", "sig", ""),
    "a head with null for its signature": _set("HO2M:", "head", "sig", None),
    "a head without its signature": _on("HO2M:", "head", lambda head: head.pop("sig")),  # type: ignore[arg-type]
    "another time of signing": _set("HO2M:", "head", "timestamp", MOMENT),
    "another signature": _set("HO2M:", "head", "sig", "0" * 128),
    "another signer": _set("HO2M:", "head", "signer", "ed25519:0123456789abcdef"),
    "another start": _set("HO2M:", "before", "chain_hash", ZEROS),
    "a start with a number of text": lambda content: _set(
        "HO2M:", "before", "seq", str(part(content, "HO2M:")["before"]["seq"])
    )(content),
    "a start with a number in a list": lambda content: _set(
        "HO2M:", "before", "seq", [part(content, "HO2M:")["before"]["seq"]]
    )(content),
    "a start with one more field": _set("HO2M:", "before", "more", 1),
    "a start with its hash in a list": lambda content: _set(
        "HO2M:", "before", "chain_hash", [part(content, "HO2M:")["before"]["chain_hash"]]
    )(content),
    "no start": _put("HO2M:", "before", None),
    "an empty start": _put("HO2M:", "before", {}),
    "a start of text": _put("HO2M:", "before", "before"),
    "a start where there is none": _put("OVERLAYS", "before", {"batch": [0, 1, 1], "chain_hash": ZEROS, "seq": 0}),
    "a start with null, where there is none": _put(
        "OVERLAYS", "before", {"batch": [0, 1, 1], "chain_hash": ZEROS, "seq": None}
    ),
    "a start that is false": _put("OVERLAYS", "before", False),
    "a start that is 0": _put("OVERLAYS", "before", 0),
    "a start that is empty text": _put("OVERLAYS", "before", ""),
    "another turn": lambda content: content.__setitem__("turn_id", "T-00000000-000001"),
    "a turn in a list": lambda content: content.__setitem__("turn_id", [content["turn_id"]]),
    "another session": lambda content: content.__setitem__("session_id", "SES-00000000"),
    "a session in a list": lambda content: content.__setitem__("session_id", [content["session_id"]]),
    "another count": lambda content: content.__setitem__("entries", content["entries"] + 1),
    "a count as text": lambda content: content.__setitem__("entries", str(content["entries"])),
    "another format": lambda content: content.__setitem__("format", "kitchener-proof/3"),
    "a format in a list": lambda content: content.__setitem__("format", [content["format"]]),
    "one more field": lambda content: content.__setitem__("more", 1),
    "a field that says how many there are": lambda content: content.__setitem__("fields", 5),
    "one more field of a ledger": _put("HO2M:", "more", 1),
    "a field less of a ledger": lambda content: part(content, "HO2M:").pop("before"),
    "a ledger twice": lambda content: content["ledgers"].append(content["ledgers"][0]),
    "no ledgers": lambda content: content.update(ledgers=[], entries=0),
    "ledgers as null": lambda content: content.update(ledgers=None, entries=0),
    "ledgers as an object": lambda content: content.update(ledgers={each["ledger_id"]: each for each in content["ledgers"]}),
    "a ledger as null": lambda content: content["ledgers"].append(None),
    "HO1m left out": lambda content: content["ledgers"].pop(1),
    "HO1m left out and not counted": lambda content: _leave_out(content, 1),
    "the context left out": lambda content: content["ledgers"].pop(2),
    "the context left out and not counted": lambda content: _leave_out(content, 2),
    "a start after its entry": lambda content: _begin_later(content, "SIGNALS"),
    "a field more in a head without signature": lambda content: unsign(content["ledgers"][0], more=1),
    "a number of text in a head without signature": lambda content: unsign(
        content["ledgers"][0], seq=str(content["ledgers"][0]["head"]["seq"])
    ),
    "another ledger's name": lambda content: part(content, "SIGNALS").__setitem__("ledger_id", "SIGNALZ"),
    "a ledger's name in a list": lambda content: [
        each.__setitem__("ledger_id", [each["ledger_id"]]) for each in content["ledgers"]
    ],
}
