"""The words and sentence patterns that the demo's reviews are made of.

Every pattern is a row of tokens; a token in capitals is a slot that a word of that class fills:
GOOD_OR_BAD (a sentiment word: the only ones that bear on the label), THING, KIND, WHO, WHEN,
VERB and NAME. Names are made up from syllables and form the long rare tail of the vocabulary.
No pattern negates: what a review means is the plain majority of its sentiment words.
"""

from __future__ import annotations

_GOOD = """
    good great excellent perfect nice amazing awesome wonderful solid fantastic superb happy reliable sturdy
    beautiful comfortable impressive brilliant pleasant lovely accurate durable crisp smooth sharp handy elegant
    clever outstanding terrific fabulous delightful flawless stunning gorgeous marvelous splendid stellar dependable
    responsive bright clear quick fast quiet useful helpful affordable worthwhile satisfying charming graceful
    refined polished robust rugged trusty trustworthy faithful loyal generous valuable exceptional remarkable
    magnificent glorious exquisite sublime heavenly divine phenomenal spectacular sensational incredible unbeatable
    unmatched superior supreme premium classy stylish sleek attractive appealing inviting cozy snug ergonomic
    intuitive effortless painless seamless precise exact steady stable balanced consistent efficient economical
    thrifty productive powerful potent capable competent versatile flexible adaptable convenient practical sensible
    thoughtful considerate friendly courteous polite gracious kind warm cheerful joyful fun enjoyable entertaining
    engaging captivating enchanting dazzling radiant vivid vibrant rich lush silky soft supple fresh clean tidy
    spotless pristine immaculate genuine authentic honest fair admirable commendable praiseworthy laudable worthy
    respectable favorable promising rewarding gratifying pleasing refreshing inspiring uplifting thrilling exciting
    blissful dreamy ideal optimal nifty neat dandy peachy swell groovy ace topnotch firstrate bulletproof foolproof
    """
_BAD = """
    bad poor terrible awful horrible cheap useless broken disappointing defective flimsy slow noisy faulty weak
    annoying dead worthless lousy fragile unreliable uncomfortable inaccurate blurry loose clumsy ugly dreadful
    pathetic miserable mediocre inferior shoddy shabby crude sloppy careless messy dirty filthy stained scratched
    dented cracked warped bent crooked wobbly shaky unstable erratic inconsistent unpredictable glitchy buggy laggy
    sluggish unresponsive frozen stuck jammed clogged leaky rusty corroded brittle thin tinny hollow harsh shrill
    piercing grating muddy muffled distorted fuzzy grainy hazy foggy dim dull faded bland drab boring tedious
    tiresome frustrating irritating infuriating maddening aggravating exasperating confusing baffling puzzling
    cryptic misleading deceptive dishonest fraudulent bogus fake phony counterfeit rude hostile unhelpful ignorant
    arrogant indifferent negligent incompetent clueless hopeless pointless senseless foolish silly stupid absurd
    ridiculous laughable embarrassing shameful disgraceful deplorable appalling atrocious abysmal horrendous horrid
    hideous ghastly nasty vile foul rotten putrid smelly stinky sickening disgusting revolting repulsive offensive
    painful unpleasant awkward cumbersome bulky unwieldy inconvenient impractical wasteful overpriced costly
    excessive greedy regrettable unfortunate unacceptable inexcusable insufficient inadequate incomplete unfinished
    unusable unsafe dangerous hazardous risky toxic flawed botched bungled mangled crummy crappy junky
    """
_LISTED = {
    "THING": """
    battery screen cable sound case charger keyboard camera lens price box remote button speaker headphones mouse
    adapter cord plug picture software manual stand mount strap cover port drive card router antenna signal display
    menu dial knob switch hinge latch handle grip wheel tripod flash sensor filter zoom viewfinder microphone volume
    bass treble noise fan motor engine power supply outlet socket fuse wire connector jack hub dock cradle sleeve
    pouch bag pocket zipper stitching leather plastic metal glass rubber foam paint finish color size weight shape
    design build quality warranty receipt package shipping delivery order return refund exchange service support
    email phone call website store shelf counter label sticker barcode firmware driver update setup installation
    instructions guide page video clip song album playlist channel station tuner receiver amplifier subwoofer tablet
    laptop computer desktop monitor printer scanner cartridge toner paper tray ink television console controller
    joystick headset webcam clock watch timer alarm flashlight lamp bulb thermostat heater cooler
    """,
    "KIND": """
    new old black white silver small large little big second third spare extra wireless digital portable external
    internal original standard regular usual main rear front left right upper lower inner outer red blue green grey
    brown yellow round square flat long short wide narrow heavy light thick plain optical electric electronic manual
    automatic compact foldable removable rechargeable magnetic adjustable universal generic official local foreign
    """,
    "WHO": """
    wife husband son daughter mother father brother sister friend neighbor boss coworker uncle aunt cousin nephew
    niece roommate teacher student dentist plumber electrician mechanic grandmother grandfather
    """,
    "WHEN": """
    today yesterday monday tuesday wednesday thursday friday saturday sunday january february march april may june
    july august september october november december christmas spring summer autumn winter morning evening weekend
    """,
    "VERB": """
    bought ordered used tried tested returned opened installed carried charged connected replaced unpacked shipped
    wanted needed expected received found compared borrowed mailed wrapped mounted cleaned moved stored recorded
    """,
}

_SENTIMENT = """
    the THING is GOOD_OR_BAD and the THING is in the KIND box .
    i VERB the NAME in WHEN and it is GOOD_OR_BAD .
    my WHO said that this KIND THING was GOOD_OR_BAD , like the THING .
    it has such GOOD_OR_BAD THING for the money .
    the GOOD_OR_BAD THING came with the NAME that we VERB last WHEN .
    after two weeks the THING of the THING turned out to be GOOD_OR_BAD .
    to me the KIND THING feels GOOD_OR_BAD next to the THING .
    very GOOD_OR_BAD NAME , as my WHO told me before i VERB it .
    what GOOD_OR_BAD THING for such KIND NAME !
    some people call the KIND THING GOOD_OR_BAD and so do i .
    this is one GOOD_OR_BAD KIND THING for the THING at home .
    overall the NAME seems GOOD_OR_BAD when you VERB it with the THING .
    i was told of the GOOD_OR_BAD THING on the page for it .
    you get the GOOD_OR_BAD KIND THING with it , and the THING too .
    """

_NEUTRAL = """
    i VERB the NAME for my WHO in WHEN .
    it came with the KIND THING and the KIND THING .
    my WHO has the NAME and the KIND THING .
    we VERB it on WHEN and then VERB the THING on WHEN .
    there is a KIND THING on the side of the THING .
    the NAME goes into the THING of the car , and the THING into the bag .
    before this i had the KIND THING with the THING for three years .
    it is about the size of the THING .
    so i VERB the KIND THING and my WHO VERB the NAME .
    the THING is under the THING , near the KIND THING .
    you can use it with the NAME or the THING , and with a KIND THING as well .
    in the end i VERB the NAME and put the THING back in the box .
    at work we have the KIND THING from NAME and the THING from WHEN .
    that was in WHEN , when my WHO VERB it .
    """


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _patterns(text: str) -> tuple[tuple[str, ...], ...]:
    return tuple(_words(line) for line in text.strip().splitlines())


GOOD, BAD = _words(_GOOD), _words(_BAD)
SLOTS = {name: _words(text) for name, text in _LISTED.items()}
"""The classes whose words are listed; GOOD_OR_BAD and NAME are filled by rules of their own."""
SENTIMENT_PATTERNS = _patterns(_SENTIMENT)
"""Sentences with exactly one sentiment word each."""
NEUTRAL_PATTERNS = _patterns(_NEUTRAL)
"""Sentences that say nothing about the label."""

ONSETS = _words("b br c ch d dr f fl g gr h j k kl l m n p pl qu r s sh st t tr v w z")
VOWELS = _words("a e i o u ai ea io oo")
ENDINGS = ("", "n", "x", "r", "s", "l", "m", "nd", "rt", "ck")
