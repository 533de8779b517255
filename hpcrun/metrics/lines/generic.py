"""The generic reader: a line that is made of items from end to end.

The rule that keeps prose, code and configurations out: after its prefixes a line must consist of
*items*, with nothing unexplained between them. Items are

- pairs with a sign, whatever their key: ``loss: 2.5``, ``loss=2.5``, ``valid_loss -> 2.5``;
- pairs without one, ``loss 2.5``, of a known key, of a name as programs have them behind a place
  (``step 5 host_memory_gb 0.45``), or in a cell of their own (``| mem 31 GiB |``);
- counters, ``[10/90]``, ``12/100``; shares, times, rates alone: ``(4%)``, ``37s``, ``24ms/step``;
- a dict, ``{'loss': 2.5}``; brackets around items; separators; words that name the split.

A word that is none of these ends the reading, and the line yields nothing. What was found must then
be a measurement (``fields.build_row``).

A progress bar (tqdm/std.py, ``format_meter``) shows by itself what it is, ``12/100 [00:10<01:20,
1.10it/s, loss=0.5]``: so text behind it (a warning that another process printed into the line)
does no harm. A dict before or behind it belongs to it. The rate is the duration of a step; whether
the bar is one of training at all is for those to say who see more than a line.
"""

from __future__ import annotations

import re

from msgspec import Struct

from hpcrun.metrics.lines.fields import (
    Field,
    Shape,
    build_row,
    finite,
    is_known,
    named_losses,
    read_dict,
)
from hpcrun.metrics.names import (
    EPOCH_RANK,
    LOSS,
    LOSSES,
    SPLIT_SPELLINGS,
    SPLITS,
    STEP_RANK,
    fold,
    metric_of,
    words,
)
from hpcrun.metrics.row import Row
from hpcrun.patterns import pattern_of

# Bounded repeats: a line that nearly fits costs no more than one that does.
NUMBER = (
    r"[+-]?(?:\d{1,3}(?:,\d{3}){1,6}(?!,?\d)(?:\.\d{1,40})?|\d{1,40}(?:\.\d{1,40}|\.(?![\w.]))?"
    r"|\.\d{1,40})(?:[eE][+-]?\d{1,4})?"
    r"|[+-]?(?:[nN]a[nN]|NAN|[iI]nf(?:inity)?|INF)(?![\w])"
)
_ABBREVIATED = r"(?:[Vv]al|[Vv]alid|[Aa]vg|[Tt]r)\.(?=[ ]\w)"
_WORD = (
    rf"(?:{_ABBREVIATED}|[^\W\d](?:[\w/@%<>+#-]|\.(?=\w)){{0,80}})"
    r"(?:\([^\s()=,:|]{1,16}(?:\([^\s()=,:|]{1,12}\))?\))?"
)
KEY = rf"{_WORD}(?:[ ]{{1,2}}{_WORD}){{0,6}}(?:[ ]?[(\[][ ]?(?!\d)[\w/%]{{1,24}}[ ]?[)\]])?"
# Units that may stand a blank behind their number; others must touch it.
SPACED_UNIT = (
    r"(?:ms|us|µs|s|secs?|seconds?|mins?|minutes|h|hrs?|hours|[KMGT]i?B|GiB|MiB|bytes|%|"
    r"(?:tok|toks|tokens?|samples?|seqs|sequences|imgs?|images?|examples?|steps?|its?|iters?|words)"
    r"(?:/s(?:ec(?:ond)?)?(?:/(?:gpu|GPU|device))?|[ ]per[ ]sec(?:ond)?)|"
    r"(?:ms|us|s|secs?)/(?:step|it|iter|iteration|batch|epoch)|"
    r"[TG]?FLOPS?(?:/s)?(?:/(?:gpu|GPU|device))?|k?W"
    r")(?![\w/])"
)
CLOCK = (
    r"-+:--(?::--)?(?!\w)|"
    r"(?:\d{1,4}[ ]days?,?[ ])?(?:\d{4}-\d\d-\d\d[T ])?"
    r"\d{1,4}:\d\d(?::\d\d(?:[.,]\d{1,9})?)?(?![\w:])"
    r"|\d{1,4}[dh][ ]?\d{1,2}[hm](?:[ ]?\d{1,2}(?:\.\d{1,6})?[ms])?(?:[ ]?\d{1,2}s)?(?!\w)"
    r"|\d{1,4}m[ ]?\d{1,2}(?:\.\d{1,6})?s(?!\w)"
)
END = r"(?=[\s,;|)\]}(\[:•·&*]|\.(?:\s|\Z)|\Z|[–—→~]|[^\x00-\x7f])"

_MOST_FIELDS = 2000

_PAIR = pattern_of(
    rf"""
    (?P<key> {KEY} )
    (?: (?P<sign> [ \t]{{0,40}} (?: :=|->|=>|:(?!:)|=(?!=)|： ) [ \t]{{0,40}} )
      | [ \t]{{1,40}} \#? | (?= \[ [ ]{{0,8}} \d ) )
    (?: (?P<clock> {CLOCK} )
      | ['"]? (?P<number> {NUMBER} ) ['"]?
        (?: (?P<unit3> [kKMB][ ](?:tok(?:en)?|sample|seq|im(?:a?g|age))s?/s(?:ec)? )
          | (?P<unit> [A-Za-zµ%][\w%]{{0,10}} (?:/[A-Za-z]{{1,10}}){{0,2}}
                    | (?:/[a-zA-Z]{{1,8}}){{1,2}} )
          | [ ] (?P<unit2> {SPACED_UNIT} ) (?! [ ]?[:=] )
          | [ ]{{0,8}} (?: / | \bof\b ) [ ]{{0,8}} (?P<of> {NUMBER} )
            (?: [ ]? (?P<unit4> [KMGT]i?B ) )? )?
      | \[ [ ]{{0,8}} (?P<listed> {NUMBER} )
        (?: [ ]{{0,8}}/[ ]{{0,8}} (?P<listed_of> \d{{1,15}} )
          | (?: [,\s]{{1,8}} (?:{NUMBER}) ){{1,64}} )?
        [ ]{{0,8}} \]
      | (?: tensor|array|Array|(?:np|numpy|torch|jnp)\.\w{{1,16}} )
        \( \[? (?P<wrapped> {NUMBER} ) \]? [^()]{{0,80}}
        (?: \([^()]{{0,80}}\) [^()]{{0,40}} )? \)
      | (?(sign) | (?!) ) (?:
            \[ (?: [^\[\](){{}}]{{0,400}} | (?: \( [^()]{{0,100}} \) [, ]{{0,2}} ){{1,16}} ) \]
          | \( [\d.,e+\- ]{{1,200}} \)
          | (?P<quoted> '[^']{{0,200}}' | "[^"]{{0,200}}" )
          | (?P<word> [^\s,;|="'(){{}}\[\]/][^\s,;|="'(){{}}\[\]]{{0,200}} ) (?! \( ) )
    ) {END}
    """,
    re.VERBOSE,
)
_SEPARATOR = pattern_of(
    r"(?:[\s,;|:&~•·]|[-–—=>→*#_+.]+(?=[\s|\[(]|\Z)|(?<=\s)[=*#>~-]{2,}(?=\w)"
    r"|\A[=*>~-]{1,400}(?=[\s\w\[])|[^\w\s\x00-\x7f]+)+"
)
_ASIDE = pattern_of(
    r"[ \t]{0,8}(?:\((?![^()]{0,48}(?:epoch|step|iter|loss)\W{0,3}\d)[^(){}=]{0,48}\)"
    r"|(?:±|\+/?-)[ ]?[\d.eE+-]{1,24})",
    re.IGNORECASE,
)
_COUNTER = pattern_of(
    r"[\[(]?[ ]{0,12}(?P<count>\d{1,15})[ ]{0,8}(?:/|\bof\b)[ ]{0,8}(?P<total>\d{1,15})"
    r"(?:[ ]{0,8}\(?[ ]{0,8}[\d.]{1,8}[ ]?%[ ]{0,8}\)?)?[ ]{0,8}[\])]?(?=[\s,;|:\[(\]]|\Z)"
    r"(?:[ ](?:batches|steps|iters|iterations|samples|images|sequences)(?=[\s,;|:\])]|\Z))?"
    r"|\[[ ]{0,12}(?P<lone>\d{1,15})[ ]{0,12}\]"
)
# A place whose number touches its word: "Epoch1", "step_100", "Ep. 3".
_GLUED = pattern_of(
    r"(?P<key>(?:global_)?step|iter(?:ation)?|epoch|ep|batch)(?:[_-]|\.[ ])?(?P<number>\d{1,15})"
    r"(?=:?\s|[,;|\])]|\Z)",
    re.IGNORECASE,
)
_ALONE = pattern_of(
    rf"(?:(?P<clock>{CLOCK})|(?P<number>{NUMBER})[ ]?"
    rf"(?P<unit>%|{SPACED_UNIT}|(?:/s(?:/gpu)?)(?!\w))){END}"
)
_BAR_DRAWN = pattern_of(r"\[[=>.#\s-]{3,400}\]|\|[#\s=>-]{3,400}\|")
_HEADING = pattern_of(
    r"(?:(?P<split>train(?:ing|_inner)?|eval(?:uation|uating)?|val(?:id|idation|idating)?|dev"
    r"|test(?:ing)?)(?:[ ](?:results?|metrics|set|stats|summary|step|phase|progress|performance))?"
    r"|progress|metrics|stats|summary|results?|(?:completed?|done|finished)(?:[ ](?:in|after))?"
    r"|at|and|\w{0,30}(?:log|stats|metrics|results)\w{0,30}:[ ]{0,4}(?=\{))"
    r"(?=[\s:|,.\])]|-\s|\Z|\{)",
    re.IGNORECASE,
)
_NUMBER_NEXT = pattern_of(r"[ ]{1,40}\d")
_OPEN_CLOSE = pattern_of(r"[\[\]()<>]+")
_NOTHING = frozenset({"n/a", "na", "none", "null", "-", "--", "?"})
# Words that no key has, and some that one has only before a sign.
_PROSE = words(
    "is was are were be has have the a an not no so far than does did we you this about around only"
)
_OF = words("of from to in on with for by and")
_VERB = pattern_of(r"(?: so far)? (?:is|was|equals)$")
_ARTICLE = pattern_of(r"^(?:the|our) ", re.IGNORECASE)
_OPTIONS = pattern_of(r"--[a-z][\w-]{0,60}[ =]\S{1,200} --[a-z]")  # a command line
_UNITS = ("unit", "unit2", "unit3", "unit4")
# Keys whose word may be a split's: stage=train, msg="training".
_OF_SPLITS = SPLIT_SPELLINGS | words("msg message event")
# What begins a remark behind the values.
_REMARKS = ",;*<←→✓✔★"
# A name that no prose has: host_memory_gb, perf/mfu.
_NAME = pattern_of(r"[A-Za-z]\w*[_/][\w/]*\w")
_CELL_MARKS = ("|", "\t", ",", "  ", " - ")
# What marks off a cell: a pair without a sign that nobody knows must stand between two of these.
_CELL_END = pattern_of(r"[ \t]{0,40}(?:[|,;\t•]|[ ]{2}|\Z|\(|[ ](?:-|and|at)[ ])")
# Losses by their names: "loss: {'classification': 6.1, 'total_loss': 6.2}".
_LOSSES_NEXT = pattern_of(
    r"(?P<key>(?:\w{1,30}[ ])?\w{0,30}loss(?:es)?)[ ]?[:=][ ]{0,4}(?=\{)", re.I
)


class Found(Struct):
    """What the scanner has found so far."""

    fields: list[Field]
    counters: list[tuple[int, int | None]]
    split: str = ""
    spaced_sign: bool = False
    has_dict: bool = False
    shouted: bool = False


def read_generic(text: str, split: str = "", bar: str | None = None) -> Row | None:
    """Read a line without prefixes that is items from end to end.

    >>> read_generic("Step: 3/100, train loss: 2.5, step_time: 250ms, eta: 0:12:33").values
    (('loss', 2.5), ('step_seconds', 0.25))
    >>> read_generic("iter 2920: loss 3.9883, time 1099.34ms, mfu 15.34%").step
    2920
    >>> read_generic("step 3: the loss: 2.5 is too high")
    >>> read_generic("    loss = 0.0")
    """
    found = scan(text)
    if found is None:
        return None
    # Words with a blank between them are no name in code or settings, however far indented.
    worded = all(" " in field.key for field in found.fields)
    plain = not (
        found.spaced_sign
        or found.shouted
        or text[:1] == "-"
        or (text[:1] in " \t" and not worded)
        or text.endswith((",", ";"))
    )
    if found.spaced_sign and " # " in text:
        return None  # code with a remark
    headed = split or (
        found.split if all(field.split == found.split for field in found.fields) else ""
    )
    shape = Shape(tuple(found.counters), headed, plain, found.has_dict, bar)
    # A rate that stands alone counts only where it is known what of.
    return build_row([field for field in found.fields if field.key[0] != "/"], shape)


def scan(text: str, *, again: bool = True) -> Found | None:
    """Take a line apart into items; None if something on it is none.

    Of a cell that cannot be read to its end nothing counts: ``again`` without it.
    """
    if (
        text[:2] == "+ "
        or _OPTIONS.match(text)
        or text.lstrip()[:2] == "# "
        or (text[:1] in "\"'{" and text[:1] != "{")
    ):
        return None
    found = Found([], [])
    place, end, last_end = 0, len(text), -1
    while place < end:
        if separated := _SEPARATOR.match(text, place):
            place = separated.end()
            continue
        moved = _read_item(text, place, found, last_end)
        if moved is None or len(found.fields) > _MOST_FIELDS:
            between = text[max(last_end, 0) : place]
            ends = "|" in between or " - " in between or _is_remark(between, text[place:])
            if again and not ends and (cell := text.rfind("|", 0, place)) > 0:
                ends, found = True, scan(text[:cell], again=False) or Found([], [])
            return found if ends and _says_enough(found) else None
        place = last_end = moved
        if found.fields and (aside := _ASIDE.match(text, place)):
            # "Epoch:[1/2](30/3969)": behind an epoch it counts its steps.
            counts = fold(found.fields[-1].key) in EPOCH_RANK and _COUNTER.match(text, place)
            place = place if counts else aside.end()
    return found


def _is_remark(between: str, rest: str) -> bool:
    """Tell whether words without a number follow a comma or a mark: ", saving", "<- new best"."""
    marked = any(mark in between + rest[0] for mark in _REMARKS)
    return marked and not any(char.isdigit() for char in rest)


def _says_enough(found: Found) -> bool:
    """Tell whether a place and a loss came before what is no item ("| saving", ", new best")."""
    return _is_placed(found) and any(_is_loss(fold(field.key)) for field in found.fields)


def _is_placed(found: Found) -> bool:
    """Tell whether the line began with a step or an epoch."""
    first = fold(found.fields[0].key) if found.fields else ""
    return first in STEP_RANK or first in EPOCH_RANK


def _read_item(text: str, place: int, found: Found, last_end: int) -> int | None:
    """Read the item at a place; return what comes behind it, None if it is none."""
    char = text[place]
    if char.isalpha() or char == "_":
        if char in "sSiIeEbBgG" and (glued := _GLUED.match(text, place)):
            key = glued["key"]
            if any(fold(field.key) == fold(key) for field in found.fields):
                return None  # "step1 .., step2 ..": names of two things
            return glued.end() if _add(found, key, glued["number"], "", None) else None
        if losses := _LOSSES_NEXT.match(text, place):
            read = None if found.has_dict else read_dict(text, losses.end())
            if read is None:
                return None
            found.has_dict = True
            found.fields += named_losses(losses["key"], read[0])
            return read[1]
        pair = _PAIR.match(text, place)
        if pair and "/" in (pair["unit2"] or "") and _is_next_key(text, pair):
            pair = _PAIR.match(text, place, pair.start("unit2"))
        if pair and _add_pair(text, pair, found, last_end):
            return pair.end()
        if heading := _HEADING.match(text, place):
            word = (heading["split"] or "").lower()
            found.split = SPLITS.get(word, found.split)
            return heading.end()
        return None
    if char == "{":
        if found.has_dict or (read := read_dict(text, place)) is None:
            return None
        found.has_dict = True
        found.fields += read[0]
        return read[1]
    if counter := _COUNTER.match(text, place):
        total = counter["total"]
        count = int(counter["count"] or counter["lone"])
        found.counters.append((count, int(total) if total else None))
        return counter.end()
    if alone := _ALONE.match(text, place):
        if alone["number"] and "/" in alone["unit"]:
            _add(found, alone["unit"], alone["number"], "", None)
        return alone.end()
    if drawn := _BAR_DRAWN.match(text, place):
        return drawn.end()
    if bracket := _OPEN_CLOSE.match(text, place):
        return bracket.end()
    return None


def _is_next_key(text: str, pair: re.Match[str]) -> bool:
    """Tell whether the rate behind a number is the next pair's key: "loss 2.5 tok/s 1234"."""
    known = metric_of(pair["key"])
    plain = known is None or not known.name.endswith("_per_second")
    return plain and is_known(pair["key"]) and bool(_NUMBER_NEXT.match(text, pair.end()))


def _add_pair(text: str, pair: re.Match[str], found: Found, last_end: int) -> bool:
    """Put a pair down; False if it is none."""
    number = pair["number"] or pair["listed"] or pair["wrapped"]
    unit, of = next(filter(None, pair.group(*_UNITS)), ""), pair["of"] or pair["listed_of"]
    if pair["key"].lower() in SPLITS and number:
        told = _add_of_split(pair, number, found)
        if told is not None:
            return told
    key, split = _without_heading(pair["key"], of, found)
    if (verb := _VERB.search(key)) and (pair["sign"] or _CELL_END.match(text, pair.end())):
        key = _ARTICLE.sub("", key[: verb.start()])  # "Step 25, the loss so far is 2.5"
    parts = key.lower().split()
    if not _PROSE.isdisjoint(parts):
        return False
    if pair["sign"] is None:
        if number is None and pair["clock"] is None:
            return False
        if text[pair.end("key")] == "[" and key.endswith("s"):
            return False  # "Train batches[100]" is how many
        if _ends_in_place(key):
            return False  # "loss step 3": the number is the step's
        known = _OF.isdisjoint(parts) and is_known(key, unit)
        named = _NAME.fullmatch(key) is not None and (found.counters or _is_placed(found))
        if not (known or named or _in_cell(text, pair, last_end, found)):
            return False
    elif pair["sign"][0] in " \t" and pair["sign"].strip() == "=":
        found.spaced_sign = True
    is_loss = _is_loss(key)
    if is_loss and key.isupper():
        found.shouted = True
    if number is None:
        missing = (pair["word"] or "").lower() in _NOTHING
        return missing or (not is_loss and _add_word(pair, key, split, found))
    if is_loss and (of or ("," in number and "." not in number)):
        return False  # a comma of thousands or of decimals: no loss tells which
    return _add(found, key, number, unit, of, split)


def _ends_in_place(key: str) -> bool:
    """Whether a key with blanks is a metric's and then a place's."""
    metric, _, place = key.rpartition(" ")
    folded = fold(place)
    return (folded in STEP_RANK or folded in EPOCH_RANK) and metric_of(metric) is not None


def _add_of_split(pair: re.Match[str], number: str, found: Found) -> bool | None:
    """Read a number whose key is a split's name; None if it is a pair like others."""
    split = SPLITS[pair["key"].lower()]
    if pair["listed"]:  # Test: [10/90]
        if not number.isdecimal():
            return False
        total = pair["listed_of"]
        found.split = split
        found.counters.append((int(number), int(total) if total else None))
        return True
    last = metric_of(found.fields[-1].key) if found.fields else None
    if last and last.name == LOSS and last.split and not pair["unit"]:
        return _add(found, "loss", number, "", None, split)  # loss train: 2.5, val: 2.6
    return None


def _without_heading(key: str, of: str | None, found: Found) -> tuple[str, str]:
    """Part a word in front of a place from its key: "Train Epoch", "Stage1 Step [3/20]"."""
    first, _, rest = key.partition(" ")
    folded = fold(rest)
    if folded not in STEP_RANK and folded not in EPOCH_RANK:
        return key, ""
    if first.lower() in SPLITS:
        found.split = SPLITS[first.lower()]
        return rest.strip(), found.split
    whole = fold(key)
    return (rest.strip(), "") if of and whole not in STEP_RANK else (key, "")


def _add_word(pair: re.Match[str], key: str, split: str, found: Found) -> bool:
    """Put down a key with a word; False where the key is a heading: "Test set: loss 2.5"."""
    word = pair["word"] or (pair["quoted"] or "").strip("'\"")
    if not word:
        return True
    if pair["word"] and key.partition(" ")[0].lower() in SPLITS:
        return False
    if word.lower() in SPLITS:
        if fold(key) not in _OF_SPLITS:
            return False
    elif pair["word"] and is_known(word):
        return False
    if word.startswith("-") and not word[1:2].isalnum():
        return False
    found.fields.append(Field(key, word, split=split or found.split))
    return True


def _is_loss(key: str) -> bool:
    known = metric_of(key)
    return known is not None and known.name in LOSSES


def _add(found: Found, key: str, number: str, unit: str, of: str | None, split: str = "") -> bool:
    try:
        value = finite(number.replace(",", ""))
        of_value = None if of is None else finite(of.replace(",", ""))
    except ValueError:
        return False
    found.fields.append(Field(key, value, unit, of_value, split or found.split))
    return True


def _in_cell(text: str, pair: re.Match[str], last_end: int, found: Found) -> bool:
    """Tell whether a pair without a sign stands in a cell of its own.

    Words of prose are told from a name by their number, the less the more the line has shown.
    """
    parts = pair["key"].count(" ") + 1
    between = text[max(last_end, 0) : pair.start()]
    if last_end >= 0 and not any(mark in between for mark in _CELL_MARKS):
        return False
    most = 3 if "|" in between or "\t" in between else 2 if " - " in between else 1
    if most == 1 and "," in between and _says_enough(found):
        most = 2
    return parts <= most and _CELL_END.match(text, pair.end()) is not None


# The progress bars of tqdm.
_BAR_TIME = r"(?:\d{1,4} days?, )?\d{1,6}:\d\d(?::\d\d)?"
_METER = pattern_of(
    rf"""
    (?P<count> (?<![\d.]) \d{{1,15}} )
    (?: /(?P<total> \d{{1,15}}(?:\.0)? | \? ) [ ] \[ {_BAR_TIME} < (?: {_BAR_TIME} | \? )
      | (?: it | [ ]?[a-zA-Z]{{2,12}} )? [ ] \[ {_BAR_TIME} (?= , ) )
    (?: , [ ]{{0,4}} (?P<rate> \d[\d.]{{0,15}} | \? ) [ ]?
        (?P<unit> [A-Za-z_]{{1,20}}/s | s/[A-Za-z_]{{1,20}} ) )?
    (?P<more> ,[ ]{{0,4}} )?
    """,
    re.VERBOSE,
)
# Up to the bracket that closes the meter; brackets inside come in pairs.
_POSTFIX = pattern_of(r"((?:[^\[\]]|\[[^\[\]]*\])*)\]")
_DRAWN_BAR = pattern_of(
    r"(?:[ ]{0,3}\d{1,3}%)?\|[^|]{0,4000}\|[ ]{0,9}\Z|[ ]{0,3}\d{1,3}%[ ]{0,9}\Z"
)
# torchtune's description: epoch|step|Loss: 2.3 (pbar.set_description in its recipes).
_TORCHTUNE = pattern_of(r"(\d{1,9})\|(\d{1,15})\|(?=[A-Za-z])")
_BAR_NUMBERS = pattern_of(r"[\d.,/]*\d[\d.,/]*")
_LONGEST_TITLE = 60


class Meter(Struct, frozen=True):
    """The parts of a line with a progress bar; ``rate`` in ``unit``, None before there is one."""

    before: str
    count: int
    total: int | None
    rate: float | None
    unit: str
    postfix: str
    after: str


def find_meter(text: str) -> Meter | None:
    """Find the progress bar on a line.

    >>> meter = find_meter("Epoch 3:  12%|# | 12/100 [00:10<01:20, 1.1it/s, loss=0.5] tail")
    >>> meter.count, meter.total, meter.unit, meter.postfix, meter.after
    (12, 100, 'it/s', 'loss=0.5', ' tail')
    """
    found = _METER.search(text) if "[" in text else None
    if found is None or (found["unit"] is None and text[: found.start()].rstrip()[-1:] != "|"):
        return None
    place, postfix = found.end(), ""
    if closed := _POSTFIX.match(text, place):
        postfix, place = closed[1] if found["more"] else "", closed.end()
    total = found["total"]
    return Meter(
        before=text[: found.start()],
        count=int(found["count"]),
        total=None if total in (None, "?") else int(float(total)),
        rate=None if found["rate"] in (None, "?") else _number(found["rate"]),
        unit=found["unit"] or "",
        postfix=postfix,
        after=text[place:],
    )


def _number(text: str) -> float | None:
    try:
        return finite(text)
    except ValueError:
        return None


def read_meter(meter: Meter) -> Row | None:
    """Read a line with a progress bar: its place, what it says of it, and a dict beside it.

    Numbers of the description are no part of ``bar``, which names the bar: they change.

    >>> line = "Epoch 3:  12%|# | 12/100 [00:10<01:20, 2.0it/s, loss=0.5]"
    >>> row = read_meter(find_meter(line))
    >>> row.step, row.total, row.epoch, row.values, row.bar
    (12, 100, 3.0, (('loss', 0.5), ('step_seconds', 0.5)), 'Epoch')
    """
    fields: list[Field] = []
    before = meter.before
    if before.startswith("{") and (read := read_dict(before)):
        fields, before = read[0], before[read[1] :]
    description = _DRAWN_BAR.sub("", before).strip().removesuffix(":").strip()
    split, described = _read_description(description)
    fields += described
    fields += _read_postfix(meter.postfix)
    brace = meter.after.find("{")
    if 0 <= brace < 8 and (read := read_dict(meter.after, brace)):
        fields += read[0]
    elif meter.after and (tail := scan(meter.after.strip())):
        fields += tail.fields
    title = _BAR_NUMBERS.sub("", description.split(",", 1)[0])[:_LONGEST_TITLE].strip(" :-|[]()=")
    if not fields and meter.unit not in ("it/s", "s/it", ""):
        return None  # a bar that counts something else than steps
    fields = _without_running_mean(fields)
    if meter.rate is not None and meter.unit in ("it/s", "s/it"):
        fields.append(Field(meter.unit, meter.rate))
    if not any(fold(field.key) in STEP_RANK and not field.unit for field in fields):
        total = None if meter.total is None else float(meter.total)
        fields.append(Field("step", float(meter.count), of=total))
    return build_row(fields, Shape(split=split, bar=title))


def _read_description(text: str) -> tuple[str, list[Field]]:
    """Read a bar's description: its split, and what it measures."""
    if tune := _TORCHTUNE.match(text):
        found = scan(text[tune.end() :])
        places = [Field("epoch", float(tune[1])), Field("step", float(tune[2]))]
        return "", places + (found.fields if found else [])
    found = scan(text)
    if found is None:
        return SPLITS.get(text.split(" ", 1)[0].lower().strip(":"), ""), []
    # The bar counts the steps; what its description counts are epochs.
    fields = [field for field in found.fields if fold(field.key) not in STEP_RANK]
    if found.counters and not any(fold(field.key) in EPOCH_RANK for field in fields):
        fields.append(Field("epoch", float(found.counters[0][0])))
    return found.split, fields


def _without_running_mean(fields: list[Field]) -> list[Field]:
    """Leave out Lightning 1's own ``loss=``, a running mean, where the step's loss stands beside.

    Its bar is known by the version number (lightning/pytorch/callbacks/progress/base.py).
    """
    keys = {field.key for field in fields}
    if "v_num" in keys and keys & {"reduced_train_loss", "train_loss", "train_loss_step"}:
        return [field for field in fields if field.key != "loss"]
    return fields


def _read_postfix(postfix: str) -> list[Field]:
    """Read what tqdm was told to set behind the bar; parts that are no pairs are passed over."""
    if not postfix:
        return []
    if found := scan(postfix):
        return found.fields
    fields: list[Field] = []
    for part in postfix.split(", ")[:200]:
        if part and (found := scan(part)):
            fields += found.fields
    return fields
