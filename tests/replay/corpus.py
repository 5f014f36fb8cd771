"""Sessions in which everything happens that a session knows, under several policies in one root: what replays are tried on.

A message says what its model shall do after a bar: `which roses? | rel=switch act=command label=garden`. So a script of
messages is the whole story, and the same model serves every session. `corpus.toml` holds the policies.
"""

import argparse
import shutil
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

import anyio

from kitchener import ClientOutput, ClientTool
from kitchener.actors.supervisor import HO2Supervisor
from kitchener.actors.tools.tool import tool
from kitchener.errors import ProviderError, TurnTimeout
from kitchener.ledger import LedgerEntry
from kitchener.records.parts import ImagePart
from kitchener.records.prompt import PromptRequest
from kitchener.records.turn import TurnResult
from kitchener.runtime import Runtime, open_runtime
from kitchener.signing import make_key
from kitchener.testing import FakeClock, ScriptedProvider
from tests.replay.corpus_model import asked, model

SETTINGS: Final = Path(__file__).with_name("corpus.toml")
START_US: Final = 1_767_225_600_000_000
"""The clock's first moment: 2026-01-01T00:00:00Z."""
HOUR_US: Final = 3_600_000_000


@tool
def water(bed: str, litres: int = 1) -> dict[str, Any]:
    """Waters a bed."""
    return {"bed": bed, "litres": litres, "log": "drop " * 40}


BEDS: Final = {"type": "object", "properties": {"beds": {"type": "integer"}}, "required": ["beds"]}
"""The schema of an object that a caller asks for."""


class BreakingClock(FakeClock):
    """A clock that fails the executor of one kind of work order: what models and tools do is never an executor's failure."""

    breaks: str | None = None

    def time_us(self) -> int:
        caller = sys._getframe(1)
        if self.breaks is not None and caller.f_code.co_name == "execute" and caller.f_locals.get("wo_type") == self.breaks:
            raise RuntimeError("a bug in an executor")
        return super().time_us()


class Story:
    """One recording: a runtime that is opened and closed as often as the story wants, and its clock."""

    def __init__(self, root: Path) -> None:
        self.root, self.clock = root, BreakingClock(START_US)
        self.runtime: Runtime | None = None
        self._scope: anyio.CancelScope | None = None

    def open(self) -> Any:
        """A runtime over the root."""
        scripted = {each: ScriptedProvider(model, provider_id=each, gate=self._gate) for each in ("scripted", "spare")}
        return open_runtime(self.root / SETTINGS.name, providers=scripted, clock=self.clock)

    async def _gate(self, request: PromptRequest) -> None:
        """Every model call takes some time, and a message may ask to be cut off while its model thinks."""
        self.clock.advance(0.25)
        wanted = asked(str(request.variables.get("user_message", "")))
        if wanted.get("cut") == request.wo_type:
            assert self._scope is not None
            self._scope.cancel()
            await anyio.sleep_forever()
        if wanted.get("slow") == request.wo_type:
            await anyio.sleep_forever()
        if wanted.get("flaky") == request.wo_type and request.provider_id is None and not self._has_failed(request):
            raise ProviderError("scripted", "server_error", "on purpose, once")
        if wanted.get("down") == request.wo_type and request.model_id == "scripted-1":
            raise ProviderError("scripted", "server_error", "on purpose, always")

    def _has_failed(self, request: PromptRequest) -> bool:
        key = (request.wo_id, request.call)
        known = self.__dict__.setdefault("_failed", set())
        is_known = key in known
        known.add(key)
        return is_known

    async def say(self, supervisor: HO2Supervisor, session_id: str, messages: Sequence[str], runtime: Runtime) -> None:
        """One turn for each message, and what is learned from it."""
        for message in messages:
            wanted = asked(message)
            self.clock.advance(float(wanted.get("after", "60")))
            self.clock.breaks = wanted.get("breaks")
            options: dict[str, Any] = {"session_id": session_id, "memory": "forget" not in wanted}
            if "key" in wanted:
                options["idempotency_key"] = wanted["key"]
            if "accept" in wanted:
                options["acceptance"] = wanted["accept"].split(",")
            if "beds" in wanted:
                options["output"] = BEDS
            if "choice" in wanted:
                options["tool_choice"] = wanted["choice"]
            with anyio.fail_after(20), anyio.CancelScope() as self._scope:
                try:
                    if "stream" in wanted:
                        async for _ in supervisor.stream_turn(message, **options):
                            pass
                    else:
                        await supervisor.handle_turn(message, **options, deadline=0.3 if "slow" in wanted else None)
                except TurnTimeout:
                    assert "slow" in wanted
                await runtime.drain()


Chapter = Callable[[Story, Runtime], Awaitable[None]]
"""Some turns between the opening of a runtime and its end."""


async def record(root: Path, chapters: Sequence[Chapter] | None = None) -> None:
    """The sessions of some chapters, or of all, in a directory that becomes a root of its own."""
    root.mkdir(parents=True, exist_ok=True)
    shutil.copy(SETTINGS, root / SETTINGS.name)
    make_key(root / "signing.pem")
    story = Story(root)
    for sitting in sittings(CHAPTERS if chapters is None else chapters):
        async with story.open() as runtime:
            for chapter in sitting:
                await chapter(story, runtime)
                story.clock.advance(us=HOUR_US)


def sittings(chapters: Sequence[Chapter]) -> list[list[Chapter]]:
    """The chapters that one runtime records: a restart costs as much as some turns, and only what is told again needs one."""
    found: list[list[Chapter]] = []
    for chapter in chapters:
        if chapter in AFTER_A_RESTART or not found:
            found.append([])
        found[-1].append(chapter)
    return found


GARDEN: Final = (
    "which roses need water in summer? | domain=garden act=question",
    "list my packages please | act=command tool=list_packages domain=machine rel=switch objective=packages",
    "and which of them begin with o? | loop=1 domain=machine sure=0.65",
    "water the roses | act=command tool=water domain=garden rel=switch objective=roses stream=1",
    "the tomatoes on the balcony look yellow, why? | domain=garden task=repair words=30",
    "break something | act=command tool=break_down domain=machine",
    "thank you | act=thanks",
    "plan the beds: roses, tomatoes, herbs | act=request domain=garden task=planning words=40 rel=switch objective=beds",
    "how much water do tomatoes need on the balcony? | domain=garden empty=first key=water",
    "what about the packages again? | rel=continue empty=always domain=machine",
    "once more | empty=always",
    "outage | synthesize_fails=1",
    "and now? | unclassified=1",
    "is it clear? | rel=unclear",
    "is it certain? | sure=0.3",
    "which herbs stay green in winter? | domain=garden forget=1 words=25",
    "do roses climb? | domain=garden down=synthesize",
    "are packages heavy? | domain=machine flaky=classify",
    "loop on | loop=5 act=command",
    "that is all about beds | rel=close",
    "and the weather? | rel=continue",
    "is everything done? | done=1 stream=1",
    "one more thing | rel=switch",
)


async def garden(story: Story, runtime: Runtime) -> None:
    """Threads of one session that come and go, tools, failures and retries."""
    supervisor = runtime.supervisor()
    session_id = await supervisor.start_session(subject_id="ada", external_id="garden")
    await story.say(supervisor, session_id, GARDEN, runtime)


async def garden_in_short(story: Story, runtime: Runtime) -> None:
    """The beginning of it, for a root that is to be small."""
    supervisor = runtime.supervisor()
    session_id = await supervisor.start_session(subject_id="ada", external_id="garden")
    await story.say(supervisor, session_id, GARDEN[:5], runtime)


async def garden_again(story: Story, runtime: Runtime) -> None:
    """The same session resumed; one turn is cut off, one is too slow; an earlier thread comes back."""
    supervisor = runtime.supervisor()
    found = await supervisor.find_external("garden", subject_id="ada")
    assert found is not None
    cut = [
        "tell me of roses | cut=synthesize domain=garden",
        "quickly! | slow=synthesize",
        "what was I saying? | domain=garden",
    ]
    await story.say(supervisor, found, cut, runtime)
    entries = [entry async for entry in runtime.ledgers().ho2m.read(session_id=found, entry_type="INTENT_DECLARED")]
    first, second = entries[0].entity_id, entries[1].entity_id
    back = [
        f"back to the roses | rel=switch back={first} domain=garden",
        f"and back | rel=switch back={second}",
        "go | rel=switch back=INT-none",
    ]
    await story.say(supervisor, found, back, runtime)
    other = await supervisor.declare_intent(found, "the greenhouse", targets=["glass"])
    await story.say(supervisor, found, ["which of them?", "hm, the other", "the greenhouse"], runtime)
    children = await supervisor.fork_intent(found, other, ["its roof", "its door"], active=1)
    await story.say(supervisor, found, ["how high is it? | words=12"], runtime)
    await supervisor.close_intent(found, children[1], "it is built")
    await story.say(supervisor, found, ["what is left? | domain=garden"], runtime)
    await supervisor.reopen_intent(found, children[1], "a leak")
    await story.say(
        supervisor, found, ["does it leak? | domain=garden task=repair", "its door", "is it of oak? | domain=garden"], runtime
    )
    await supervisor.declare_intent(found, "a pond")
    await story.say(supervisor, found, ["fish?"], runtime)
    await supervisor.resolve_conflict(found, keep=children[1])
    await story.say(supervisor, found, ["the door then | domain=garden"], runtime)
    await supervisor.abandon_intent(found, children[1], "too dear")
    await story.say(supervisor, found, ["what now? | rel=close", "hello | act=greeting"], runtime)
    await supervisor.end_session(found)


async def evenings(story: Story, runtime: Runtime) -> None:
    """Short sessions of two subjects over two weeks: gates open, lines are learned, fade, and speak where they belong."""
    supervisor = runtime.supervisor()
    for evening in range(5):
        for subject_id in ("ada", "grace") if evening % 2 else ("ada",):
            session_id = await supervisor.start_session(subject_id=subject_id)
            messages = [
                f"roses again, evening {evening} | domain=garden act=command tool=list_packages",
                f"and the machine {evening} | domain=machine task=planning",
                "broken | task=repair empty=always" if evening == 3 else "thanks | act=thanks",
            ]
            await story.say(supervisor, session_id, messages, runtime)
        for _ in range(30):
            story.clock.advance(us=HOUR_US)
            await runtime.memory().log_signal("mood:good", f"SES-{evening:08x}", namespace="ADMIN/ada")
    memory = runtime.memory()
    learned = await memory.read_overlays(namespace="ADMIN/ada")
    now = learned[-1].created_at or ""
    await memory.update_overlay_weight(learned[0].key, 0.9, "it is so", now, namespace="ADMIN/ada")
    await memory.deactivate_overlay(learned[-1].key, "no longer", now, block=True, namespace="ADMIN/ada")
    events = (await memory.read_signals("task:planning", namespace="ADMIN/ada"))[0].event_ids
    await memory.quarantine(events[0], "a joke", namespace="ADMIN/ada")
    session_id = await supervisor.start_session(subject_id="ada")
    await story.say(supervisor, session_id, ["roses? | domain=garden", "planning? | task=planning domain=machine"], runtime)


async def plain(story: Story, runtime: Runtime) -> None:
    """No Context Authority: attention alone, bounded tightly, with memory."""
    supervisor = runtime.supervisor("RESIDENT:off")
    session_id = await supervisor.start_session(subject_id="bo")
    messages = [
        "which herbs stay green in winter? | domain=garden",
        "how do I prune an apple tree? | domain=garden words=20",
        "and pears, are they pruned likewise? | domain=garden",
        "what is the weather like in May? | domain=weather",
        "apple pie or apple cake? | domain=kitchen",
        "prune the apple tree now | domain=garden act=command",
        "prune it | domain=garden",
        "hard to say | unclassified=1",
        "it breaks | breaks=synthesize",
        "thanks | act=thanks",
    ]
    await story.say(supervisor, session_id, messages, runtime)
    again = await supervisor.start_session(subject_id="bo")
    await story.say(supervisor, again, ["apples? | domain=garden", "pie? | domain=kitchen"], runtime)


async def shadow(story: Story, runtime: Runtime) -> None:
    """The Authority decides beside attention, threads and conflicts included."""
    supervisor = runtime.supervisor("RESIDENT:shadow")
    session_id = await supervisor.start_session(subject_id="cy")
    messages = [
        "one | domain=a",
        "two | rel=switch",
        "three | verify=reject",
        "four | rel=unclear",
        "five | rel=close",
        "six | words=60",
    ]
    await story.say(supervisor, session_id, [*messages, "seven | done=1", "eight | empty=always", "nine"], runtime)


async def asking(story: Story, runtime: Runtime) -> None:
    """A policy that asks, and lets a model judge each reply."""
    supervisor = runtime.supervisor("RESIDENT:ask")
    session_id = await supervisor.start_session(subject_id="di", external_id="attic")
    messages = [
        "begin with the cellar",
        "or the attic? | sure=0.69",
        "unsure | rel=unclear",
        "the attic | rel=switch sure=0.7",
        "check it | verify=reject",
        "check it thrice | verify_fails=1",
        "nothing at all | empty=always",
        "close it | rel=close",
        "close it again | rel=close",
        "anew",
    ]
    await story.say(supervisor, session_id, messages, runtime)
    await supervisor.declare_intent(session_id, "the cellar stairs")
    await story.say(supervisor, session_id, ["what?", "the cellar stairs"], runtime)
    # What another program wrote: the end of an intent that nobody declared.
    base = {"v": 1, "session_id": session_id, "subject_id": "di", "intent_id": "INT-0000000000000000"}
    closed = LedgerEntry("INTENT_CLOSED", "INT-0000000000000000", {**base, "outcome": "never was"})
    await runtime.ledgers("RESIDENT:ask").ho2m.write(closed)


async def asking_on(story: Story, runtime: Runtime) -> None:
    """The impossible entry blocks the session until it is voided."""
    supervisor, ho2m = runtime.supervisor("RESIDENT:ask"), runtime.ledgers("RESIDENT:ask").ho2m
    session_id = await supervisor.find_external("attic", subject_id="di")
    assert session_id is not None
    await story.say(supervisor, session_id, ["go on", "go on, please"], runtime)
    (closed,) = [each async for each in ho2m.read(session_id=session_id, entity_id="INT-0000000000000000")]
    fields = {"v": 1, "session_id": session_id, "subject_id": "di", "ref": closed.ref.as_mapping(), "reason": "a slip"}
    await ho2m.write(LedgerEntry("LIFECYCLE_VOIDED", closed.entity_id, fields))


async def asking_again(story: Story, runtime: Runtime) -> None:
    """It goes on as if the entry had never been."""
    supervisor = runtime.supervisor("RESIDENT:ask")
    session_id = await supervisor.find_external("attic", subject_id="di")
    assert session_id is not None
    await story.say(supervisor, session_id, ["and now?", "is it unclear? | rel=unclear"], runtime)


async def declaring(story: Story, runtime: Runtime) -> None:
    """Newest thread wins, evidence comes from the subject's other sessions, budgets are tight."""
    supervisor = runtime.supervisor("RESIDENT:declare")
    for number in range(3):
        session_id = await supervisor.start_session(subject_id="eve")
        messages = [
            f"the piano needs tuning {number} | words=18",
            f"a violin of maple, number {number} | rel=unclear words=15",
            f"strings for the violin {number}",
            f"a piano stool {number} | rel=switch words=10",
            f"retry {number} | empty=first",
        ]
        await story.say(supervisor, session_id, messages, runtime)
        if number == 1:
            await supervisor.declare_intent(session_id, "a flute")
            await story.say(
                supervisor, session_id, ["silver or wood?", "the piano tuning | words=200", "long | size=4000", "over"], runtime
            )
    session_id = await supervisor.start_session(subject_id="eve")
    await supervisor.declare_intent(session_id, "the house band", scope="PROJECT")
    await story.say(supervisor, session_id, ["who plays the drums?"], runtime)


async def bridge(story: Story, runtime: Runtime) -> None:
    """One thread for each session, a small window, and memory."""
    supervisor = runtime.supervisor("RESIDENT:bridge")
    for number in range(2):
        session_id = await supervisor.start_session(subject_id="fay")
        messages = [
            f"step {n} of {number} | domain=steps words={5 * n} rel={('continue', 'switch', 'close')[n % 3]}" for n in range(7)
        ]
        await story.say(supervisor, session_id, [*messages, "done? | done=1", "failed | empty=always", "after"], runtime)


async def judged(story: Story, runtime: Runtime) -> None:
    """Replies that meet what their callers ask for at the very bound, miss it by one, or say what they must not."""
    supervisor = runtime.supervisor("RESIDENT:bridge")
    session_id = await supervisor.start_session(subject_id="gil")
    criteria = (
        *("max_chars:40", "max_chars:39", "min_chars:40", "min_chars:41", "contains:x", "contains:y"),
        *("not_contains:x", "not_contains:y", "min_chars:40,max_chars:40", "contains:x,contains:y"),
    )
    messages = [f"judge {number} | size=40 accept={each}" for number, each in enumerate(criteria)]
    await story.say(supervisor, session_id, [*messages, "too long at first | words=9 accept=max_chars:12"], runtime)


DIARY: Final = (
    "On 3 May 2023 we planted forty tulips beside the old stone wall.",
    "My sister Clara studies medicine in Vienna and plays the cello.",
    "The boiler was repaired last Tuesday; the invoice came to 240 euros.",
    "We are hiking across the Dolomites in September with Jonas and Mira.",
    "I stopped eating peanuts because of an allergy in 2019.",
    "Clara's cello needs new strings, the A string snapped yesterday.",
    "The tulips were eaten by deer, so we ordered a fence for the garden.",
    "Jonas carries the tents, Mira carries the stoves and the maps.",
    "Our boiler leaks again, three buckets of water in one night!",
    "The doctor prescribed tablets against the allergy, twice daily.",
)
ASKED: Final = (
    "When did we plant the tulips?",
    "Who plays the cello, and what broke?",
    "How much did repairing the boiler cost?",
    "Which allergies do I have, and since what year?",
    "Who is carrying the tents on the hike?",
    "Was the fence ordered before or after the deer ate the tulips?",
    "Does Clara study in Vienna or in Graz?",
    "What leaks?",
    "stories of hikers, cities and happily planted flowers",
    "Tulpen? Blumen? ¿Qué?",
    "what did I say about Mira, Jonas, stoves, maps and tents in September?",
    "and the doctor?",
)


async def recalling(story: Story, runtime: Runtime) -> None:
    """A diary over three sessions, and questions about it for which little of it fits: what matches best is shown."""
    supervisor = runtime.supervisor("RESIDENT:recall")
    for part in (DIARY[:5], DIARY[5:], ASKED):
        session_id = await supervisor.start_session(subject_id="hal")
        await story.say(supervisor, session_id, [f"{each} | words={3 + 5 * (n % 3)}" for n, each in enumerate(part)], runtime)
        story.clock.advance(us=9 * HOUR_US)
    await story.say(supervisor, session_id, [f"{each} Or another? | rel=switch" for each in ASKED[:6]], runtime)


SHORT: Final = (
    "list my packages | act=command tool=list_packages domain=machine",
    "water the roses | act=command tool=water domain=garden rel=switch objective=roses stream=1",
    "how much water do they need? | domain=garden empty=first words=20",
    "break something | act=command tool=break_down domain=machine",
    "outage | synthesize_fails=1",
    "which begin with o? | loop=2 domain=machine down=synthesize",
    "is it clear? | rel=unclear",
    "and this? | domain=garden forget=1 empty=always",
)


async def short(story: Story, runtime: Runtime) -> None:
    """A few turns of every kind, for a root that is kept."""
    supervisor = runtime.supervisor()
    session_id = await supervisor.start_session(subject_id="ada", external_id="short")
    await story.say(supervisor, session_id, SHORT, runtime)


async def short_again(story: Story, runtime: Runtime) -> None:
    """The same session resumed, cut off, forked, in conflict and settled."""
    supervisor = runtime.supervisor()
    session_id = await supervisor.find_external("short", subject_id="ada")
    assert session_id is not None
    await story.say(
        supervisor, session_id, ["tell me more | cut=synthesize domain=garden", "where were we? | domain=garden"], runtime
    )
    other = await supervisor.declare_intent(session_id, "the greenhouse")
    await story.say(supervisor, session_id, ["which of them?", "the greenhouse"], runtime)
    await supervisor.fork_intent(session_id, other, ["its roof", "its door"], active=1)
    await story.say(supervisor, session_id, ["how high is it?", "done? | done=1"], runtime)


async def policy_versions(story: Story, runtime: Runtime) -> None:
    """What version 1 of the policy decided otherwise: replies beyond the budget, the other spelling, decisions dated ahead."""
    supervisor = runtime.supervisor("RESIDENT:poor")
    session_id = await supervisor.start_session(subject_id="ada")
    messages = [
        "hello | act=greeting scope=herbs domain=garden",
        "a bed | scope=beds intent=supersede domain=garden",
        "a pond | scope=ponds intent=supersede null=intent_relation domain=garden",
        "a shed | rel=switch objective=SESSION",
        "a fence | scope=PROJECT intent=supersede",
        *["dear | domain=garden " + "long " * 120] * 3,
        "and now? | scope=later intent=continue domain=garden",
    ]
    await story.say(supervisor, session_id, messages, runtime)
    memory, namespace = runtime.memory("RESIDENT:poor"), "RESIDENT%3Apoor/ada"
    learned = await memory.read_overlays(namespace=namespace)
    ahead = "2026-01-03T00:00:00+00:00"
    for line in learned:
        await memory.deactivate_overlay(line.key, "from the day after tomorrow on", ahead, namespace=namespace)
    session_id = await supervisor.start_session(subject_id="ada")
    await story.say(supervisor, session_id, ["today | domain=garden"], runtime)
    story.clock.advance(us=72 * HOUR_US)
    await story.say(supervisor, session_id, ["later | domain=garden"], runtime)


LETTER: Final = "Dear Ada, the estimate for the roof has come. " + "The slates are grey and the battens of larch. " * 60
"""A long message, of which only an excerpt is shown later."""


async def clerk(story: Story, runtime: Runtime) -> None:
    """Rules classify; several people speak, with an image and long texts; what they said is recalled weeks later."""
    supervisor = runtime.supervisor("RESIDENT:clerk")
    session_id = await supervisor.start_session(subject_id="ida")
    await story.say(
        supervisor, session_id, ["hello there", "I want to repair the roof | words=90", "thank you, that is all"], runtime
    )
    image = ImagePart(b"\x89PNG\r\n\x1a\nno more", "image/png", name="roof.png")
    await supervisor.handle_turn("this is the roof", session_id=session_id, speaker="Jonas", parts=[image])
    await supervisor.handle_turn(LETTER, session_id=session_id, speaker="Mira")
    for days in (1, 20):
        story.clock.advance(us=days * 24 * HOUR_US)
        asking = await supervisor.start_session(subject_id="ida")
        messages = [
            "What are the battens made of? | words=40",
            "what did Jonas say of the roof? | stream=1",
            "and now the weather",
        ]
        await story.say(supervisor, asking, messages, runtime)


async def long_replies(story: Story, runtime: Runtime) -> None:
    """A goal that is deferred after failures, a goal below it, and long replies while the history is nearly full."""
    supervisor = runtime.supervisor("RESIDENT:clerk")
    session_id = await supervisor.start_session(subject_id="max")
    house = await supervisor.declare_intent(session_id, "the house")
    await story.say(supervisor, session_id, ["outage | synthesize_fails=1"] * 3, runtime)
    await supervisor.declare_intent(session_id, "its roof", parent_intent_id=house)
    messages = [f"and part {n} of the roof? | words={words}" for n, words in enumerate((90, 90, 100, 110, 100, 90, 300, 80))]
    await story.say(supervisor, session_id, messages, runtime)


async def objects(story: Story, runtime: Runtime) -> None:
    """A caller asks for objects: the model gives one, one at last, only others, or none, and then replies with text again."""
    supervisor = runtime.supervisor("RESIDENT:clerk")
    session_id = await supervisor.start_session(subject_id="lou")
    await supervisor.declare_intent(session_id, "the garden")
    messages = [f"how many beds? | beds={each}" for each in ("now", "late", "never", "text")]
    await story.say(supervisor, session_id, [*messages, "what became of the beds?"], runtime)


async def without_calls(story: Story, runtime: Runtime) -> None:
    """Replies for which no tool may be called: to a greeting, by the caller's choice, after many rounds, and as a retry."""
    supervisor = runtime.supervisor()
    session_id = await supervisor.start_session(subject_id="uma")
    messages = [
        "hello there | act=greeting",
        "which packages begin with t? | loop=3 domain=machine",
        "say it without a look | choice=none domain=machine",
        "which roses climb? | accept=contains:again domain=garden",
        "list them once more | loop=9 domain=machine",
        "thank you | act=thanks",
    ]
    await story.say(supervisor, session_id, messages, runtime)


async def failures(story: Story, runtime: Runtime) -> None:
    """Replies that failed at the model for one reason each, and what was asked after them."""
    supervisor = runtime.supervisor("RESIDENT:clerk")
    session_id = await supervisor.start_session(subject_id="pat")
    reasons = ("empty", "malformed", "rate_limited", "timeout", "server_error", "refused")
    messages = [*(f"which roses? | synthesize_fails={each}" for each in reasons), "and now?"]
    await story.say(supervisor, session_id, messages, runtime)


async def guarded(story: Story, runtime: Runtime) -> None:
    """Calls wait for a person, who allows, refuses, edits, allows for good, or is silent; other messages pass meanwhile."""
    supervisor = runtime.supervisor("RESIDENT:guard")
    session_id = await supervisor.start_session(subject_id="jo", external_id="guard")

    async def ask(message: str) -> tuple[str, ...]:
        story.clock.advance(60.0)
        return (await supervisor.handle_turn(message, session_id=session_id)).pending_approval

    (first,) = await ask("water one bed | calls=water")
    await ask("and what else? | words=3")
    await supervisor.approve(first, answered_by="kim", message="go on")
    (edited, refused) = await ask("water three | calls=read_page+water+water+water words=4")
    await supervisor.approve(edited, arguments={"bed": "moss", "litres": 3})
    await supervisor.deny(refused, "it is wet", answered_by="kim")
    (after,) = await ask("read and break | calls=read_page,break_down+read_page")
    await supervisor.approve(after)
    late = await ask("water late | calls=water")
    story.clock.advance(1_000.0)
    assert await ask("are you still there?") == ()
    (always,) = await ask("water always | calls=water,water")
    assert late != (always,)
    await supervisor.approve(always, scope="session")
    (again,) = await ask("water again | calls=water")  # a page of strangers is shown again
    await supervisor.approve(again, scope="session")
    assert await ask("and again | calls=water") == ()


async def guarded_again(story: Story, runtime: Runtime) -> None:
    """What was allowed for the session holds after a restart, but not in another session; a request outlives one too."""
    supervisor = runtime.supervisor("RESIDENT:guard")
    found = await supervisor.find_external("guard", subject_id="jo")
    assert found is not None
    await story.say(supervisor, found, ["water once more | calls=water", "read | calls=read_page,break_down"], runtime)
    (waiting,) = (await supervisor.handle_turn("mine | calls=water", subject_id="kim")).pending_approval
    await supervisor.deny(waiting)


PAINT: Final = ClientTool(
    "paint", "Paints a bed.", {"type": "object", "properties": {"bed": {"type": "string"}}, "required": ["bed"]}
)
LOOK: Final = ClientTool("look", "Looks around.")


async def with_a_client(story: Story, runtime: Runtime) -> None:
    """The caller brings tools: called alone, beside calls that a person allows, wrongly, again and again, and in vain."""
    supervisor = runtime.supervisor("RESIDENT:guard")
    session_id = await supervisor.start_session(subject_id="lea")

    async def ask(message: str) -> TurnResult:
        story.clock.advance(60.0)
        return await supervisor.handle_turn(message, session_id=session_id, client_tools=[PAINT, LOOK])

    first = await ask("paint it | calls=paint,look words=3")
    await ask("and what else? | words=3")
    more = await supervisor.answer_client_calls({first.client_calls[0].call_id: "a red bed"})
    assert more is not None
    await supervisor.answer_client_calls({more.client_calls[0].call_id: ClientOutput(error="it is dark")})
    mixed = await ask("paint and water | calls=water+paint+paint words=5")
    await supervisor.answer_client_calls({each.call_id: {"n": n} for n, each in enumerate(mixed.client_calls)})
    for each in mixed.pending_approval:
        await supervisor.approve(each)
    await ask("wrongly | calls=unpainted words=2")
    await ask("never answered | calls=look")
    story.clock.advance(1_000.0)
    await ask("are you still there?")


async def taught(story: Story, runtime: Runtime) -> None:
    """A second session of the same subject, in which gates open, and a third one that is shown what was learned."""
    supervisor = runtime.supervisor()
    for _ in range(2):
        session_id = await supervisor.start_session(subject_id="ada")
        messages = ["list packages again | act=command tool=list_packages domain=machine", "roses? | domain=garden"]
        await story.say(supervisor, session_id, messages, runtime)


CHAPTERS: Final = (
    garden,
    garden_again,
    evenings,
    plain,
    shadow,
    asking,
    asking_on,
    asking_again,
    declaring,
    bridge,
    recalling,
    policy_versions,
    judged,
    clerk,
    long_replies,
    objects,
    without_calls,
    guarded,
    guarded_again,
    with_a_client,
    failures,
)
AFTER_A_RESTART: Final = (garden_again, short_again, asking_on, asking_again, guarded_again)
"""What goes on with a session of an earlier runtime."""


def main() -> None:
    """`python -m tests.replay.corpus ROOT [CHAPTER ...]` records a root of some chapters, or of all."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("root", type=Path)
    parser.add_argument("chapters", nargs="*")
    parser.add_argument("--backend", default="asyncio", choices=("asyncio", "trio"))
    given = parser.parse_args()
    chapters = [chapter for chapter in CHAPTERS if not given.chapters or chapter.__name__ in given.chapters]
    anyio.run(record, given.root, chapters, backend=given.backend)


if __name__ == "__main__":
    main()
