"""Turns a long item of a turn into its excerpt: the sentences that matter to the message, or else its beginning.

An excerpt ends with the item's id in square brackets, by which a model reads the whole. `…` stands for what is left out. Tool
results have excerpts of their own (`tool_results.py`), of lines instead of sentences. This module does not know which items
are shown.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from kitchener.context.fold.items import LINE, Item
from kitchener.context.lexical.postings import DEFAULT_WEIGHTS
from kitchener.context.lexical.words import KIN, terms_of, words_of
from kitchener.records.spoken import label_of
from kitchener.records.tokens import Estimator

MAX_CHARS: Final = 32_768
"""Only the first characters of an item, so many, are searched for words of the message."""
GAP: Final = "…"
"""Stands for what an excerpt leaves out."""
_PASSAGE_CHARS: Final = 240
"""Longest passage. A longer sentence is cut at a space."""
_LEAST_SHARE: Final = 0.5
"""A passage matters if its score is at least this share of the best passage's."""
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s+|(?<=[\u3002\uff01\uff1f])\s*|\n+")


def asked_terms(message: str) -> Mapping[str, float]:
    """The search terms of a message with their weights: its own terms, and terms related to them."""
    own = dict.fromkeys([term for word in words_of(message.casefold()) for term in terms_of(word)], 1.0)
    akin = {other: DEFAULT_WEIGHTS.kin for term in own for other in KIN.get(term, ())}
    return {**akin, **own}


def excerpted(item: Item, asked: Mapping[str, float], most_tokens: int, estimate: Estimator) -> Item:
    """An item of a turn as its excerpt, or as it is if it is short, erased or an excerpt already.

    Args:
        item: a message, a reply or a whole turn
        asked: the terms of the turn's message, see `asked_terms`
        most_tokens: tokens above which an item is long; no excerpt has more, unless its id alone does
        estimate: counts the tokens of a text
    """
    if item.tokens <= most_tokens or item.is_erased or item.whole:
        return item
    label = label_of(item.text)
    end = f" [{item.entity_id}]"
    text = item.text[len(label) :]
    passages = [*_passages(text[:MAX_CHARS])] or [""]  # blank lines have none
    room = most_tokens - estimate(label + end + LINE)
    left, chosen = room, list[int]()
    for number in _by_worth(passages, asked):
        size = estimate(f"{GAP} {passages[number]} {GAP} ")
        if size <= left:
            left -= size
            chosen.append(number)
    said = joined(passages, chosen, " ", is_cut=len(text) > MAX_CHARS) if chosen else _cut(passages, room, estimate)
    shown = f"{label}{said}{end}"
    return item._replace(text=shown, tokens=estimate(shown + LINE), whole=item.text)


def _by_worth(passages: Sequence[str], asked: Mapping[str, float]) -> list[int]:
    """The passages that matter, best first, then those around the best; the first passage if none has a word of the message."""
    if not passages:  # the searched part of the text has blank lines only
        return []
    found = [{term for word in words_of(each.casefold()) for term in terms_of(word)} & asked.keys() for each in passages]
    having: dict[str, int] = {}
    for terms in found:
        for term in terms:
            having[term] = having.get(term, 0) + 1
    scores = [sum([asked[term] / having[term] for term in sorted(terms)]) for terms in found]
    least = _LEAST_SHARE * max(scores)
    if not least:
        return [0]
    best = sorted((n for n, score in enumerate(scores) if score >= least), key=lambda n: (-scores[n], n))
    # The next sentence often says what a sentence means.
    around = [near for near in (best[0] + 1, best[0] - 1) if 0 <= near < len(passages)]
    return [*dict.fromkeys((*best, *around))]


def joined(passages: Sequence[str], chosen: Iterable[int], separator: str, *, is_cut: bool = False) -> str:
    """The chosen passages in their order. A mark stands for each run of passages that are left out.

    Args:
        passages: all passages of the text
        chosen: indexes of those that are shown
        separator: what stands between two passages
        is_cut: whether the text continues after these passages
    """
    parts, expected = list[str](), 0
    for number in sorted(chosen):
        if number != expected:
            parts.append(GAP)
        parts.append(passages[number])
        expected = number + 1
    if is_cut or expected < len(passages):
        parts.append(GAP)
    return separator.join(parts)


def _cut(passages: Sequence[str], most_tokens: int, estimate: Estimator) -> str:
    passage = passages[0] if passages else ""
    while passage and estimate(f"{passage} {GAP}") > most_tokens:
        passage = passage[: len(passage) * 3 // 4]
    return f"{passage} {GAP}"


def _passages(text: str) -> Iterator[str]:
    """The sentences and lines of a text. A long one is split."""
    for sentence in _SENTENCE_END.split(text):
        start = 0
        while len(sentence) - start > _PASSAGE_CHARS:
            space = sentence.rfind(" ", start + _PASSAGE_CHARS // 2, start + _PASSAGE_CHARS)
            end = space if space > 0 else start + _PASSAGE_CHARS
            yield sentence[start:end].strip()
            start = end
        if rest := sentence[start:].strip():
            yield rest


def beginning(item: Item, most_tokens: int, estimate: Estimator) -> Item:
    """An item of a turn, cut to its beginning. A short or erased item stays as it is. The message plays no part.

    Args:
        item: a message, a reply or a whole turn
        most_tokens: tokens above which an item is long
        estimate: counts the tokens of a text
    """
    if item.tokens <= most_tokens or item.is_erased or item.whole:
        return item
    end = f" {GAP} [{item.entity_id}]"
    left, kept = most_tokens - estimate(label_of(item.text) + end + LINE), 0
    text = item.text[:MAX_CHARS]
    for found in _SENTENCE_END.finditer(text):
        size = estimate(text[kept : found.end()])
        if size > left:
            break
        left, kept = left - size, found.end()
    if not kept:  # one long sentence
        kept = max(0, most_tokens)
        while kept and estimate(text[:kept] + end) > most_tokens:
            kept = kept * 3 // 4
    shown = f"{text[:kept].rstrip()}{end}"
    return item._replace(text=shown, tokens=estimate(shown + LINE), whole=item.text)


def uncut(item: Item, estimate: Estimator) -> Item:
    """The whole of an item that `beginning` has cut."""
    return item._replace(text=item.whole, tokens=estimate(item.whole + LINE), whole="")
