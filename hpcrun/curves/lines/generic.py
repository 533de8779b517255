"""Parse any line that consists of names and values.

A line is divided into items:

- pairs of a key and a value with a sign, with any key: ``loss: 2.5``, ``valid_loss -> 2.5``;
- pairs without a sign: ``loss 2.5``, ``| mem 31 GiB |``;
- counters: ``[10/90]``, ``12/100``;
- percentages, times and rates without a key: ``(4%)``, ``37s``, ``24ms/step``;
- a dict: ``{'loss': 2.5}``;
- brackets around items, and separators;
- words that name the split, and words that join items to a sentence (``finished``, ``in``).

A line that consists of items only is a measurement if it has a step or an epoch, or no unknown name
(``fields.build_row``). *Stray items* make it unsure: words and numbers that belong to no item (``in
static KGE``), and unknown names without a sign. An unsure line counts if the log contains similar
lines with other values (``Store.proven_logs``). A word that refers to values measured at another
position (``best``, ``saved``, ``expected``) rejects the line, or, if it follows a step and a loss,
starts a remark that is ignored: ``| best 0.5 @ 3``.
"""

from __future__ import annotations

import re

from msgspec.structs import replace

from hpcrun.curves.lines.fields import (
    NUMBER,
    QUANTITY_UNIT,
    WRAPPED,
    build_row,
    finite,
    is_elapsed_time,
    is_known,
    is_time_of_epoch,
    named_losses,
    read_dict,
)
from hpcrun.curves.lines.times import read_duration
from hpcrun.curves.names import (
    EPOCH_RANK,
    LOSS,
    LOSSES,
    SPLIT_SPELLINGS,
    SPLIT_WORDS,
    SPLITS,
    STEP_RANK,
    fold,
    is_loss_name,
    is_position_key,
    is_score_name,
    metric_of,
    name_of,
    split_of,
    words,
)
from hpcrun.curves.row import Field, LineFields, Row
from hpcrun.patterns import pattern_of

_WORD = (
    r"[^\W\d](?:[\w/@%<>+#-]|\.(?=\w)){0,80}"
    r"(?:\((?!\d+[/)])[^\s()=,:|]{1,16}(?:\([^\s()=,:|]{1,12}\))?\))?"
)
KEY = (
    rf"{_WORD}(?:[ ]{{1,2}}(?!(?<=oss[ ])(?:nan|inf)[ ,]){_WORD}){{0,6}}"
    r"(?:[ ]?[(\[][ ]?(?!\w*[ ]\d|\d)[\w/%@. ]{1,24}[ ]?[)\]])?"
    # A threshold or a rank: "IoU @ 0.5: 0.75".
    r"(?:(?<!oss)[ ]@[ ]\d{1,3}(?:\.\d{1,3})?(?=[ ]{0,4}[:=]))?"
)
# Units that may be separated from their number by a space.
SPACED_UNIT = (
    r"(?:(?:ms|us|s|secs?)(?:/|[ ]per[ ])(?:step|iteration|iter|it|batch|epoch)|"
    r"ms|us|µs|s|secs?|seconds?|mins?|minutes|h|hrs?|hours|[KMGT]i?B|GiB|MiB|bytes|%|"
    r"[A-Za-z]{1,16}(?:/s(?:ec(?:ond)?)?(?:/(?:gpu|GPU|device))?|[ ]per[ ]sec(?:ond)?)|"
    rf"{QUANTITY_UNIT}|"
    r"[TG]?FLOPS?(?:/s)?(?:/(?:gpu|GPU|device))?|k?W"
    r")(?![\w/])"
)
CLOCK = (
    r"-+:--(?::--)?(?!\w)|"
    r"(?:\d{1,4}[ ]days?,?[ ])?(?:\d{4}-\d\d-\d\d[T ])?"
    r"\d{1,4}:\d\d(?::\d\d(?:[.,]\d{1,9})?)?(?:/\d{1,4}:\d\d(?::\d\d)?)?(?![\w:])"
    r"|\d{1,4}[dh][ ]?\d{1,2}[hm](?:[ ]?\d{1,2}(?:\.\d{1,6})?[ms])?(?:[ ]?\d{1,2}s)?(?!\w)"
    r"|\d{1,4}m[ ]?\d{1,2}(?:\.\d{1,6})?s(?!\w)"
)
END = r"(?=[\s,;|)\]}(\[:•·&*<>]|\.{1,6}(?:\s|\Z)|-[-|]|\Z|[–—→~]|[^\x00-\x7f])"

_PAIR = pattern_of(
    rf"""
    (?P<key> {KEY} )
    (?: (?P<sign> [ \t]{{0,40}} (?: :=|->|=>|:{{1,6}}|=(?!=)|： ) [ \t]{{0,40}} )
      | [ \t]{{1,40}} (?: [\#@][ ]{{0,8}} )? | (?= \[ [ ]{{0,8}} \d )
      | (?i: (?<=epoch) | (?<=step) | (?<=iter) | (?<=iteration) | (?<=batch) ) (?= [({{<] \d ) )
    (?: (?P<clock> {CLOCK} )
      | ['"]? (?P<number> {NUMBER} ) ['"]?
        (?: (?P<unit3> [kKMB][ ](?:tok(?:en)?|sample|seq|im(?:a?g|age))s?/s(?:ec)? )
          | (?P<unit> [A-Za-zµ%][\w%]{{0,10}} (?:/[A-Za-z]{{1,10}}){{0,2}}
                    | (?:/[a-zA-Z]{{1,8}}){{1,2}} )
          | [ ] (?P<unit2> {SPACED_UNIT} )
            (?! [ ]?[:=] | [ ]{{1,40}} (?:{NUMBER}) [ ]{{0,9}} (?:[,;|]|\Z) )
          | (?: [ ]{{0,8}} (?: / | \bof\b ) [ ]{{0,8}} | \|(?=\d+,[ ]) ) (?P<of> {NUMBER} )
            (?: [ ]? (?P<unit4> [KMGT]i?B ) )? )?
      | [\[({{<] [ ]{{0,8}} (?P<listed> {NUMBER} )
        (?: [ ]{{0,8}}/[ ]{{0,8}} (?P<listed_of> \d{{1,15}} )
          | (?: [,\s]{{1,8}} (?:{NUMBER}) ){{1,64}} )?
        [ ]{{0,8}} [\])}}>]
      | (?(sign) | (?!) ) (?:
            \[ (?: [^\[\](){{}}]{{0,400}} | (?: \( [^()]{{0,100}} \) [, ]{{0,2}} ){{1,16}} ) \]
          | \( [\d.,e+\- ]{{1,200}} \)
          | (?P<quoted> '[^']{{0,200}}' | "[^"]{{0,200}}" )
          | (?P<word> [^\s,;|="'(){{}}\[\]/][^\s,;|="'(){{}}\[\]]{{0,200}} )
            (?! \( | [ ]? = [ ]? [\d.-] ) )
    ) {END}
    """,
    re.VERBOSE,
)
_SEPARATOR = pattern_of(
    r"(?:[\s,;|:&~•·!]|[-–—=>→*#_+./@]+(?=[\s|\[(]|\Z)"
    r"|(?<=\s)[=*#>~-]{2,}(?=\w)|\A[=*>~+-]{1,400}(?=[\s\w\[])|[^\w\s\x00-\x7f]+)+"
)
_BRACKET = pattern_of(r"\[[=>.#\s-]{3,400}\]|\|[#\s=>-]{3,400}\||[\[\](){}<>]+")
_PARENTHESIS = pattern_of(
    r"[ \t]{0,8}(?:\((?![^()]{0,48}(?:epoch|step|iter|batch|loss|val)\W{0,3}\d)[^(){}=]{0,48}\)"
    r"|(?:±|\+/?-)[ ]?[\d.eE+-]{1,24})",
    re.IGNORECASE,
)
# A score beside the value before it, and of the same split: "Val Loss: 2.5 (PPL: 12.2)".
_SCORE_BESIDE = pattern_of(
    rf"(?!best|avg|mean|last|max|min|prev)(?P<key>[a-z][\w@]{{0,20}})(?:[ ]?:[ ]?|[ ])"
    rf"(?P<number>{NUMBER})(?P<unit>%)?",
    re.IGNORECASE,
)
_COUNTER = pattern_of(
    r"[\[(]?[ ]{0,12}(?P<count>\d{1,15})[ ]{0,8}(?:/|\bof\b)[ ]{0,8}(?P<total>\d{1,15})"
    r"(?:[ ]{0,8}\(?[ ]{0,8}[\d.]{1,8}[ ]?%[ ]{0,8}\)?)?[ ]{0,8}[\])]?(?=[\s,;|:\[(\]]|\Z)"
    r"(?:[ ](?:batches|steps|iters|iterations|samples|images|sequences)(?=[\s,;|:\])]|\Z))?"
    r"|\[[ ]{0,12}(?P<lone>\d{1,15})[ ]{0,12}\]"
)
_ALONE = pattern_of(
    rf"(?:(?P<clock>{CLOCK})|(?P<number>{NUMBER})(?P<thousands>[ ]?[kKMB](?=[ ]\w+/s))?[ ]?"
    rf"(?P<unit>%|{SPACED_UNIT}|(?:/s(?:/gpu)?)(?!\w))){END}"
)
# Groups of losses: "loss: {'classification': 6.1, 'total_loss': 6.2}", "[Losses: x 0.27, ..".
_GROUP = pattern_of(
    r"(?P<key>(?:\w{1,30}[ ])?\w{0,30}loss(?:es)?|\w{0,30}(?:log|stats|metrics|results)\w{0,30})"
    r"(?:[ ]?[:=][ ]{0,4}|[ ](?=\{))(?:(?P<dict>(?=\{))|(?<=losses:[ ])(?=\w))",
    re.IGNORECASE,
)
_FREE_WORD = pattern_of(r"[^\W\d][\w'’+/-]{0,40}(?:\.(?=\s|\Z)|(?=[\s,;|:!?)\]]|\Z))")
_OTHER_TEXT = pattern_of(r"[^\w\s]{1,80}|[^\s,;|]{1,80}")
_A_NUMBER = pattern_of(r"\d|nan|inf", re.IGNORECASE)
_MISSING_VALUES = frozenset({"n/a", "na", "none", "null", "-", "--", "?"})
# Beginnings of lines that are not measurements: command lines, diffs, comments in code, strings,
# and the layers that darknet prints.
_NOT_A_LOG = pattern_of(
    r"--[a-z][\w-]{0,60}[ =]\S{1,200} --[a-z]|\+ (?!\w[\w ]{0,40}: \d)|\s*# |[\"']"
    r"|v\d \(|Region (?:\d+ )?Avg|CV Batch \d"
)
# Words that join items to a sentence or belong to a heading. Verbs end a name: "loss is 2.5".
_ARTICLES = words("the a an our is was are has had")
_JOINING_WORDS = _ARTICLES | words("at and after in of on over for with from to by @")
_VERBS = words("is was equals so far")
# A number after one of these is a place or a time, not the value of the name before it.
_PREPOSITIONS = words("at after in on from to by")
_FILLERS = _JOINING_WORDS | words(
    "loss losses set result results metrics metric stats summary step phase progress performance "
    "took now end avg currently ended completed complete completion done finish finished epoch log "
    "value"
)
# Words that refer to values measured at another position, to settings, and to failures.
_ELSEWHERES = (
    r"\w*(?:error|exception)|best|final(?!iz)|last|low|high|min(?!ut|s\b)|max|top|save|saving|load|resum|restor"
    r"|warn|note|target|expect|example|usage|skip|check|arg|conf|param|namespace|improv|decreas|stop"
    r"|thresh|should|must|memory|question|using|early"
)
_ELSEWHERE = pattern_of(_ELSEWHERES, re.IGNORECASE)
_PLACE = (
    r"((?:global[ _])?(?:step|iter(?:ation)?|update|epoch|ep|(?:mini-?)?batch|round|episode"
    r"|generation))"
)
_SIDES = "|".join(SPLIT_WORDS)
# Replacements that convert unusual notations to names and values before parsing.
_REWRITE_RULES = {
    # A number object of a library: tensor(2.5, device='cuda:0').
    rf"(?<![\w.]){WRAPPED}": r"\g<wrapped>",
    # "Batch [0-20]".
    r"(?<=batch) ?\[\d{1,15}-(\d{1,15})\]": r" \1",
    # "iteration,1,train_loss,2.5", "1.5 C.E. Loss, 50.5% Acc".
    r"(?<![^,])( ?[a-z_]\w{0,30}), ?(?=-?\d[\d.e+-]{0,30}(?:,|\Z))": r"\1=",
    r"(?:(?<![a-z=] )(?<![\w:=.-])|(?<=ing )|(?<=validation ))(\d+\.\d+)"
    r"((?: (?:train(?:ing)?|validation|[a-z.]{1,20}\.))? loss)(?= ?(?:[,;|)]|\Z))": r"\2: \1",
    r"\AE ?(?= {0,8}\d{1,6}/\d{1,6} ?[|,:-])": "epoch ",
    # "[3,  2000] loss: 2.5".
    r"\A([\s=>#*-]{0,20})\[ ?(\d{1,9}), {0,8}(\d{1,15})(?= ?[/\]])": r"\1[\2] [\3",
    r"(?<=\d\])\[ {0,8}(\d{1,9}):(\d{3,9})\]": r"[\1/\2]",  # "[Epoch 1/500][  10:391]"
    r"\[(train|valid|test)\w{0,6} {1,3}data\]": r"[\1]",
    r"(loss): ?\[\w{1,30}: ?(\d+\.\d+)\]": r"\1: \2",  # "loss: [landmark: 0.05]"
    # PointNet: "[0: 12/84] train loss: 2.5".
    r"\A\[(\d{1,9}): {1,4}(?=\d{1,9}/\d{1,9}\])": r"epoch \1 [",
    # A heading in brackets: "[Epoch] 001 [Loss] cls 0.5".
    rf"\[{_PLACE}\]:? ?(?=\d)": r"\1 ",
    # Abbreviations: "Avg. loss", "Ep. 3", "sup.: 2.5".
    r"(?<!\w)(val|valid|avg|tr|ep)\. (?=\w)": r"\1 ",
    r"(?<=[a-z])\.(?=[:=] ?[\d+-])": "",
    r"(?<!\w)(\w{0,20}(?:lr|loss))(?=\d+\.\d)": r"\1: ",
    # A prefix that names the origin of the line: "trainer: step 5 ..", "Fold 1 Epoch 5 ..".
    rf"\A([\s\[=*#>|-]{{0,40}})(?!{_ELSEWHERES}|(?:{_SIDES}):)(?:[a-z_][\w.-]{{0,40}}:|(?:fold|run|trial|seed|"
    r"task|stage|phase|client)[ :#_]{0,3}\d{1,4}[]),.:-]{0,2}|fold \d{1,3} \|"
    rf"|fine-?tun\w{{1,4}}|pre-?train\w{{0,4}}) (?={_PLACE}\w*\W{{0,3}}\d)": r"\1",
    # A number attached to its word, "Epoch1", or before it, "After 100 steps", "3-epoch".
    r"(?<![\w./\"'])(?<!\w-)((?:global_)?step|iter(?:ation)?|it|epoch|ep|batch)[._-]?(\d{1,15})"
    r"(?=:?\s|[,;|\])]|\Z)": r"\1 \2",
    r"(?<!\w)(?:after|processed) (\d{1,15}) (?:training )?"
    r"(step|iter(?:ation)?|epoch|update|batch)(?:es|s)?(?=[\s:,.;|]|\Z)": r"\2 \1",
    r"\A(\d{1,9})[ -](step|iter|epoch)(?=[ :,])": r"\2 \1",
    # "Accuracy of the network on the 10000 test images: 71 %".
    rf"\A(\W{{0,9}}(?:\w{{1,20}} )?(?:accuracy|acc|error|f1|auc|perplexity)) (?:of|on|for|over) "
    rf"(?:[\w'-]{{1,20}} ){{0,8}}?({_SIDES})"
    r"(?: (?:images|set|data|dataset|samples|examples|split)){0,3} ?(?:is|was)? ?[:=]? ?(?=\d)": (
        r"\2 \1: "
    ),
    # A weight after the loss: "loss = 2.5 * 1".
    r"(loss ?[=:] ?\d[\d.e+-]{0,30}) \* \d{1,9}(?:\.\d{1,9})?(?= |\Z)": r"\1",
    # "Train loss 10 2.5", "Validation loss 10: 2.5" (Tacotron 2).
    r"\A((?:train|valid)\w* loss) (\d{1,9}):?[ ]{1,9}(?=\d+\.\d)": r"step \2, \1: ",
    # The step first: "100 | loss 2.5", "9 train loss=0.4", "0 [D loss: 1.3] [G loss: 1.0]".
    r"\A[ ]{0,8}#?(\d{1,12})(?:[ \t]?[|,-])?[ \t]{1,3}"
    r"(?=\[?(?:(?:train(?:ing)?|val(?:id)?|avg|[dg])[ _])?(?:loss|acc(?:uracy)?)[ :=]{1,3}"
    r"[\d.-])": r"step \1, ",
    r"\A#?(\d{1,12}) (train|val) (?=\d+\.\d{3,12}\Z)": r"step \1, \2 loss ",
    r"\A(train|valid) (\d{3,9}) (?=\d+\.\d+(?:e[+-]\d\d)?(?: \d+\.\d+){1,2}\Z)": (
        r"step \2, \1 loss "  # DARTS
    ),
    r"\As:(\d{1,12}) trl:(?=\d)": r"step \1, loss: ",  # llm.c
    r"\As:(\d{1,12}) tel:(?=\d)": r"step \1, val loss: ",
    # Losses named only by their splits: "[200/3000] train=2.30 val=2.25".
    r"\A(?!.*(?:loss|cost|test))((?:(?!acc).){0,80}(?<![a-z][ :=])(?<![a-z]: )(?<!f1: ))\btrain"
    r" ?[ =:] ?(\d+\.\d+)((?: \([^()]{0,80}\))?[ ,;|]{1,8})"
    r"(val|valid|validation|dev|heldout|holdout) ?[ =:] ?(?=\d+\.\d)": (
        r"\1train loss: \2\3\4 loss: "
    ),
    # "loss 0.58 (train), 0.23 (dev)", "==Final== Epoch 1".
    r"(?<!\w)(\w{1,20}) ?[:=]? {0,4}(\d+\.\d[\de.+-]{0,20}) \((train\w{0,3})\) ?[,/|]? {0,4}"
    r"(?:\1 ?[:=]? {0,4})?(\d+\.\d[\de.+-]{0,20}) \((val\w{0,7}|test|dev|eval)\)": (
        r"\3 \1 \2, \5 \1 \4"
    ),
    r"\A@?=+\w{1,20}=+ (?=epoch)": "",
    # An averaging interval is not a position: "loss per 100 training steps: 2.5".
    r"(?<=loss) (?:per|every|(?:of|over|for|in)(?: the)? (?:last|past|previous)) \d{1,9} "
    r"(?:\w{1,20} )?(?:step|batch|iter|epoch|sample)\w{0,8}(?= ?[:=])": "",
    # Two names and two values in one pair: "Train/Val Loss: 2.5/2.75", "Val Loss/Acc: 2.5/0.75".
    r"(?<![\w/])(train\w{0,3})/(val\w{0,7}|test|dev|eval) (\w{1,20}) ?[:=]? {0,4}"
    r"(\d+\.\d[\de.+-]{0,20}%?) ?[/,] ?(?=\d)": r"\1 \3: \4, \2 \3: ",
    r"/(acc\w{0,6}|lr|ppl) ?[:=] {0,4}(\d+\.\d[\de.+-]{0,20}) ?[/,] ?(?=\d)": (r": \2, \1: "),
    r"(?<!\w)t([_ ])(loss.{1,80}?(?<!\w))v\1(?=loss)": r"train \2val ",  # T_Loss .. V_Loss
    r"\[(\d+\.\d+)/\d+\.\d+\]": r" \1",  # MindSpore: batch loss and mean loss
    r"\A(\W{0,20})epochs(?=[ :=]{1,3}\d{1,6}\b.{0,80}loss)": r"\1epoch",
    r"(?<=\d)f0(?!\w)": "",  # Julia's Float32
    r"(?<=\d)d(?=[+-]\d\d(?:\s|\Z))": "e",  # Fortran's double
    r"\.item\(\)(?=[=:])": "",
    r"(?<!\w)(?-i:L)(?==\d{1,9}\.\d)": "loss",
    # CatBoost; pytracking; DPO.
    r"\A(\d{1,9}):\tlearn: (\d\S{0,30})(?:\ttest: (\d\S{0,30}))?(?:.{0,80}\ttotal: ([\dhmus. ]+))?"
    r".*": r"step \1, loss \2, val \3, elapsed_time: \4",
    r"\A\[(train|val): (\d{1,9}), (?=\d{1,9} ?/)": r"\1 epoch \2 [",
    r"\A(train|eval)(?: stats)? after (\d{1,12})(?: examples)?: (?=\{)": r"step \2, \1 stats: ",
    r"\Aloss in epoch (\d{1,9}) iteration (\d{1,9}):": r"epoch \1, step \2, loss:",  # SASRec
    # sacrebleu and multi-bleu.perl: "BLEU = 27.31, 60.6/36.4/23.8/16.3 (BP=0.873, ratio=0.880)".
    rf"\A.{{0,40}}?(?<!\w)(BLEU) = ({NUMBER}),? \d[\d.]{{0,8}}(?:/\d[\d.]{{0,8}}){{3}}.*": (
        r"\1 = \2"
    ),
    # Lightning: "Epoch 0, global step 229: 'val_loss' reached 0.33 (best 0.33), saving model".
    rf"'((?:val|test|eval|dev)[\w/ .-]{{0,60}})' reached ({NUMBER}).*": r"\1: \2",
    r"'([\w ]{1,40}[:=])', ": r"\1 ",  # Python 2: ('Epoch:', 3, 'loss:', 2.5)
    r"\A\[(\d{1,9}) \| \d[\d.]{0,12}\] (?=loss)": r"step \1, ",  # "[10 | 23.10] loss=3.41"
    r"train==\[(\d[\d.]{0,20})=[^]]{1,99}\]": r"loss: \1",  # NGCF
    # A row of a drawn table of names and values: "│ test_acc │ 0.75 │" (Lightning).
    rf"\A(?:[|│┃] {{0,40}})?(\w(?:[\w/@.-]| (?=\w)){{0,60}}) {{0,60}}[|│┃] {{0,60}}({NUMBER})"
    r" {0,60}[|│┃]\Z": r"\1: \2",
    # An entry of a dict that spans several lines.
    rf"\A[ {{]['\"](\w[\w/ .-]{{0,60}})['\"]: ({NUMBER})[,}}]{{1,3}}\Z": r"    \1: \2,",
    r"(?<=\d)\+\d{1,9}\.\d{1,4}s\Z": "s",  # EDSR: times of model and data loading
    # PyTorch's tutorials: "1m 5s (- 15m 12s) (5000 6%) 2.85", "5000 6% (1m 5s) 2.85 name / guess".
    # char-rnn.pytorch: "[0m 3s (100 5%) 1.98]". Each begins with the elapsed time.
    r"\A\[?(\d{1,6}m \d{1,2}s) (?:\(- \d{1,6}m \d{1,2}s\) )?\((\d{1,9}) \d{1,3}%\)"
    r" (?:loss: )?(\d+\.\d+)(?:[ \]].*)?": r"step \2, loss: \3, elapsed_time: \1",
    r"\A\[?(\d{1,9}) \d{1,3}% \((\d{1,6}m \d{1,2}s)\) (?:loss: )?(\d+\.\d+)(?:[ \]].*)?": (
        r"step \1, loss: \3, elapsed_time: \2"
    ),
    # Two names, then two numbers: "Epoch and iter 28 99", "(epoch, step): (3, 100)".
    rf"\(?(epoch)(?: and |, ?| ?/ ?){_PLACE}\)?[ :=]{{1,3}}"
    r"[(\[]?(\d{1,9})(?:, ?| ?/ ?| )(\d{1,9})[)\]]?(?=[\s,:|-])": r"\1 \3, \2 \4, ",
    r"\Aepoch=\d{1,9}/micro_step=\d{1,15}/(?=global_step=)": "",  # DeepSpeed: the epoch is 0
    # "Iter: [0][50/391]": the first of two counters is the epoch.
    r"\b(?:iter|iteration|step|batch):? ?\[ ?(\d{1,9})\] ?(?=\[ *\d{1,15} ?/ ?\d)": r"epoch \1 ",
    # The position between loss and value: "Loss (of one batch) at step 200: 1.5".
    r"(?<!\w)score(?= at iteration \d)": "loss",
    r"(?<!\w)(?:the )?((?:\w{1,20} ){0,3}?(?:loss|cost))(?: \([a-z0-9 ]{1,30}\))? {1,4}"
    r"[(\[]?(?:(?:at|after|of|for|in|over|on|@) {1,4})?(?:the end of )?"
    rf"(?:{_PLACE} {{0,4}}[:=#\[]? {{0,4}}(\d{{1,15}})|(\d{{1,15}}) {_PLACE}(?:es|s)?)"
    rf"(?![\d.])( ?/ ?\d{{1,15}})?[)\]]? {{0,4}}(?:[:=,]{{1,6}}|is|was)? {{0,4}}"
    rf"(?={NUMBER})": r"\2\5 \3\4\6, \1: ",
}
_REWRITES = [
    (pattern_of(pattern, re.IGNORECASE), plain) for pattern, plain in _REWRITE_RULES.items()
]
# A batch of an evaluation shows its value, and in parentheses the mean of all batches so far.
_EVALUATED_BATCH = pattern_of(r"\W{0,9}(?:test|val|valid|validation|eval)\w{0,6}:? ", re.IGNORECASE)
_MEAN_BESIDE = pattern_of(
    r"(?<![\w.])\d[\d.]{0,20}(?:e[+-]\d\d)? \([ ]{0,4}(\d+\.\d{1,12}(?:e[+-]\d\d)?)\)"
)
_UNITS = ("unit", "unit2", "unit3", "unit4")
# Keys whose value may name a split: stage=train, msg="training".
_SPLIT_KEYS = SPLIT_SPELLINGS | words("msg message event")
# Separators between values and a remark. A remark that contains numbers must be in its own cell.
_CELL, _REMARK = pattern_of(r"[|\t]| - "), pattern_of(r"[,;*<>←→✓✔★|\t]| - ")
_LAST_WORD = pattern_of(r"(?:new )?(?:best|saved|improved)\W{0,9}\Z", re.IGNORECASE)
_CELL_END = pattern_of(r"[ ]{0,40}(?:[|\t,(]|\Z)")

_MAX_FIELDS = 2000
_MAX_STRAY_ITEMS = 8


class LineScan(LineFields):
    """The items found on a line so far.

    Attributes:
        group: Index of the first field that is a component of a loss, or None.
        has_loss: Whether a field is a loss of any kind.
    """

    group: int | None = None
    has_loss: bool = False

    @property
    def is_placed(self) -> bool:
        """Whether the line has a counter or begins with a step or an epoch."""
        return bool(self.counters) or (bool(self.fields) and is_position_key(self.fields[0].key))

    @property
    def allows_remark(self) -> bool:
        """Whether a remark may follow, because the line has a position and a loss."""
        return self.has_loss and self.is_placed

    def add(
        self, key: str, number: str, unit: str = "", of: str | None = None, split: str = ""
    ) -> bool:
        """Add a number; return False if it is invalid or contradicts an earlier field."""
        try:
            value = finite(number.replace(",", ""))
            total = None if of is None else finite(of.replace(",", ""))
        except ValueError:
            return False
        if fold(key) in STEP_RANK:
            if self.counters and "." in number and not unit:
                return True  # "[230] .. steps=112.0": a mean number of steps
            same = (each.value for each in self.fields if each.key.lower() == key.lower())
            if next(same, value) != value:
                return False  # "step1 .., step2 ..": two different quantities
        self.fields.append(Field(key, value, unit, total, split or self.split))
        self.has_loss = self.has_loss or is_loss_name(key)
        return True

    def add_dict(self, text: str, place: int, key: str = "") -> int | None:
        """Add the fields of a dict; return the position after it, or None if there is no dict."""
        if self.has_dict or (read := read_dict(text, place)) is None:
            return None
        self.has_dict = True
        fields = named_losses(key, read[0]) if "loss" in key.lower() else read[0]
        self.fields += [replace(each, split=each.split or self.split) for each in fields]
        return read[1]

    def add_word(self, word: str) -> bool:
        """Process a word that is not a name; return False if it makes the line unreadable."""
        word = word.rstrip(".").lower()
        if word in SPLITS:
            self.split = SPLITS[word]
        elif word == "check" and self.split and not self.stray_items:
            return True  # "Validation check - Accuracy: 0.75", unlike "Sanity check"
        elif word not in _FILLERS:
            self.stray_items += 1
        return self.stray_items <= _MAX_STRAY_ITEMS and not _ELSEWHERE.match(word)


def read_generic(text: str, split: str = "") -> Row | None:
    """Read a line whose prefixes have been removed.

    >>> read_generic("Step: 3/100, train loss: 2.5, step_time: 250ms, eta: 0:12:33").values
    (('loss', 2.5), ('step_seconds', 0.25))
    >>> read_generic("iter 2920: loss 3.9883, time 1099.34ms, mfu 15.34%").step
    2920
    >>> read_generic("Epoch 3 in static KGE | loss: 2.5").is_sure
    False
    >>> read_generic("best at step 3, loss: 2.5")
    >>> read_generic("    loss = 0.0").is_sure
    False
    """
    found = _split_items(text)
    if found is None or (found.is_code and " # " in text):
        return None
    # Names of several words and several pairs on one line do not occur in code or settings, so such
    # lines may be indented.
    worded = len(found.fields) > 1 or all(" " in field.key for field in found.fields)
    found.is_code |= text[:1] == "-" or text.endswith((",", ";"))
    found.is_code |= text[:1] in " \t" and not worded
    found.is_text, found.whole_split = True, split
    # A rate without a key is used only if its unit identifies the metric.
    found.fields = [field for field in found.fields if field.key[0] != "/"]
    return build_row(found)


def explain_rejection(text: str) -> str:
    """Explain why a line with names and values is not a measurement.

    >>> explain_rejection("saving checkpoint with loss: 2.5")
    '"saving" refers to a value of another line or to a setting'
    >>> explain_rejection("--lr 0.1 --loss 2.5")
    'it is a command line, code or a quotation'
    """
    if _NOT_A_LOG.match(text):
        return "it is a command line, code or a quotation"
    parts = (word.group() for word in _FREE_WORD.finditer(text))
    if elsewhere := next(filter(_ELSEWHERE.match, parts), ""):
        return f'"{elsewhere}" refers to a value of another line or to a setting'
    if _split_items(text) is not None:
        return "it has no step, epoch or loss, or its names are those of settings"
    return "it has more words than names and values"


def scan(text: str) -> LineFields | None:
    """Split a line that consists of items only; return None if it contains anything else."""
    found = _split_items(text)
    return None if found is None or found.stray_items else found


def _split_items(text: str) -> LineScan | None:
    if _NOT_A_LOG.match(text) or not _A_NUMBER.search(text):
        return None
    for pattern, plain in _REWRITES:
        text = pattern.sub(plain, text)
    if _EVALUATED_BATCH.match(text):
        text = _MEAN_BESIDE.sub(r"\1", text)
    found, place = LineScan([]), 0
    # Possible start of a remark, with the numbers of fields and stray items before it.
    remark = cell = None
    while place < len(text):
        if separated := _SEPARATOR.match(text, place):
            if found.allows_remark:
                here = place, len(found.fields), found.stray_items
                remark = here if _REMARK.search(text, place, separated.end() + 1) else remark
                cell = here if _CELL.search(text, place, separated.end()) else cell
            place = separated.end()
            continue
        moved = _read_item(text, place, found)
        if moved is None:
            numbered = remark is not None and any(map(str.isdecimal, text[remark[0] :]))
            if found.allows_remark and _LAST_WORD.match(text, place):
                cell = cell or (place, len(found.fields), found.stray_items)
            if cut := (cell or remark) if numbered else (remark or cell):
                del found.fields[cut[1] :]
                found.stray_items = cut[2] + (numbered and not cell)
                break
            free = _FREE_WORD.match(text, place) or _OTHER_TEXT.match(text, place)
            if free is None or not found.add_word(free.group()):
                return None
            moved = free.end()
        if len(found.fields) > _MAX_FIELDS:
            return None
        place = moved
        while aside := _PARENTHESIS.match(text, place):
            # "Epoch:[1/2](30/3969)": after an epoch, the parentheses contain its step counter.
            inside = aside.group().strip(" \t()")
            counts = not found.fields or fold(found.fields[-1].key) in EPOCH_RANK
            if counts and _COUNTER.fullmatch(inside):
                break
            if rate := _ALONE.fullmatch(inside):
                _read_rate(rate, found)
            elif (beside := _SCORE_BESIDE.fullmatch(inside)) and is_score_name(beside["key"]):
                last = found.fields[-1] if found.fields else Field("", 0.0)
                split = split_of(last.key) or last.split
                if fold(beside["key"]) not in fold(last.key).split("_"):
                    found.add(beside["key"], beside["number"], beside["unit"] or "", split=split)
            place = aside.end()
            found.split = SPLITS.get(inside.lower(), found.split)
    if found.group is not None:
        found.fields[found.group :] = named_losses("losses", found.fields[found.group :])
    return found


def _read_item(text: str, place: int, found: LineScan) -> int | None:
    """Read the item at a position; return the position after it, or None if there is no item."""
    char = text[place]
    if char.isalpha() or char == "_":
        return _read_named(text, place, found)
    if char == "{" and (moved := found.add_dict(text, place)):
        return moved
    if counter := _COUNTER.match(text, place):
        count, total = counter["count"] or counter["lone"], counter["total"]
        found.counters.append((int(count), int(total) if total else None))
        return counter.end()
    if alone := _ALONE.match(text, place):
        _read_rate(alone, found)
        return alone.end()
    bracket = _BRACKET.match(text, place)
    return bracket.end() if bracket else None


def _read_rate(alone: re.Match[str], found: LineScan) -> None:
    """Add a rate without a key: "37.5k tok/s"; other numbers without a key mean nothing."""
    if alone["number"] and ("/" in alone["unit"] or " per " in alone["unit"]):
        unit = alone["unit"].replace(" per ", "/")
        found.add(unit, alone["number"], (alone["thousands"] or "").strip())


def _read_named(text: str, place: int, found: LineScan) -> int | None:
    """Read an item that begins with a word; return the position after it, or None."""
    if group := _GROUP.match(text, place):
        if group["dict"] is None:
            found.group = len(found.fields)
            return group.end()
        if moved := found.add_dict(text, group.end(), group["key"]):
            return moved
    pair = _PAIR.match(text, place)
    if pair and _read_pair(text, pair, found):
        return pair.end()
    word = _FREE_WORD.match(text, place)
    if word and word.group().rstrip(".").lower() in SPLITS.keys() | _FILLERS:
        found.add_word(word.group())
        return word.end()
    return None


def _read_pair(text: str, pair: re.Match[str], found: LineScan) -> bool:
    """Add a pair of key and value; return False if the match is not one."""
    number = pair["number"] or pair["listed"]
    unit, of = next(filter(None, pair.group(*_UNITS)), ""), pair["of"] or pair["listed_of"]
    if pair["key"].lower() in SPLITS and number:
        split = SPLITS[pair["key"].lower()]
        counts = number.isdecimal() and (of or "0").isdecimal()
        if counts and (pair["listed"] or of):  # Test: [10/90], Train: 3/20 [10/90]
            found.split = split
            found.counters.append((int(number), int(of) if of else None))
            return True
        last = metric_of(found.fields[-1].key) if found.fields else None
        is_decimal = pair["key"] in ("val", "valid") and "." in number
        if last and last.name == LOSS and (last.split or is_decimal) and not unit:
            return found.add("loss", number, split=split)  # loss train: 2.5, val: 2.6
        if number.isdecimal() and not (pair["sign"] or found.fields or unit):
            found.split, found.stray_items = split, found.stray_items + 1
            return found.add("epoch", number)  # Train 7, loss: 2.5
    before, key = _split_key(pair["key"], _ARTICLES if pair["sign"] else _JOINING_WORDS)
    if not key or (number is None and pair["sign"] is None and pair["clock"] is None):
        return False
    is_loss, stray_items = name_of(key) in LOSSES, 0
    word = pair["word"] or (pair["quoted"] or "").strip("'\"")
    missing = word.lower() in _MISSING_VALUES
    if number is None:
        if not missing and (is_loss or not _is_value(pair, key, word)):
            return False
    elif pair["listed"] and key.lower().endswith("losses") and pair[0].count(" ") > 1:
        return True  # losses of several objects, or a history
    elif is_loss and (of or ("," in number and "." not in number)):
        # A comma may separate thousands or decimals, and a loss does not show which. The value can
        # be omitted if the line has another loss.
        return found.has_loss
    elif pair["sign"] is None:
        if text[pair.end("key")] == "[" and key.endswith("s") and not is_loss:
            return False  # "Train batches[100]" is a total number
        if not (is_known(key, unit) or _is_evident(text, pair, key, found)):
            if not found.is_placed and number.isdecimal():
                return False  # "Layer 3"
            stray_items = 1
    if not all(map(found.add_word, before)):
        return False
    if number is None:
        is_time = is_time_of_epoch(key) or is_elapsed_time(key)
        if pair["clock"] and is_time and (time := read_duration(pair["clock"])):
            return found.add(key, f"{time}", "s")
        if word and not missing:
            found.fields.append(Field(key, word, split=found.split))
        return True
    found.is_code |= (is_loss and key.isupper()) or (pair["sign"] or "")[:2] == " ="
    if is_position_key(key) and (of or pair["listed"]):
        stray_items -= len(before)  # "Stage1 Step [3/20]", "data epoch: [0]"
    found.stray_items = max(0, found.stray_items + stray_items)
    return found.add(key, number, unit, of)


def _split_key(key: str, joints: frozenset[str]) -> tuple[list[str], str]:
    """Separate a name from preceding words, up to the last joining word or before a position.

    >>> _split_key("the result with Adam is test acc", _JOINING_WORDS)
    (['result', 'with', 'Adam', 'is'], 'test acc')
    >>> _split_key("Train Epoch", _JOINING_WORDS), _split_key("next mAP at", _JOINING_WORDS)
    ((['Train'], 'Epoch'), (['next', 'mAP', 'at'], ''))
    """
    parts = key.split()
    while len(parts) > 1 and parts[0].lower() in _JOINING_WORDS:
        del parts[0]
    for at in range(len(parts)):
        is_split = not at and parts[0].lower() in SPLITS
        if (
            parts[at][0] != "("
            and is_position_key(" ".join(parts[at:]))
            and not (is_split or (at and parts[-1][-1] == "s"))
        ):
            return parts[:at], " ".join(parts[at:])
    while len(parts) > 1 and parts[-1].lower() in _VERBS:
        parts.pop()
    if joints is _JOINING_WORDS and parts[-1].lower() in _PREPOSITIONS:
        return parts, ""
    start = 0
    for index, part in enumerate(parts if len(parts) > 1 or joints is _JOINING_WORDS else ()):
        joins = part.lower() in joints and not is_known(" ".join(parts[start:]))
        if joins or part.lower() in _ARTICLES:
            start = index + 1
    return parts[:start], " ".join(parts[start:])


def _is_value(pair: re.Match[str], key: str, word: str) -> bool:
    """Return True if a word is the value of a key, unlike in a heading: "Test set: loss 2.5"."""
    if word.lower() in SPLITS:
        return fold(key) in _SPLIT_KEYS
    if key.lower() in _FILLERS or (word.startswith("-") and not word[1:2].isalnum()):
        return False
    return not pair["word"] or not (key.split()[0].lower() in SPLITS or is_known(word))


def _is_evident(text: str, pair: re.Match[str], key: str, found: LineScan) -> bool:
    """Return True if an unknown name without a sign follows a position or fills a table cell."""
    if " " not in key and found.is_placed:
        return True
    mark = text[max(0, pair.start() - 40) : pair.start()].rstrip(" ")[-1:]
    most = (
        3 if mark in ("|", "\t") else 2 if found.allows_remark and mark in (",", "-") else not mark
    )
    return key.count(" ") < most and bool(_CELL_END.match(text, pair.end()))
