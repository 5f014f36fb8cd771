"""The cues by which the offline model tells how a message stands to the active objective: phrases, and words with a role.

General English, set by hand; `offline_relations` says how they are weighed. All are matched against lower case with straight
apostrophes.
"""

import re

from kitchener.gateway.providers.offline.words import by_word, word_set

# --- cues: whole phrases ------------------------------------------------------------------------------------------------

CLOSERS = re.compile(
    r"\b(?:that(?:'?s| is| was| will be|'ll be| would be|'d be| should be) (?:all|it\b(?! (?:ok|okay|right))|everything|enough)"
    r"|(?:this|that)(?:'s| is) (?:all|everything) (?:i|we)"
    r"|nothing (?:else|more|further)|(?:need|want|for) nothing"
    r"|(?:do not|don't|won't|not) (?:need|want|have|require) (?:anything|any (?:more|other|further)|more (?:help|questions))"
    r"|no (?:more|other|further) (?:help|questions?|requests?|thanks)|(?:i am|i'm|we are|we're) (?:all )?(?:done|finished|set)"
    r"|all (?:set|done)|problem solved|(?:got|have) (?:all|everything) (?:i|we) need(?:ed)?"
    r"|never ?mind|forget (?:it|about it)|(?:good)?bye|see (?:you|ya)|have a (?:good|great|nice|wonderful|lovely)"
    r"|good ?night|take care|talk to you later)\b"
)
"""The user says that nothing more is wanted, or takes leave."""

OPENERS = re.compile(
    r"\b(?:(?:about|want|need) something else|another (?:thing|question|topic|matter|request)"
    r"|(?:new|different|other|separate) (?:topic|question|subject|thing|matter)"
    r"|by the way|btw|on another note|changing (?:the )?(?:topic|subject)|change (?:the )?(?:topic|subject)|moving on"
    r"|while (?:you(?:'re| are) at it|we(?:'re| are) at it)|unrelated|separately|(?:let's|let us) (?:switch|move on|go back)"
    r"|(?:and |but )?before (?:that|i forget)|first of all|instead of that|(?:also|now|next)[, ]+(?:i|we|i'd|i'm|i'll|can|could"
    r"|would|will|please|find|get|show|tell|help|book|let's|look|search|check)"
    r"|(?:i|we)(?:'d| would|'ll| will)? also (?:want|need|like|have|am)|(?:i'm|i am) also|(?:can|could|would|will) you also)\b"
)
"""The user announces another matter."""

RETURNS = re.compile(
    r"\b(?:(?:(?:go|going|get|getting|come|coming|switch|switching|let's) )?back to (?:the|my|our|what|that|where)"
    r"|return(?:ing)? to (?:the|my|our|what)|where were we|(?:said|discussed|mentioned|talked about|asked(?: about)?)"
    r" (?:before|earlier)|(?:previous|earlier) (?:topic|question|request|task|subject))\b"
)
"""The user goes back to something earlier."""

ANNOUNCING_WORDS = word_set(
    """something another new different other separate way btw note changing change moving while unrelated separately let's let
    before first instead also now next back return returning where earlier previous"""
)
"""Each phrase of `OPENERS` and `RETURNS` has one of these, so a message without any need not be searched for them."""

AFFIRMS = re.compile(
    r"^(?:(?:oh|ok|okay|well|great|good|nice|cool|perfect|thanks|alright|all right)[,.! ]+)*(?:yes|yeah|yep|yup|sure|please"
    r"|absolutely|definitely|certainly|of course|go ahead|do (?:it|that|so)|sounds (?:good|great|perfect|nice|fine)|why not"
    r"|(?:that|this|it)(?:'s| is| would be|'d be| will be|'ll be| sounds| works)|i (?:do|would|think so|'d love)"
    r"|i'd (?:like|love)|ok|okay|fine|great|perfect|alright|all right)\b"
)
"""A reply that begins by agreeing."""

REFUSES = re.compile(
    r"^(?:(?:oh|ok|okay|well|hmm|um|actually)[,.! ]+)*(?:no\b|nope|nah|not (?:now|right now|yet|today|really|at)"
    r"|perhaps later|maybe later|later)|\b(?:i'm|i am) (?:good|fine)[.! ]*$"
)
"""A reply that begins by declining."""

THANKS = re.compile(r"\b(?:thanks?|thx|cheers|appreciate|thank you)\b")
"""Thanks are for one step, as long as the message does not also say that this was all."""

# --- cues: what the assistant said last ---------------------------------------------------------------------------------

ELSE_WORDS = word_set("else more other further how")
"""Each phrase of the next has one of these."""
ASKS_WHAT_ELSE = re.compile(
    r"\b(?:(?:any|some)thing (?:else|more)|what (?:else|more)"
    r"|any (?:other|more|further)|(?:else|more|further) (?:help|assistance|information|requests?|questions?)"
    r"|other (?:help|requests?|questions?)|how (?:else |can |may )+i|need (?:more|further) )"
)
OFFERS = re.compile(
    r"\b(?:(?:would|do|did) you (?:like|want|wish|care|need)|(?:you )?(?:wanna|want)|want me|shall (?:i|we)|should (?:i|we)"
    r"|(?:can|may|could|will) i|(?:i|we) (?:can|could)|interested in|ready to|you like me)(?: to)?\b"
)
CONFIRMING = word_set("correct right ok okay fine good work accurate")
"""Each phrase of the next has one of these, or "confirm"."""
CONFIRMS = re.compile(
    r"\b(?:confirm|confirming|correct|(?:is|are|does|do|have) (?:that|this|it|everything|all|i got|these|those)\b[^?]*"
    r"\b(?:right|ok|okay|fine|good|work|correct|accurate))\b"
)
QUESTION_LEADS = word_set("what what's which who when where where's how why whose whom")

# --- words that ask, act, and name things -------------------------------------------------------------------------------

ASKING = word_set(
    """want need needed like love wish looking look find finding search searching get getting show give tell see check hear make
    making recommend suggest know what what's which any some how how's there let's help assist interested where where's try
    grab plan write explain compare"""
)
"""After one of these, the next thing that is named is what the message asks for."""

SEARCHING = word_set("look looking find finding search searching show see check recommend suggest what which any how know tell")
"""Asking by one of these is looking for something, whatever noun follows."""

ENDS_ASKING = word_set("at from in near around by of until till after before during it them this that those these since")
"""A thing that is named behind one of these is a circumstance, not what is asked for."""

NEGATING = word_set("not don't won't never can't cannot didn't doesn't")

ACTING = word_set(
    """book reserve buy purchase rent order schedule reschedule cancel transfer send pay play add create set install deploy
    delete remove submit publish subscribe register apply hire"""
)
ACTING_NOUNS = word_set(
    """reservation booking appointment purchase payment transfer ticket tickets reserving buying purchasing renting ordering
    scheduling cancelling transferring sending paying playing"""
)
ENJOYING = word_set("listen hear watch visit attend")
ENJOYS = re.compile(r"\b(?:listen to|hear|watch|visit|attend) (?:it|this|that|the|them)\b")
"""Doing what a thing is for, once it was found: "a song" is looked for, "it" is listened to."""

BEFORE_ACTING = word_set(
    """to please yes yeah yep sure ok okay and then now you just i'll we'll let's also me help go ahead great
    could can would will first instead alright so actually"""
)

THING_OF_STEM = by_word(
    {
        "lodging": "hotel hostel motel lodging accommodation room airbnb inn suite",
        "dining": "restaurant diner cafe dinner lunch breakfast brunch eat table food cuisine dine",
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
GIVEN = BACK_REFERENCES | {"the"}
"""What is spoken of with one of these is there already; what is new comes with one of the next."""
INDEFINITE = word_set("a an some any another")
