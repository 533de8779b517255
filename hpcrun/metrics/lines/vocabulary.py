"""Vocabulary: what numbers, keys, units and clocks look like on a line, as parts of patterns."""

from __future__ import annotations

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
