"""Turns a text into search terms (case-folded, without stop words, stemmed), and finds related terms.

The word lists and rules are written by hand and not fitted to any data. The word lists are English. Words of other languages
are kept whole, and the index still matches words with the same beginning. Scripts without spaces are compared by pairs of
adjacent characters.
"""

import re
import unicodedata
from functools import lru_cache
from typing import Final

__all__ = ["FRAME_TERMS", "KIN", "MAX_TERM_CHARS", "forget_words", "stem", "terms_of", "words_of"]

MAX_TERM_CHARS: Final = 64
"""Characters of a word that are compared; longer words with the same start count as equal."""
_MAX_KEPT_CHARS: Final = 16
"""Longest word whose terms are cached."""
_MAX_KEPT_WORDS: Final = 16_384
"""Most words in the cache; at most 32 MiB, if all are unspaced runs of the greatest length."""

# Marks that join a word without being letters: combining accents and the vowel signs of Indic scripts.
_WORD = re.compile(r"[\w\u0300-\u036f\u0900-\u0963\u0966-\u0dff]+")
# A run this long is not a word; normalizing sorts marks, at a cost quadratic in their number.
_MARK_RUN = re.compile(r"(?:[^\w\s]|[\uff9e\uff9f]){32}")
# Scripts that write words without spaces (Thai to Khmer, kana, Han), and Hangul, whose words carry their particles.
_UNSPACED = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]+"
)

_STOP_WORDS = """
a an the and or but if then than that this these those there here of to in on at by for with from as is are was were be
been being am do does did done doing have has had having will would can could should shall may might must i you he she
it we they me him her us them my mine your yours his hers its our ours their theirs who whom whose what when where why
how which not no nor so too very just also about into over out up down off s t m d ll ve re don didn doesn isn aren wasn
weren won wouldn couldn shouldn hasn haven hadn ain etc some any all both each such own same more most other
"""
_STOP = frozenset(_STOP_WORDS.split())

# The first of each group stands for the others.
_IRREGULAR_GROUPS = """
go went gone goes|buy bought|get got gotten|make made|take took taken|give gave given|see saw seen|find found|
feel felt|think thought|tell told|say said|meet met|begin began begun|run ran|write wrote written|speak spoke spoken|
teach taught|catch caught|bring brought|lose lost|win won|choose chose chosen|drive drove driven|ride rode ridden|
fly flew flown|eat ate eaten|drink drank drunk|sing sang sung|swim swam swum|grow grew grown|know knew known|
draw drew drawn|break broke broken|wake woke woken|wear wore worn|keep kept|leave left|sleep slept|spend spent|
send sent|build built|sell sold|pay paid|hold held|hear heard|lead led|fall fell fallen|forget forgot forgotten|
fight fought|seek sought|stand stood|understand understood|become became|come came|child children|man men|woman women|
person people|foot feet|tooth teeth|mouse mice|wife wives|life lives|good better best|bad worse worst|hide hid hidden|
shake shook shaken|steal stole stolen|throw threw thrown|tear tore torn|bite bit bitten|mean meant|dream dreamt|
learn learnt|burn burnt|feed fed|deal dealt|lend lent|bend bent|strike struck|stick stuck|hang hung|dig dug|spin spun|
shoot shot|sit sat|swear swore sworn|freeze froze frozen|rise rose risen|show shown|sew sewn
"""
_IRREGULAR = {form: group[0] for group in map(str.split, _IRREGULAR_GROUPS.split("|")) for form in group[1:]}

# Words of a question that say the form of the answer, not its subject.
_FRAME = "kind type sort many much mention describe according conversation item"

# Before the colon: words for one thing; after it: kinds and parts of it. Each word before the colon is related to all others
# of its line. Words after the colon are not related to each other: a dog and a cat are pets, but a dog is not a cat.
_FAMILIES = """
pet animal: dog puppy pup cat kitten kitty bird parrot rabbit hamster fish turtle snake horse guinea
dog puppy pup doggy:
cat kitten kitty:
child kid: son daughter boy girl baby toddler teenager teen
family relative: mother father parent brother sister sibling uncle aunt cousin grandma grandpa grandmother grandfather wife husband child kid son daughter niece nephew
parent: mother father mom dad mum
mother mom mum mommy:
father dad daddy:
grandmother grandma granny:
grandfather grandpa:
sibling: brother sister
partner spouse: husband wife boyfriend girlfriend fiance
relationship: date marry marriage single divorce boyfriend girlfriend breakup partner engage wed
marry marriage wedding: husband wife bride groom engage
friend buddy pal mate:
person people folk guy:
job work career profession occupation employment: colleague boss company office salary hire interview promotion shift client manager engineer teacher nurse lawyer developer designer
colleague coworker:
boss manager:
company firm business: startup store shop brand client
school education study degree: college university class course exam student teacher graduate semester lecture homework major
university college:
class course lesson workshop seminar: learn teach instructor
teacher instructor tutor coach: teach
learn study:
food meal dish cuisine: cook bake eat recipe dinner lunch breakfast pizza pasta salad soup cake bread chicken rice sushi dessert snack restaurant vegetable fruit meat
cook bake: recipe kitchen dish meal
dessert sweet: cake cookie pie chocolate pastry cream candy
drink beverage: coffee tea beer wine juice cocktail water
restaurant cafe diner: dinner lunch eat menu
diet: vegan vegetarian gluten dairy allergy keto eat healthy
allergy allergic:
sport athletic: football soccer basketball tennis baseball hockey golf volleyball swim run cycle ski surf team game match tournament
exercise workout fitness train: gym yoga run jog swim cycle bike hike weight lift pilates marathon boxing dance
hobby pastime interest leisure: paint draw read write garden photography knit cook bake hike fish music game craft sew collect
activity: hike swim paint camp run walk dance play game visit
outdoor nature: hike camp park forest mountain lake beach river trail garden
music: song band concert album guitar piano violin drum sing singer artist festival playlist
instrument: guitar piano violin drum flute cello clarinet saxophone trumpet ukulele keyboard
musician singer band artist: concert song album perform
concert gig show: band music perform festival
movie film cinema: watch actor director scene series trailer
show series: watch episode season tv television
book novel: read author story series chapter library writer fantasy
author writer: write book novel
write writing: story screenplay blog poem book article journal script novel essay
art artwork: paint draw sculpture gallery museum exhibit sketch pottery photography canvas
paint painting: draw canvas brush
photo picture photograph image: camera
game gaming: play player console tournament level chess card
country nation: abroad usa uk america britain england scotland ireland france germany spain portugal italy greece turkey sweden norway denmark finland poland netherlands belgium switzerland austria russia ukraine japan china korea india thailand vietnam indonesia australia zealand egypt morocco kenya nigeria africa canada mexico brazil argentina chile peru colombia
state: california texas florida oregon york washington colorado arizona nevada utah georgia virginia carolina ohio michigan illinois massachusetts jersey pennsylvania hawaii alaska tennessee minnesota
city town: york london paris berlin madrid barcelona rome milan amsterdam vienna prague dublin tokyo kyoto beijing shanghai singapore bangkok dubai delhi mumbai sydney melbourne toronto vancouver boston chicago seattle angeles francisco diego miami dallas houston denver downtown
place location: city country town state visit travel
travel trip vacation holiday journey: visit flight fly airport hotel tour abroad cruise beach tourist
visit: trip travel tour
hotel accommodation: airbnb hostel motel room
move relocate: apartment house home city
home house apartment flat: room kitchen rent landlord mortgage furniture garden
vehicle car: drive truck van motorcycle bike engine tire
bike bicycle: cycle ride
health illness disease medical: doctor hospital sick pain injury surgery diagnose therapy medication symptom
sick ill: doctor flu cold fever
injury hurt injure: ankle knee back pain sprain doctor hospital fracture
doctor physician: hospital clinic appointment
therapy therapist counseling counselor: mental anxiety
stress anxiety relax: calm meditate yoga therapy overwhelm unwind
feel emotion feeling: happy sad proud excite nervous scared angry grateful thankful lonely upset
happy glad joy: thrill excite delight
sad upset: cry grief miss
scared afraid fear frightened: nervous
angry mad:
tired exhausted:
setback difficulty problem trouble challenge struggle issue obstacle: tough hard fail break injury lose difficult
goal plan aim dream ambition: hope want future
achievement accomplishment success award: win prize trophy medal graduate promotion
win victory: prize trophy champion tournament
competition contest tournament: win compete prize
gift present: give birthday receive
birthday: party celebrate cake
celebrate celebration party: birthday anniversary wedding festival
event: party festival concert conference meeting workshop fair parade show ceremony seminar fundraiser
volunteer charity donate: help community fundraiser nonprofit donation cause shelter
money finance financial: pay cost price budget save bank loan salary debt invest afford dollar expensive
price cost: pay dollar expensive cheap
buy purchase: shop order store
shop store: buy mall
clothes clothing outfit: dress shirt shoe jacket jean pants hat wear fashion
jewelry: necklace ring bracelet earring
color colour: red blue green yellow purple pink orange black white brown
name call:
old age: year birthday born
religion faith spiritual: church pray god temple bible
politics political: election vote campaign government mayor policy
device gadget: phone laptop computer tablet camera watch
phone mobile smartphone: iphone android
computer laptop pc: software keyboard
program code software: developer app programming coding python java
app application software:
email mail:
begin start:
finish complete end:
help support assist:
like love enjoy favorite prefer favourite:
hate dislike:
big large huge:
trip hike: trail mountain
beach sea ocean coast: swim surf sand wave
mountain: hike climb peak summit
garden plant: flower grow vegetable tree
flower: rose sunflower tulip lily
weather: rain snow sun storm cold hot temperature
weekend: saturday sunday
reason motivate inspire:
meet encounter:
create make build:
discuss talk chat conversation:
recommend suggest suggestion recommendation advice: try
picnic: park food
camp camping: tent campfire forest
dance: ballet salsa studio perform
accident crash: car injury hospital
adopt adoption:
military army: veteran soldier service
martial: karate judo taekwondo boxing kickboxing aikido wrestle fight
collect collection collectible souvenir memorabilia: card coin stamp autograph vinyl figurine antique
craft handmade: knit sew pottery crochet clay wood embroidery
pottery ceramic: clay bowl pot plate cup vase
gender identity orientation: gay lesbian transgender trans queer lgbt bisexual
trait personality attribute character quality: kind honest brave patient generous shy creative caring loyal
participate attend join: member sign enter
host organize organise arrange: event party meeting
damage broken: break crack crash accident repair
repair fix: break broken mechanic
death die dead: pass funeral loss grief lose
divorce breakup split: separate
argue argument conflict disagreement quarrel: fight
baby newborn: birth pregnant
pregnant pregnancy: baby birth expect
sleep rest: nap bed insomnia tired
transport: bus train subway tram taxi ferry plane car bike
boat ship: sail ferry yacht kayak canoe
language: english spanish french german italian chinese japanese korean arabic portuguese russian hindi
subject: math mathematics science history physics chemistry biology literature geography economics
season: spring summer autumn fall winter
sponsor endorsement: brand deal contract
deal contract agreement: sign
team club: player coach captain member teammate league
cause issue: poverty education environment homeless equality health veteran right justice
console: xbox playstation nintendo switch
spouse partner: marry marriage
hear listen: podcast music song
nickname: call name
award prize: trophy medal certificate
advice tip: suggest recommend
tool equipment gear: hammer drill camera tent
decorate decoration: lamp poster candle plant furniture wall
furniture: chair table couch sofa desk shelf bed lamp
residence address: live house apartment street
live reside: home house apartment city move
birthplace hometown origin roots: born grow country city
memory memories remember: childhood photo album
childhood: kid young grow child
skill talent: learn practice class
practice practise rehearse: train rehearsal
performance perform: stage show audience concert dance sing
blog vlog channel: post video youtube follower
video: youtube film clip stream record
newspaper magazine press: article interview journal
tattoo piercing:
haircut hairstyle: hair salon
smell scent: perfume candle
taste flavor flavour: sweet spicy sour vanilla chocolate
ingredient: flour sugar butter egg milk salt garlic onion cheese
fruit: apple banana orange berry strawberry mango grape peach lemon
vegetable: carrot tomato potato spinach pepper onion broccoli
meat: beef pork chicken lamb steak bacon
breed: labrador retriever shepherd poodle terrier husky bulldog beagle
insect bug: bee butterfly ant spider
wildlife: bear deer wolf eagle fox whale
planet space astronomy: star moon telescope galaxy
disaster: flood fire earthquake hurricane storm
emergency: fire ambulance police hospital rescue
police law crime: court lawyer arrest steal
"""  # noqa: E501 - a family stands on one line


def _without_ending(word: str) -> str:
    """An English word without grammatical endings."""
    if word.endswith("ies") and len(word) > 4:
        word = word[:-3] + "y"
    elif word.endswith("sses"):
        word = word[:-2]
    elif word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    for ending in ("ing", "ed", "ly"):
        root = word.removesuffix(ending)
        if root != word and len(root) >= 3 and any(letter in "aeiouy" for letter in root):
            word = root[:-1] if ending != "ly" and len(root) > 3 and root[-1] == root[-2] and root[-1] not in "lsz" else root
            break
    if len(word) > 3 and word.endswith("e"):
        word = word[:-1]
    return word[:-1] + "i" if len(word) > 3 and word.endswith("y") else word


def stem(word: str) -> str:
    """The common stem of a folded word's forms: "studies" and "studied" have the same. It need not be a word."""
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    return _without_ending(word) if len(word) > 3 and word.isascii() else word


def words_of(text: str) -> list[str]:
    """The words of a text in order, unchanged, of any script; a run without spaces is one word."""
    return _WORD.findall(text if text.isascii() else unicodedata.normalize("NFKC", _MARK_RUN.sub(r"\g<0> ", text)))


def terms_of(word: str) -> tuple[str, ...]:
    """The search terms of a folded word: none for a stop word, one stem, or the pairs of an unspaced run."""
    return _kept_terms(word) if len(word) <= _MAX_KEPT_CHARS else _terms(word)


def forget_words() -> None:
    """Clears the cache, because it must not keep words of an erased subject."""
    _kept_terms.cache_clear()


def _terms(word: str) -> tuple[str, ...]:
    if word in _STOP:
        return ()
    if word.isascii() or not (runs := _UNSPACED.findall(word)):
        return (stem(word)[:MAX_TERM_CHARS],)
    rest = [stem(part)[:MAX_TERM_CHARS] for part in _UNSPACED.split(word) if part]
    return tuple(rest + [run[i : i + 2] for run in runs for i in range(max(1, len(run) - 1))])


# Saves 4 % of the bytecodes of a turn (`benchmarks.steps --memory --context enforce`).
_kept_terms = lru_cache(_MAX_KEPT_WORDS)(_terms)


def _kin() -> dict[str, tuple[str, ...]]:
    akin: dict[str, dict[str, None]] = {}
    for line in _FAMILIES.strip().splitlines():
        before, _, after = line.partition(":")
        heads, members = [stem(word) for word in before.split()], [stem(word) for word in after.split()]
        for head in heads:
            for other in heads + members:
                if other != head:
                    akin.setdefault(head, {})[other] = None
                    akin.setdefault(other, {})[head] = None
    return {term: tuple(others) for term, others in akin.items()}


KIN = _kin()
"""The related terms of each term in the hand-written families, in the order of the lines."""

FRAME_TERMS = frozenset(stem(word) for word in _FRAME.split())
"""Terms that name the form of an answer; ignored in a question that has other terms."""
