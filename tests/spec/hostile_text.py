"""Texts that are difficult to write as YAML."""

from __future__ import annotations

HOSTILE = [
    *("", " ", "  x", "x ", "a b", "a: b", "a #b", "#", "- a", "-", "--", "---", "...", "?", ":"),
    *(
        "a\nb",
        "a\nb\n",
        "\n",
        "\na",
        "a\n\nb",
        " a\nb",
        "a\n b",
        "a\n\n",
        "a\tb",
        "\t",
        "\r\n",
        "a\r",
    ),
    *("'", '"', "''", '\\"', "\\", "it's", '$(rm -rf "x"); `y`', "{run_dir}", "{{", "[a]", "*a"),
    *("&a", "!x", "!!str x", "%x", "@x", "`x`", "|", ">", "<<", "~", "null", "Null", "true", "no"),
    *("off", "y", "1", "012", "1e-4", ".5", "0x1F", "0o17", ".inf", ".nan", "24:00:00", "1_000"),
    *(
        "2026-11-20",
        "=",
        "é",
        "日本",
        "😀",
        "\u2028",
        "\x85",
        "\x7f",
        "\x1b[31m",
        "\ufeff",
        "x" * 999,
    ),
    *("word " * 99, "-x", "--lr", "--lr=1e-4", "/a/b", "a, b", "http://x/y?z=1&w"),
]
