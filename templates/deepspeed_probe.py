"""Check a config with the installed DeepSpeed; run by its interpreter, never imported.

The map records which keys DeepSpeed reads; rejected keys are removed one by one until the rest is
accepted. The config comes on standard input, the answer goes to standard output, as JSON.
"""

import collections.abc
import json
import os
import sys

answer_fd = os.dup(1)
os.dup2(2, 1)  # keep what libraries print at import out of the answer
config = json.load(sys.stdin)
read = set()


class Keys(collections.abc.KeysView):
    def __contains__(self, key):
        self._mapping.note(key)
        return dict.__contains__(self._mapping, key)


class Noting(dict):
    def __init__(self, plain, path=()):
        self.path = path
        super().__init__(
            (key, Noting(value, (*path, key)) if isinstance(value, dict) else value)
            for key, value in plain.items()
        )

    def note(self, key):
        read.add(".".join((*self.path, str(key))))

    def get(self, key, default=None):
        self.note(key)
        return super().get(key, default)

    def __getitem__(self, key):
        self.note(key)
        return super().__getitem__(key)

    def __contains__(self, key):
        self.note(key)
        return super().__contains__(key)

    def keys(self):
        return Keys(self)

    def __copy__(self):
        return self


import deepspeed  # noqa: E402 - what it prints must not come first
from deepspeed.runtime.config import DeepSpeedConfig  # noqa: E402


def refused(plain):
    """Return None, or the section's path and the message of the first rejection."""
    try:
        DeepSpeedConfig(Noting(plain))
    except Exception as error:
        listed = getattr(error, "errors", None)
        if callable(listed):
            return [
                (".".join(str(x) for x in e["loc"]), e["msg"].replace("Value error, ", ""))
                for e in listed()
            ]
        return [("", str(error).split("\n")[0].split(" See http")[0] or type(error).__name__)]
    return None


def without(plain, key):
    return {k: v for k, v in plain.items() if k != key}


# The batch is checked elsewhere, against the real world size; here there is one rank.
for key in ("train_batch_size", "gradient_accumulation_steps"):
    config.pop(key, None)
config["train_micro_batch_size_per_gpu"] = 1
problems = []
wrong = refused(config)
while wrong:
    culprit = next((k for k in config if refused(without(config, k)) != wrong), None)
    for place, message in wrong:
        path = ".".join(part for part in (culprit, place) if part)
        problems.append((path, message))
    if culprit is None or culprit == "train_micro_batch_size_per_gpu":
        break
    config = without(config, culprit)
    wrong = refused(config)
answer = {"version": deepspeed.__version__, "read": sorted(read), "problems": problems}
os.write(answer_fd, json.dumps(answer).encode())
os._exit(0)  # do not wait for threads of libraries
