"""Secrets in logs are hidden, and nothing else is."""

from __future__ import annotations

import base64
import random
import re
import time

import pytest

from hpcrun.secrets.mask import FileMasker, Masker, mark_secrets
from tests.secrets.secret_values import HEX, MIXED
from tests.source import ROOT

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
    ("https://b.s3.amazonaws.com/x?X-Amz-Date=20261122T00Z&X-Amz-Signature=", HEX + HEX[:24], ""),
    ("{'X-Amz-Signature': '", HEX + HEX[:24], "', 'X-Amz-Expires': '3600'}"),
    ("?X-Amz-Credential=", "AKIAIOSFODNN7EXAMPLE%2F20261122%2Fus-east-1%2Fs3", "&X-Amz-Date=1"),
    ("&X-Amz-Security-Token=", "IQoJb3JpZ2luX2VjEDoaCXVzLWVhc3Q", "&x=1"),
    ("https://storage.googleapis.com/b/o?X-Goog-Signature=", HEX * 12, ""),
    ("&X-Goog-Credential=", "me%40my-project.iam.gserviceaccount.com%2F20261122", "&x=1"),
    ("https://s.blob.core.windows.net/c?sv=2022-11-02&sig=", f"{MIXED}%2FaB%3D", "&se=2026"),
    ('{"url": "https://s/c?sp=r\\u0026sig=', f"{MIXED}%3D", '"}'),
    ("https://cdn.hf.co/x?Expires=1&Signature=", f"{MIXED}-~{MIXED}__", "&Key-Pair-Id=K1"),
    ("AccountName=a;AccountKey=", f"{MIXED}{MIXED}==", ";EndpointSuffix=core.windows.net"),
    ("HF_TOKEN is ", "plain4value", ""),
    ("your WANDB_API_KEY was set to '", "12ab34cd", "'"),
    ("> authorization: Basic ", "YTpi", ""),
    ("Proxy-Authorization: Basic ", "dXNlcjpodW50ZXIyc2VjcmV0", ""),
    ("APIKEY=", "abcd1234", ""),
    ("NPM_AUTH=", "dXNlcjpw4ss", ""),
    ("SERVICE_CREDENTIALS=", "me:pw4711", ""),
    ("'bearer': '", MIXED, "'"),
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
    "HOTKEY=x1y2z3 MONKEY=banana1 DONKEY: kong64 TURKEY='roast1' monkey=" + HEX,
    "SORT_KEY=length2 IMAGE_KEY=jpg1 EOS_TOKEN=eos1 PAD_TOKEN='pad_2' CACHE_KEY=step_1000",
    "HF_TOKEN is not set; API_KEY is required, the token is deprecated. WANDB_API_KEY is missing!",
    "the key is 4096 bits; token was 12 of 30; HF_TOKEN is valid (permission: read).",
    "def f(sig=1) signature=inspect_signature_of_the_callable&sig=1 X-Amz-Date=20261122T000000Z",
    "credentials: anonymous; AWS_CREDENTIALS=/home/me/.aws/credentials auth=digest USE_AUTH=True",
    "OPENAI_API_KEY=dummy HF_TOKEN=not-needed WANDB_API_KEY: disabled",
    "--sort-key validation_loss --new_token reserved_special_token --monkey banana12",
    "basic training of 7B models; Basic dXNlcjpwYXNzd29yZA",
    "expected -----BEGIN PRIVATE KEY----- but got step 100",
    "-----BEGIN CERTIFICATE-----",
    "-----BEGIN PUBLIC KEY-----",
]


@pytest.mark.parametrize(("before", "secret", "after"), SECRETS)
def test_secret_is_masked(before: str, secret: str, after: str) -> None:
    line = f"{before}{secret}{after}\n"
    masked = Masker().mask(line.encode()).decode()
    assert masked == (f"{before}***{after}\n" if secret else line)


@pytest.mark.parametrize("line", NO_SECRETS)
def test_harmless_text_is_not_masked(line: str) -> None:
    assert Masker().mask(line.encode()).decode() == line


def test_nothing_is_masked_in_training_logs() -> None:
    logs = sorted((ROOT / "tests" / "curves" / "logs").glob("*.*"))
    assert len(logs) > 40
    for path in logs:
        data = path.read_bytes()
        assert Masker().mask(data) == data, path.name


def test_secret_anywhere_in_megabytes_is_masked() -> None:
    """Includes block boundaries, long lines and progress bars."""
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


# Starts of secrets without the rest: each could trigger a search to the end of the line.
NEAR = [
    *(b"key=", b"key_auth=aaaa.", b"PASSWORD=", b"x-amz-credential=", b"login --"),
    *(b"sk-aaaaaaaaaaaaaaaA-", b"eyJaaaaaaaaaaaa1-", b"-----BEGIN PRIVATE KEY-----\\n"),
]
KEY_LINE = b"MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj\n"


@pytest.mark.slow
@pytest.mark.parametrize("near", [*NEAR, KEY_LINE])
def test_masking_time_is_linear_in_the_line_length(near: bytes) -> None:
    def seconds(size: int) -> float:
        text = near * (size // len(near))
        if near == KEY_LINE:
            text += b"-----END PRIVATE KEY-----" * (size // 65)
        begun = time.process_time()
        Masker().mask(text + b"\n")
        return time.process_time() - begun

    short = min(seconds(4_000) for _ in range(3))
    # The same time as 16 lines of that length; quadratic time would be 256-fold.
    assert min(seconds(64_000) for _ in range(3)) < 80 * max(short, 2e-4)


def test_long_secret_after_partial_matches_is_masked_completely() -> None:
    chance = random.Random(7)
    long = base64.b64encode(chance.randbytes(3000)).rstrip(b"=")
    text = b"key=key=key= api_key=" + long + b" &X-Amz-Security-Token=" + long + b"&x=1\n"
    assert Masker().mask(text) == b"key=key=key= api_key=*** &X-Amz-Security-Token=***&x=1\n"


def test_chunk_of_a_line_is_masked_with_its_preceding_text() -> None:
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
def test_secrets_with_colour_codes_are_masked(line: str) -> None:
    masked = Masker().mask(line.encode()).decode()
    plain = re.sub(r"\x1b\[[0-9;]*m", "", masked)
    assert plain in ("WANDB_API_KEY=*** done", "*** done")
    assert masked.count("\x1b") == line.count("\x1b")


def test_secrets_of_the_run_are_masked_by_value_and_name() -> None:
    masker = Masker(names=["MY_PIN", "WORD"], values=[b"hunter22", b"abc"])
    text = b"it is hunter22, MY_PIN=12 'WORD': 'abc' abc\n"
    assert masker.mask(text) == b"it is ***, MY_PIN=*** 'WORD': '***' abc\n"


def test_multiline_secret_is_masked_line_by_line() -> None:
    value = f"user: ada\n{HEX}\nend\n".encode()
    first, second = f"it is {HEX}\n".encode(), b"user: ada\nend\n"
    known = FileMasker(Masker(values=[value]))
    assert [known.mask(first), known.mask(second)] == [b"it is ***\n", b"***\nend\n"]
    marked = FileMasker(Masker(marks=mark_secrets({"A": value}, b"key")))
    assert [marked.mask(first), marked.mask(second)] == [b"it is ***\n", second]


def test_unstored_secret_is_recognized_by_its_mark() -> None:
    values = {"A": HEX.encode(), "B": b"nX7-kQ2_pL9zR4mT8wV1", "C": b"CorrectHorseBatteryStaple"}
    marks = mark_secrets(values, b"key")
    assert [mark.name for mark in marks] == ["A", "B"], "a password could be found by trying"
    text = f"a {HEX} b=nX7-kQ2_pL9zR4mT8wV1; {HEX[::-1]} {'-' * 99}\n"
    masked = Masker(marks=marks).mask(text.encode()).decode()
    assert masked == text.replace(HEX, "***").replace("nX7-kQ2_pL9zR4mT8wV1", "***")
    assert HEX.encode() not in b"".join(mark.digest for mark in marks)


def block(kind: str = "", *, width: int = 64, label: str = "") -> list[str]:
    """Return the lines of a private key of random bytes in base64."""
    body = base64.b64encode(random.Random(7).randbytes(1217)).decode()
    inside = [body[at : at + width] for at in range(0, len(body), width)]
    ends = [f"-----{word} {kind}PRIVATE KEY-----" for word in ("BEGIN", "END")]
    return [f"{label}{line}\n" for line in (ends[0], *inside, ends[1])]


KEYS = {
    "pkcs8": block(),
    "rsa": block("RSA "),
    "openssh": block("OPENSSH ", width=70),
    "labelled": block("EC ", label="3: "),
    "crlf": [line.replace("\n", "\r\n") for line in block()],
    "encrypted": [
        *block("RSA ")[:1],
        "Proc-Type: 4,ENCRYPTED\n",
        "DEK-Info: AES-256-CBC,0123456789ABCDEF\n",
        "\n",
        *block("RSA ")[1:],
    ],
}


def of_key(lines: list[str], shown: str) -> list[str]:
    """Return the lines of a key that are still visible."""
    longest = [line.strip()[-60:] for line in lines if len(line.strip()) > 60]
    return [line for line in longest if line in shown]


@pytest.mark.parametrize("name", KEYS)
def test_private_key_is_masked_completely_and_in_part(name: str) -> None:
    lines = KEYS[name]
    last = next(line for line in reversed(lines) if "PRIVATE" not in line).strip().encode()
    text = "".join(["step 1\n", *lines, "step 2 loss 2.5\n"]).encode()
    masked = Masker().mask(text)
    assert not of_key(lines, masked.decode()) and last not in masked
    assert masked.startswith(b"step 1\n") and masked.endswith(b"step 2 loss 2.5\n")
    for start in range(len(lines)):  # as -n has it: the begin is cut off
        masked = Masker().mask("".join([*lines[start:], "step 2\n"]).encode())
        assert not of_key(lines, masked.decode()), start
        assert masked.endswith(b"step 2\n")
    masker = FileMasker(Masker())  # as -f has it: line by line
    pieces = [masker.mask(line.encode()) for line in ["step 1\n", *lines, "step 2\n", "done\n"]]
    shown = b"".join(pieces)
    assert not of_key(lines, shown.decode()) and last not in shown
    assert shown.startswith(b"step 1\n") and shown.endswith(b"step 2\ndone\n")


def test_private_key_in_json_is_masked() -> None:
    body = "".join(block()).replace("\n", "\\n")
    line = f'{{"type": "service_account", "private_key": "{body}", "client_id": "1"}}\n'
    masked = Masker().mask(line.encode()).decode()
    assert not of_key(block(), masked.replace("\\n", "\n"))
    assert masked.startswith('{"type": "service_account", ') and '"client_id": "1"}' in masked
    half = line[: len(line) // 2].encode()
    masker = FileMasker(Masker())
    shown = masker.mask(half) + masker.mask(line.encode()[len(half) :])
    assert not of_key(block(), shown.decode().replace("\\n", "\n"))


def test_private_key_among_many_lines_is_masked() -> None:
    filler = b"step 123 loss 2.34 lr 0.001\n" * 200_000
    key = "".join(block()[5:15]).encode()
    masked = Masker().mask(filler + key + filler)
    assert masked == filler + b"***\n" * 10 + filler
