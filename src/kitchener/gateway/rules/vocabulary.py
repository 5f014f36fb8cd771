"""Splits messages into words, and holds the word tables and phrases by which the rules classify them.

The tables are general English, written by hand and fitted to no data. Tables of labels are keyed by stems: lower case, without
a plural s. Phrases are matched against lower case with straight apostrophes.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)?")


def lower_words(text: str) -> list[str]:
    """The words of a text in lower case, with straight apostrophes."""
    return WORD.findall(text.lower().replace("’", "'"))


def singular(word: str) -> str:
    """The word without a plural ending: `packages` and `package` count as the same, `glass` stays."""
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        return word[:-1]
    return word


def content_stems(words: Iterable[str]) -> set[str]:
    """The stems of those words that say what a text is about."""
    return {singular(word) for word in words if word not in STOP_WORDS and len(word) > 1}


def is_greeting(words: Sequence[str]) -> bool:
    """Whether the words begin with a greeting and say nothing else."""
    greets = bool(words) and (words[0] in GREETINGS or (words[0] == "good" and len(words) > 1 and words[1] in GREETINGS))
    return greets and all(word in GREETINGS or word in GREETING_FILLERS for word in words)


def word_set(words: str) -> frozenset[str]:
    return frozenset(words.split())


def _by_stem(table: Mapping[str, str]) -> dict[str, str]:
    return {singular(word): label for label, line in table.items() for word in line.split()}


# --- speech acts and labels ---------------------------------------------------------------------------------------------

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
THANK_WORDS = word_set("thanks thank thx cheers thankyou")
FAREWELL_WORDS = word_set("bye goodbye farewell cya")
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
_LEAD = (
    r"^(?:(?:hi|hello|hey|ok|okay|so|well|thanks|thank you|yes|yeah|yep|sure|no|great|perfect|cool|nice|good|fine|alright"
    r"|all right|(?:that |it )?sounds (?:good|great|nice))[,.!]+ +|(?:hi|hello|hey|ok|okay|so|well|thanks|yes|sure) +)*"
)
GREETING_LEAD = re.compile(_LEAD)
"""What may stand before a request or a question: "ok, thanks! "."""
POLITE_LEAD = re.compile(_LEAD + r"(?:(?:can|could|would|will) you )?(?:please[, ]+)?", re.IGNORECASE)
"""Such a lead, and the polite form of a request: "hi, could you please "."""

LATER_REQUEST = re.compile(
    r"[.!?,;]\s+(?:(?:and|but|so|now|then|also)\s+)*(?:(?:can|could|would|will) you (?!tell me wh)|please |i need |i want "
    r"|i'd like |(?:help|find|get|show|give|book) me )"
)
"""A sentence after the first that requests something."""

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

DOMAIN_OF_STEM = _by_stem(
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
TASK_OF_STEM = _by_stem(
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

# --- how a message relates to the objective: phrases --------------------------------------------------------------------

CLOSING_PHRASES = re.compile(
    r"\b(?:(?:that|this|it)(?:'?s| is| was| will be|'ll be| would be|'d be| should be) (?:all|it|everything|enough)\b"
    r"(?! (?:good|fine|right|correct|true|great|ok|okay))"
    r"|(?:this|that)(?:'s| is) (?:all|everything) (?:i|we)"
    r"|(?:this|that|it)(?:'s| is| was) (?:just |exactly )?what (?:i|we) (?:need|want|require)(?:ed)?"
    r"|nothing (?:else|more|further)|(?:need|want|for) nothing"
    r"|(?:do not|don't|won't|not) (?:need|want|have|require) (?:anything|any (?:more|other|further)|more (?:help|questions))"
    r"|no (?:more|other|further) (?:help|questions?|requests?|thanks)|(?:i am|i'm|we are|we're) (?:all )?(?:done|finished|set)"
    r"|all (?:set|done)|problem solved|(?:got|have) (?:all|everything) (?:that )?(?:i|we) need(?:ed)?"
    r"|never ?mind|forget (?:it|about it)|(?:good|buh )?bye|see (?:you|ya)|have a (?:good|great|nice|wonderful|lovely)"
    r"|good ?night|take care|talk to you later)\b|(?:^|, ?)later$"
)
"""The user says that nothing more is wanted, or takes leave."""

SWITCHING_PHRASES = re.compile(
    r"\b(?:(?:talk|speak|ask|know|hear) about something else|another (?:thing|question|topic|matter|request)"
    r"|(?:new|different|other|separate) (?:topic|question|subject|thing|matter)"
    r"|by the way|btw|on another note|changing (?:the )?(?:topic|subject)|change (?:the )?(?:topic|subject)|moving on"
    r"|while (?:you(?:'re| are) at it|we(?:'re| are) at it)|unrelated|separately|(?:let's|let us) (?:switch|move on|go back)"
    r"|(?:and |but )?before (?:that|i forget)|first of all|instead of that|(?:also|now|next)[, ]+(?:i|we|i'd|i'm|i'll|can|could"
    r"|would|will|please|find|get|show|tell|help|book|let's|look|search|check)"
    r"|(?:i|we)(?:'d| would|'ll| will)? also (?:want|need|like|have|am)|(?:i'm|i am) also|(?:can|could|would|will) you also)\b"
)
"""The user announces another matter."""

ALTERNATIVE_PHRASES = re.compile(
    r"\b(?:(?:some|any)(?:thing|one|where|body) (?:else|different)|others?|another (?:one|option)|different one"
    r"|alternatives?)\b"
)
"""The user wants the thing itself, but not the one that was proposed."""

RETURNING_PHRASES = re.compile(
    r"\b(?:(?:(?:go|going|get|getting|come|coming|switch|switching|let's) )?back to (?:the|my|our|what|that|where)"
    r"|return(?:ing)? to (?:the|my|our|what)|where were we|(?:said|discussed|mentioned|talked about|asked(?: about)?)"
    r" (?:before|earlier)|(?:previous|earlier) (?:topic|question|request|task|subject))\b"
)
"""The user goes back to something earlier."""

AGREEING_PHRASES = re.compile(
    r"^(?:(?:oh|ok|okay|well|great|good|nice|cool|perfect|thanks|alright|all right)[,.! ]+)*(?:yes|yeah|yep|yup|sure|please"
    r"|absolutely|definitely|certainly|of course|go ahead|do (?:it|that|so)|sounds (?:good|great|perfect|nice|fine)|why not"
    r"|(?:that|this|it)(?:'s| is| would be|'d be| will be|'ll be| sounds| works)|i (?:do|would)(?!n't| not)"
    r"|i (?:think so|'d love)|i'd (?:like|love)|ok|okay|fine|great|perfect|alright|all right)\b"
)
"""A reply that begins by agreeing."""

REFUSING_PHRASES = re.compile(
    r"^(?:(?:oh|ok|okay|well|hmm|um|actually)[,.! ]+)*(?:no\b|nope|nah|nothing"
    r"|not (?:(?:right|quite|just|at|for|this|the) ){0,2}(?:now|yet|today|tonight|really|all|this|moment|second|time)\b"
    r"|perhaps later|maybe later|later|i (?:do not|don't|would not|wouldn't|will not|won't)\b(?! (?:know|mind|care)))"
    r"|\b(?:i'm|i am) (?:good|fine)[.! ]*$|\b(?:do|decide|think about) (?:it|that|this)? ?(?:later|another time)\b"
)
"""A reply that begins by declining."""

THANKING_PHRASES = re.compile(r"\b(?:thanks?|thx|cheers|appreciate|thank you)\b")
"""Thanks are for one step, as long as the message does not also say that this was all."""
THANKS_FOR = re.compile(r"\b(?:thanks|thank you)(?: [a-z]+){0,3}? for\b[^.!?,;]*")
"""What somebody is thanked for is done, so nothing in it is requested."""

# --- what the assistant said last ---------------------------------------------------------------------------------------

ELSE_PHRASES = re.compile(
    r"\b(?:(?:any|some) ?thing (?:else|more|further|other)\b|what (?:else|more)\b|(?:still|else) need me\b"
    r"|(?:need|want|require|be of|with) (?:any |some |more |further )*(?:help|assistance|service)\b"
    r"|(?:help|assist)\w* (?:you )?(?:out )?with (?:any|some) ?thing"
    r"|(?:can|could|may|might|shall) (?:i )?(?:further |also )?(?:help|assist|serve)(?: you)?(?: out)?(?: any| some)?"
    r"(?: more| further)?(?: (?:today|now))? ?(?:\?|$)"
    r"|any (?:other|more|further)\b|(?:else|more|further) (?:help|assistance|information|requests?|questions?)"
    r"|other (?:help|requests?|questions?)|how (?:else |can |may )+i|need (?:more|further) )"
)
ALL_PHRASES = re.compile(
    r"\b(?:(?:is|was|will|would) (?:that|this|it) (?:be )?(?:all|everything)\b(?! (?:right|good|fine|ok|okay|correct))"
    r"|(?:are|is) (?:you|we|everything) (?:all )?(?:done|finished|set)\b)"
)
"""The assistant asks whether nothing more is wanted: yes closes."""
PROPOSING_PHRASES = re.compile(
    r"^\W*(?:\w+\W+){0,2}?(?:what|how) about\b|\bhow (?:do you feel|does (?:that|this|it) (?:sound|look|suit))\b"
    r"|\bwhat do you (?:think|say)\b"
)
"""The assistant asks for an opinion, though with the word of a question for a detail."""
OFFER_PHRASES = re.compile(
    r"\b(?:(?:would|do|did) you (?:like|want|wish|care|need)|(?:you )?(?:wanna|want)|want me|shall (?:i|we)|should (?:i|we)"
    r"|(?:can|may|could|will) i|(?:i|we) (?:can|could)|interested in|ready to|you like me)(?: to)?\b"
)
CONFIRMATION_WORDS = word_set("correct right ok okay fine good work accurate")
"""Each phrase of the next has one of these, or "confirm"."""
CONFIRMATION_PHRASES = re.compile(
    r"\b(?:confirm|confirming|correct|(?:is|are|does|do|have) (?:that|this|it|everything|all|i got|these|those)\b[^?]*"
    r"\b(?:right|ok|okay|fine|good|work|correct|accurate))\b"
)
DETAIL_WORDS = word_set("what what's which who when where where's how why whose whom")

# --- words that request, transact, and name topics ----------------------------------------------------------------------

REQUEST_WORDS = word_set(
    """want need needed like love wish looking look find finding search searching get getting show give tell see check hear make
    making recommend suggest know what what's which any some how how's there let's help assist interested where where's try
    grab plan write explain compare"""
)
"""After one of these, the next thing that is named is what the message asks for."""

SEARCH_WORDS = word_set(
    "look looking find finding search searching show see check recommend suggest what which any how know tell"
)
"""Asking by one of these is looking for something, whatever noun follows."""

THING_REQUESTS = word_set(
    """want need wish looking look find finding search searching get recommend suggest book reserve buy check show open play
    watch write explain plan make"""
)
"""After one of these, or "would like", the thing itself may follow: "find a plumber"."""

WOULD = word_set("would i'd we'd")
BEFORE_THINGS = word_set("a an some my our to for me us out up also now too please")
"""May stand between such a word and the thing."""

THING_ENDS = STOP_WORDS | word_set("whether forward while until till")
"""End the name of a thing."""

GENERIC_STEMS = word_set(
    """thing stuff place spot location area kind type sort way time day date week weekend month hour minute morning afternoon
    evening night number amount price cost detail information info option choice alternative idea question answer request
    person people help assistance somewhere someone anything everything change"""
)
"""Nouns that say nothing of what is wanted."""

CIRCUMSTANCE_WORDS = word_set("at from in near around by of until till after before during it them this that those these since")
"""A thing that is named behind one of these is a circumstance, not what is asked for."""

NEGATIONS = word_set("not don't won't never can't cannot didn't doesn't")

TRANSACTION_VERBS = word_set(
    """book reserve secure arrange buy purchase rent order schedule reschedule cancel transfer send pay play add create set
    install deploy delete remove submit publish subscribe register apply hire"""
)
TRANSACTION_NOUNS = word_set(
    """reservation booking appointment purchase payment transfer ticket tickets reserving buying purchasing renting ordering
    scheduling cancelling transferring sending paying playing"""
)
ENJOYMENT_PHRASES = re.compile(r"\b(?:listen to|hear|watch|visit|attend) (?:it|this|that|the|them)\b")
"""Doing what a thing is for, once it was found: "a song" is looked for, "it" is listened to."""

BEFORE_TRANSACTION_VERBS = word_set(
    """to please yes yeah yep sure ok okay and then now you just i'll we'll let's also me help go ahead great
    could can would will first instead alright so actually"""
)

TOPIC_OF_STEM = _by_stem(
    {
        "lodging": "hotel hostel motel lodging accommodation room airbnb inn suite",
        "dining": "restaurant diner cafe dinner lunch breakfast brunch eat meal food cuisine dine",
        "home": "apartment flat condo house housing",
        "flight": "flight plane airline fly",
        "train": "train rail railway",
        "bus": "bus coach",
        "ride": "cab taxi ride uber lyft",
        "car": "car vehicle suv sedan",
        "weather": "weather forecast temperature rain humidity humid wind windy snow sunny",
        "music": "song music album playlist track listen tune",
        "film": "movie film cinema showtime",
        "series": "series show episode",
        "event": "event concert game match festival",
        "sights": "attraction museum park landmark sightseeing tour",
        "money": "account balance bank transfer savings checking funds",
        "care": "doctor dentist therapist psychologist psychiatrist gynecologist dermatologist physician",
        "beauty": "salon haircut barber stylist spa massage",
        "alarm": "alarm timer",
        "calendar": "calendar meeting schedule agenda",
        "message": "email mail message letter",
        "news": "news headline",
        "recipe": "recipe cook bake",
        "joke": "joke riddle poem story",
        "code": "code function script bug test program package module repository refactor deploy server database",
        "file": "file document folder directory spreadsheet",
        "translation": "translate translation",
        "shopping": "shoe shirt laptop gift product",
        "study": "homework essay exam lesson",
        "sport": "workout exercise gym",
    }
)
BACK_REFERENCES = word_set("it its that this those these they their them one ones he she him her same there")
DEFINITE_WORDS = BACK_REFERENCES | {"the"}
"""What is spoken of with one of these is there already."""
