"""The tables of the offline model and the few operations on words that its rules share. Data, and nothing clever.

Tables are keyed by stems: lower case, without a plural s.
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)?")


def words_of(text: str) -> list[str]:
    """The words of a text in lower case, with straight apostrophes."""
    return WORD.findall(text.lower().replace("’", "'"))


def stem(word: str) -> str:
    """The word without a plural ending: `packages` and `package` count as the same, `glass` stays."""
    return _kept_stem(word) if len(word) <= _MAX_KEPT_CHARS else _stem(word)


def forget_words() -> None:
    """Drops the words that are kept because they come again."""
    _kept_stem.cache_clear()


def _stem(word: str) -> str:
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        return word[:-1]
    return word


_MAX_KEPT_CHARS = 32
_kept_stem = lru_cache(4_096)(_stem)  # less than a megabyte, since the words are short


def content_stems(words: Iterable[str]) -> set[str]:
    """The stems of those words that say what a text is about."""
    return {stem(word) for word in words if word not in STOP_WORDS and len(word) > 1}


def word_set(words: str) -> frozenset[str]:
    return frozenset(words.split())


def by_word(table: Mapping[str, str]) -> dict[str, str]:
    return {stem(word): label for label, line in table.items() for word in line.split()}


STOP_WORDS = word_set(
    """a about after again all also am an and any anything are as at be because been before but by can could did do does
    doing done else ever for from get give go going got had has have he hello her here hey hi him his how i i'd i'll i'm
    i've if in into is it it's its just know let let's like look make may me might mine more most much my need new no not
    now of off ok okay on one or our out over please really say see shall she should show so some something tell than
    thank thanks that that's the their them then there these they thing think this those to too up us use very want was
    awesome cheers cool fine good great helpful lot nice perfect right sounds thankyou thx wonderful
    we well were what what's when where which who whom whose why will with would yes you your"""
)

GREETINGS = word_set("hello hi hey hiya howdy greetings hallo welcome morning evening afternoon")
GREETING_FILLERS = word_set("good there all everyone everybody you again kitchener how are is it going")
THANKS = word_set("thanks thank thx cheers thankyou")
FAREWELLS = word_set("bye goodbye farewell cya")
FAREWELL_PHRASES = ("see you", "good night", "have a good", "have a nice", "talk to you later", "so long")

QUESTION_WORDS = word_set(
    """what what's which who who's whom whose when where where's why how how's is are am was were do does did has have can
    could will would should shall may isn't aren't don't doesn't"""
)
REQUEST_OPENINGS = ("can you ", "could you ", "would you ", "will you ", "please ", "i need ", "i want ", "i'd like ")
LEAD_WORDS = word_set(
    """please now then ok okay so and also well kindly just hi hello hey yes yeah yep sure no great perfect cool nice fine
    alright thanks"""
)
IMPERATIVES = word_set(
    """add analyse analyze answer append apply arrange ask book bring build buy calculate call cancel change check choose
    close compare compute connect convert copy correct count create debug define delete deploy describe design display
    download draft draw edit email estimate evaluate execute explain export fetch fill filter find finish fix format
    generate get give go help highlight import improve inspect install invite keep learn let list load look make merge
    move name note open order organise organize pause pick plan play post prepare print prove propose pull push put read
    recommend record refactor remember remind remove rename repeat replace reply report research reserve reset restart
    resume retrieve return review rewrite run save schedule search select send set share show simplify solve sort start
    stop store suggest summarise summarize switch take teach tell test transfer translate try turn type undo uninstall
    update upgrade upload use validate verify visit wait watch write"""
)

DOMAIN_OF_STEM = by_word(
    {
        "software": """api app bug build class cli code commit compile compiler config database debug deploy docker error
            exception file function git install javascript kernel library linux log module package pip program
            programming python query refactor repository rust script server software sql stack test version""",
        "travel": """airport airbnb beach bus cab car cruise flight fly hotel itinerary journey luggage passport
            plane rental sightseeing taxi tour tourist train travel trip vacation visa holiday airline""",
        "food": """bake breakfast cook cooking dinner dish eat food ingredient lunch meal menu recipe restaurant
            snack vegan vegetarian soup bread coffee tea""",
        "finance": """account bank bill budget cost credit debt dollar euro expense finance fund income insurance invest
            investment invoice loan money mortgage pay payment pension price salary savings stock tax""",
        "health": """allergy diet doctor dose exercise fever fitness gym headache health hospital medicine nutrition pain
            patient psychiatrist psychologist sick sleep symptom therapist therapy vitamin workout yoga""",
        "weather": "cloudy cold forecast humid rain rainy snow storm sunny temperature umbrella weather wind windy",
        "work": """agenda boss calendar career client colleague company cv deadline employee interview job manager meeting
            office presentation project resume team""",
        "education": """class course degree essay exam grade homework language lecture learn lesson math school science
            student study teacher university vocabulary""",
        "entertainment": """actor album anime band cinema concert event festival film game movie museum music novel playlist
            podcast series show singer song theatre tv""",
        "shopping": "buy cart deliver delivery discount gift order product purchase refund sale shipping shop store",
        "home": """apartment bathroom bedroom clean cleaning furniture garden house laundry paint plant plumber rent
            repair roof""",
        "sports": "athlete ball basketball bike cycling football league match race running soccer swim tennis",
        "family": "baby birthday brother cat child daughter dog father friend husband kid mother parent pet sister son wife",
    }
)
TASK_OF_STEM = by_word(
    {
        "planning": "agenda arrange itinerary organise organize plan planning prepare roadmap",
        "scheduling": "appointment book calendar cancel meeting remind reminder reschedule reservation reserve schedule",
        "writing": "compose draft edit email essay letter poem post proofread rewrite story write writing",
        "summarization": "abstract brief condense digest recap summarise summarize summary",
        "translation": "translate translation translator",
        "calculation": "add average calculate compute convert count divide estimate multiply percent sum total",
        "debugging": "broken bug crash debug error exception fail fix issue traceback",
        "coding": "code compile deploy function implement program refactor script test",
        "comparison": "better compare comparison difference versus vs",
        "recommendation": "advice advise choose recommend recommendation suggest suggestion",
        "explanation": "describe explain meaning mean understand why",
        "lookup": "check fetch find list look lookup read search show which where who when",
    }
)
