"""Secrets in logs are hidden, and nothing else is."""

from __future__ import annotations

import random
import re

import pytest

from hpcrun.logs.mask import Masker
from hpcrun.runs.secret_marks import mark_secrets
from tests.source import ROOT

HEX = "0123456789abcdef0123456789abcdef01234567"
MIXED = "aB3dE5gH7jK9mN1pQ3sT5vW7xY9zA1cD3fG5"
SECRETS = [
    ("export WANDB_API_KEY=", HEX, ""),
    ("'WANDB_API_KEY': '", HEX, "', 'HOME': '/h'"),
    ('{"api_key": "', "abc123def", '"}'),
    ("wandb login ", HEX, ""),
    ("wandb: api_key ", "", ""),
    ("machine api.wandb.ai login user password ", HEX, ""),
    ("token is hf_", "", ""),
    ("", f"hf_{MIXED[:34]}", " is my token"),
    ("key ", f"sk-proj-{MIXED}_{MIXED}", "."),
    ("key ", "sk-ant-api03-" + MIXED, ""),
    ("", f"ghp_{MIXED}", ""),
    ("", f"github_pat_11ABCDEFG0{MIXED}", ""),
    ("AWS ", "AKIAIOSFODNN7EXAMPLE", ""),
    ("AWS_SECRET_ACCESS_KEY=", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", ""),
    ("", "AIzaSyD-9tSrke72PouQMnMX-a7eZSW0jkFMBWY", ""),
    ("", f"xoxb-123456789012-123456789012-{MIXED[:24]}", ""),
    ("", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P", ""),
    ("Authorization: Bearer ", MIXED, ""),
    ("{'Authorization': 'Basic ", "dXNlcjpodW50ZXIyc2VjcmV0", "'}"),
    ("Authorization: token ", "abcdefgh1234", ""),
    ("os.environ['WANDB_API_KEY'] = '", HEX, "'"),
    ('    os.environ["HF_TOKEN"]="', "plain4value", '"'),
    ("--hf_token ", MIXED, " --epochs 3"),
    ("--api-key=", "abcdefgh", " --epochs 3"),
    ("MY_SERVICE_TOKEN=", "abc123", ""),
    ("DB_PASSWORD=", "pw", ""),
    ("FOO_SECRET: ", "hunter2", ""),
    ("postgres://me:", "p4ss", "@db.example.org:5432/x"),
    ("git clone https://oauth2:", "abcdef", "@git.example.org/x.git"),
]
NO_SECRETS = [
    f"git commit {HEX}",
    f"sha256:{HEX}{HEX[:24]}",
    f"checkpoint /scratch/ckpt-{HEX}/step_1000.pt",
    "uuid 123e4567-e89b-12d3-a456-426614174000 GPU-3f1c2d3e-1111-2222-3333-444455556666",
    "loss: 2.5 num_tokens=4096 tokens: 123456789 max_token=512 eos_token=</s> pad_token: [PAD]",
    "'eos_token': '<|im_end|>', 'bos_token_id': 151643, mask_token = '<mask>'",
    "HF_TOKEN=None WANDB_API_KEY= OPENAI_API_KEY=*** API_KEY=$KEY TOKEN=<your token>",
    "API_KEY: os.environ['API_KEY'], password=os.getenv('DB_PASSWORD'), basic authorization",
    "tokens['key'] = 'value' cfg['eos_token'] = '</s>' state['rng_key'] = [0, 42]",
    "sort_key=validation_loss monitor key: eval/loss_epoch best_model_key=model_state_dict_ema_000",
    "KeyError: 'loss' -- the secret of training; password required; task-based disk-usage",
    "SSH_KEY=/home/me/.ssh/id_ed25519 TOKENIZERS_PARALLELISM=false HF_TOKEN_PATH=/home/x/token",
    "dataset s3://bucket/key=12/part-000 https://wandb.ai/me/p/runs/3kq8v1ab (user@host.org)",
    "transformers.modeling_utils.PreTrainedModel.from_pretrained DistributedDataParallelKwargs",
    "[rank0]: use_auth_token=True, trust_remote_code=False, token=False",
]


@pytest.mark.parametrize(("before", "secret", "after"), SECRETS)
def test_a_secret_is_hidden(before: str, secret: str, after: str) -> None:
    line = f"{before}{secret}{after}\n"
    masked = Masker().mask(line.encode()).decode()
    assert masked == (f"{before}***{after}\n" if secret else line)


@pytest.mark.parametrize("line", NO_SECRETS)
def test_what_is_no_secret_stays(line: str) -> None:
    assert Masker().mask(line.encode()).decode() == line


def test_nothing_is_hidden_in_logs_of_training() -> None:
    logs = sorted((ROOT / "tests" / "metrics" / "logs").glob("*.*"))
    assert len(logs) > 40
    for path in logs:
        data = path.read_bytes()
        assert Masker().mask(data) == data, path.name


def test_a_secret_anywhere_in_megabytes_is_found() -> None:
    """At the borders of blocks too, in long lines, and among bars."""
    token = f"ghp_{MIXED}".encode()
    chance = random.Random(7)
    for filler, end in ((b"step 123 loss 2.34 lr 0.001", b"\n"), (b"10%|##  | 1/9", b"\r")):
        lines = [filler + b" %d" % number for number in range(60_000)]
        for at in chance.sample(range(len(lines)), 50):
            lines[at] += b" " + token
        text = end.join(lines)
        assert Masker().mask(text) == text.replace(token, b"***")
    one_line = (b"word " * 60_000 + token + b" ") * 3
    assert Masker().mask(one_line) == one_line.replace(token, b"***")


def test_a_piece_of_a_line_is_seen_with_what_stands_before() -> None:
    head, tail = b"export WANDB_API_KEY=", HEX.encode() + b" more\n"
    assert Masker().mask(tail) == tail
    assert Masker().mask(tail, head) == b"*** more\n"


@pytest.mark.parametrize(
    "line",
    [
        f"WANDB_API_KEY=\x1b[32m{HEX}\x1b[0m done",
        f"\x1b[1mWANDB_API_KEY\x1b[0m=\x1b[36m{HEX[:10]}\x1b[0m{HEX[10:]} done",
        f"hf_\x1b[1;36m{MIXED[:10]}\x1b[0m{MIXED[10:34]} done",
    ],
)
def test_colours_hide_no_secret(line: str) -> None:
    masked = Masker().mask(line.encode()).decode()
    plain = re.sub(r"\x1b\[[0-9;]*m", "", masked)
    assert plain in ("WANDB_API_KEY=*** done", "*** done")
    assert masked.count("\x1b") == line.count("\x1b")


def test_the_runs_own_secrets_are_hidden_by_value_and_by_name() -> None:
    masker = Masker(names=["MY_PIN", "WORD"], values=[b"hunter22", b"abc"])
    text = b"it is hunter22, MY_PIN=12 'WORD': 'abc' abc\n"
    assert masker.mask(text) == b"it is ***, MY_PIN=*** 'WORD': '***' abc\n"


def test_a_value_that_nobody_kept_is_known_by_its_mark() -> None:
    values = {"A": HEX.encode(), "B": b"nX7-kQ2_pL9zR4mT8wV1", "C": b"CorrectHorseBatteryStaple"}
    marks = mark_secrets(values, b"key")
    assert [mark.name for mark in marks] == ["A", "B"], "a password could be found by trying"
    text = f"a {HEX} b=nX7-kQ2_pL9zR4mT8wV1; {HEX[::-1]} {'-' * 99}\n"
    masked = Masker(marks=marks).mask(text.encode()).decode()
    assert masked == text.replace(HEX, "***").replace("nX7-kQ2_pL9zR4mT8wV1", "***")
    assert HEX.encode() not in b"".join(mark.digest for mark in marks)
