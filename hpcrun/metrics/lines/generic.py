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
    r"(?:\((?!\d+[/)])[^\s()=,:|]{1,16}(?:\([^\s()=,:|]{1,12}\))?\))?"
)
KEY = (
    rf"{_WORD}(?:[ ]{{1,2}}{_WORD}){{0,6}}"
    r"(?:[ ]?[(\[][ ]?(?!\w*[ ]\d|\d)[\w/% ]{1,24}[ ]?[)\]])?"
)
# Units that may stand a blank behind their number; others must touch it.
SPACED_UNIT = (
    r"(?:ms|us|µs|s|secs?|seconds?|mins?|minutes|h|hrs?|hours|[KMGT]i?B|GiB|MiB|bytes|%|"
    r"[A-Za-z]{1,16}(?:/s(?:ec(?:ond)?)?(?:/(?:gpu|GPU|device))?|[ ]per[ ]sec(?:ond)?)|"
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
END = r"(?=[\s,;|)\]}(\[:•·&*<>]|\.{1,6}(?:\s|\Z)|--|\Z|[–—→~]|[^\x00-\x7f])"

_MOST_FIELDS = 2000

_PAIR = pattern_of(
    rf"""
    (?P<key> {KEY} )
    (?: (?P<sign> [ \t]{{0,40}} (?: :=|->|=>|:(?!:)|=(?!=)|： ) [ \t]{{0,40}} )
      | (?: (?<=[Nn]o) \. )? [ \t]{{1,40}} [\#@]? | (?= \[ [ ]{{0,8}} \d )
      | (?i: (?<=epoch) | (?<=step) | (?<=iter) | (?<=iteration) | (?<=batch) ) (?= [({{<] \d ) )
    (?: (?P<clock> {CLOCK} )
      | ['"]? (?P<number> {NUMBER} ) ['"]?
        (?: (?P<unit3> [kKMB][ ](?:tok(?:en)?|sample|seq|im(?:a?g|age))s?/s(?:ec)? )
          | (?P<unit> [A-Za-zµ%][\w%]{{0,10}} (?:/[A-Za-z]{{1,10}}){{0,2}}
                    | (?:/[a-zA-Z]{{1,8}}){{1,2}} )
          | [ ] (?P<unit2> {SPACED_UNIT} ) (?! [ ]?[:=] )
          | [ ]{{0,8}} (?: / | \bof\b ) [ ]{{0,8}} (?P<of> {NUMBER} )
            (?: [ ]? (?P<unit4> [KMGT]i?B ) )? )?
      | [\[({{<] [ ]{{0,8}} (?P<listed> {NUMBER} )
        (?: [ ]{{0,8}}/[ ]{{0,8}} (?P<listed_of> \d{{1,15}} )
          | (?: [,\s]{{1,8}} (?:{NUMBER}) ){{1,64}} )?
        [ ]{{0,8}} [\])}}>]
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
    r"(?:[\s,;|:&~•·!]|[-–—=>→*#_+./@]+(?=[\s|\[(]|\Z)|(?<=\s)[=*#>~-]{2,}(?=\w)"
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
    r"|progress|metrics|stats|summary|results?"
    r"|\w{0,30}(?:log|stats|metrics|results)\w{0,30}:[ ]{0,4}(?=\{))"
    r"(?=[\s:|,.\])]|-\s|\Z|\{)",
    re.IGNORECASE,
)
# Words that join items to a sentence: "Finished epoch 3 in 12 s with a loss of 0.5".
_JOINT = pattern_of(
    r"(?:at|and|after|in|of|on|over|for|with|the|an?|is|was|has|had|took|now|currently|end(?:ed)?"
    r"|complet(?:ed?|ion)|done|finish(?:ed)?|epoch(?=[ ](?:finish|done|end|complet)))"
    r"(?=[\s:,.\])!]|\Z)",
    re.IGNORECASE,
)
_PLACE = r"(?:global[ _])?(?:step|iter(?:ation)?|update|epoch|batch|round|episode)"
# Who speaks: "trainer: step 5 ..", but not "best: step 5 ..".
_SPEAKER = pattern_of(
    r"(?!\w*(?:best|final|last|low|high|min|max|top|save|saving|load|resum|restor|err|warn|note"
    r"|target|expect|example|usage|skip|check|arg|conf|param))"
    r"(?:[a-z_][\w.-]{0,40}:"
    r"|(?:fold|run|trial|seed|task|stage|phase|client)[ :#_]{0,3}\d{1,4}[]),.:-]{0,2})"
    rf"[ ](?={_PLACE}\w*\W{{0,3}}\d)",
    re.IGNORECASE,
)
# A loss, its place, and then its value: "Training loss (for one batch) at step 200: 1.15".
_LOSS_AT = pattern_of(
    rf"""
    (?P<key> (?:\w{{1,20}}[ ]){{0,3}}? (?:loss|cost|score) )
    (?: [ ]\([a-z0-9 ]{{1,30}}\) )? [ ]{{1,4}} [(\[]?
    (?: (?:at|after|of|for|in|over|on|@) [ ]{{1,4}} )? (?:the[ ]end[ ]of[ ])?
    (?: (?P<place> {_PLACE} ) [ ]{{0,4}} [:=\#]? [ ]{{0,4}} (?P<number> {NUMBER} )
        (?: [ ]{{0,2}} (?:/|of) [ ]{{0,2}} \d{{1,15}} )?
      | (?P<number2> \d{{1,15}} ) [ ]
        (?P<place2> step|iter(?:ation)?|epoch|update|batch ) (?:es|s)? )
    [)\]]? (?: [ ]{{0,8}} [:=] | [ ](?:is|was) | [ ]->|=> ) [ ]{{0,8}} (?P<value> {NUMBER} ) {END}
    """,
    re.VERBOSE | re.IGNORECASE,
)
# "After 100 steps", "Processed 100 batches".
_COUNT_OF = pattern_of(
    r"(?:after|processed)[ ](?P<number>\d{1,15})[ ](?:training[ ])?"
    r"(?P<key>step|iter(?:ation)?|epoch|update|batch)(?:es|s)?(?=[\s:,.;|]|\Z)",
    re.IGNORECASE,
)
_NUMBER_NEXT = pattern_of(r"[ ]{1,40}\d")
_OPEN_CLOSE = pattern_of(r"[\[\]()<>]+")
_NOTHING = frozenset({"n/a", "na", "none", "null", "-", "--", "?"})
# Words that no key has, and some that one has only before a sign.
_PROSE = words(
    "is was are were be has have the a an not no so far than does did we you this about around only"
)
_OF = words("of from to in on with for by and at after")
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
_CELL_END = pattern_of(r"[ \t]{0,40}(?:[|,;\t•]|\.(?:\s|\Z)|[ ]{2}|\Z|\(|[ ](?:-|and|at)[ ])")
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
        if (found.fields or found.counters) and (aside := _ASIDE.match(text, place)):
            # "Epoch:[1/2](30/3969)": behind an epoch it counts its steps.
            inside = aside.group().strip(" \t()")
            counts = not found.fields or fold(found.fields[-1].key) in EPOCH_RANK
            if not (counts and _COUNTER.fullmatch(inside)):
                place = aside.end()
                found.split = SPLITS.get(inside.lower(), found.split)
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
    return bool(found.fields) and _is_place(found.fields[0].key)


def _is_place(key: str) -> bool:
    return fold(key) in STEP_RANK or fold(key) in EPOCH_RANK


def _read_item(text: str, place: int, found: Found, last_end: int) -> int | None:
    """Read the item at a place; return what comes behind it, None if it is none."""
    char = text[place]
    if char.isalpha() or char == "_":
        if not place and (speaker := _SPEAKER.match(text)):
            return speaker.end()
        if char in "aApP" and (counted := _COUNT_OF.match(text, place)) and _may_follow(found):
            return counted.end() if _add(found, counted["key"], counted["number"]) else None
        if joint := _JOINT.match(text, place):
            return joint.end()
        if char in "sSiIeEbBgG" and (glued := _GLUED.match(text, place)):
            key = glued["key"]
            if any(fold(field.key) == fold(key) for field in found.fields):
                return None  # "step1 .., step2 ..": names of two things
            return glued.end() if _add(found, key, glued["number"]) else None
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
        if (lost := _LOSS_AT.match(text, place)) and _add_loss_at(lost, found):
            return lost.end()
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
            _add(found, alone["unit"], alone["number"])
        return alone.end()
    if drawn := _BAR_DRAWN.match(text, place):
        return drawn.end()
    if bracket := _OPEN_CLOSE.match(text, place):
        return bracket.end()
    return None


def _add_loss_at(lost: re.Match[str], found: Found) -> bool:
    """Put down a loss and the place in front of its value; False if it is no loss."""
    key = _ARTICLE.sub("", lost["key"])
    if not (_is_loss(key) or key.lower() == "score"):
        return False
    place, number = lost["place"] or lost["place2"], lost["number"] or lost["number2"]
    return _add(found, place, number) and _add(
        found, "loss" if key.lower() in ("score", "cost") else key, lost["value"], "", None
    )


def _may_follow(found: Found) -> bool:
    """Tell whether a place may come here: first, or behind a loss."""
    return not found.fields or _is_loss(found.fields[-1].key)


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
    if not (_PROSE.isdisjoint(parts) or _is_place(key)):
        return False
    if pair["sign"] is None:
        if number is None and pair["clock"] is None:
            return False
        if text[pair.end("key")] == "[" and key.endswith("s") and not _is_loss(key):
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
    return _is_place(place) and metric_of(metric) is not None


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
        return _add(found, "loss", number, split=split)  # loss train: 2.5, val: 2.6
    return None


def _without_heading(key: str, of: str | None, found: Found) -> tuple[str, str]:
    """Part a word in front of a place from its key: "Train Epoch", "Stage1 Step [3/20]"."""
    first, _, rest = key.partition(" ")
    if not _is_place(rest):
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


def _add(
    found: Found,
    key: str,
    number: str,
    unit: str = "",
    of: str | None = None,
    split: str = "",
) -> bool:
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
