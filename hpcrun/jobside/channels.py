"""The channels of notifications: their requests, and sending with the standard library only."""

import json
import os
import re
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

# Channels whose target is a URL. That of a webhook is a secret: whoever knows it can post.
WEBHOOKS = ("slack", "discord", "teams", "webhook")
KINDS = ("mail", "ntfy", *WEBHOOKS, "command", "apprise")
TIMEOUT_S = 15.0
COMMAND_TIMEOUT_S = 60.0
NTFY = "https://ntfy.sh"
# ntfy's priorities; 3 is the default.
_PRIORITIES = {"failed": "4", "nan": "4", "diverged": "4", "stalled": "4"}


class Channel(NamedTuple):
    """A place that messages are sent to.

    Attributes:
        name: The kind, with a number if several channels have it.
        target: The URL, the mail address, or the command; it may be a secret.
    """

    name: str
    kind: str
    target: str


class Message(NamedTuple):
    """A message: a sentence, and facts for programs that read it.

    Attributes:
        event: The kind of the event.
        image: A PNG image of the curve, or b"".
    """

    text: str
    event: str
    facts: Mapping[str, Any]
    image: bytes = b""


class Request(NamedTuple):
    """An HTTP request."""

    method: str
    url: str
    headers: Dict[str, str]
    body: bytes


class ChannelError(Exception):
    """A message was not accepted; the text has no secrets."""


def name_channels(channels: Sequence[Tuple[str, str]]) -> List[Channel]:
    """Name channels by their kinds, which are numbered from the second of a kind.

    >>> [one.name for one in name_channels([("ntfy", "a"), ("mail", ""), ("ntfy", "b")])]
    ['ntfy', 'mail', 'ntfy-2']
    """
    found: List[Channel] = []
    for kind, target in channels:
        count = sum(one.kind == kind for one in found) + 1
        found.append(Channel(kind if count == 1 else "{}-{}".format(kind, count), kind, target))
    return found


def build_request(channel: Channel, message: Message) -> Request:
    """Build the request of a channel that takes HTTP.

    >>> request = build_request(Channel("ntfy", "ntfy", "topic"), Message("Done.", "done", {}))
    >>> request.url, request.body, request.headers["Title"]
    ('https://ntfy.sh/topic', b'Done.', 'hpcrun: done')
    """
    if channel.kind == "ntfy":
        return _build_ntfy_request(channel.target, message)
    body: Dict[str, Any] = {}
    if channel.kind == "slack":
        body = {"text": _escape_slack(message.text)}
    elif channel.kind == "discord":
        body = {"content": message.text[:2000], "allowed_mentions": {"parse": []}}
    elif channel.kind == "teams":
        body = _build_teams_card(message.text)
    else:
        body = {"text": message.text, "event": message.event, **message.facts}
    if channel.kind == "discord" and message.image:
        boundary = "hpcrun-" + os.urandom(12).hex()
        head = "multipart/form-data; boundary=" + boundary
        data = _build_multipart(boundary, json.dumps(body).encode(), message.image)
        return Request("POST", channel.target, {"Content-Type": head}, data)
    headers = {"Content-Type": "application/json"}
    return Request("POST", channel.target, headers, json.dumps(body).encode())


def ntfy_url(target: str) -> str:
    """Return the URL of an ntfy topic: TOPIC on ntfy.sh, HOST/TOPIC with https, or a URL.

    >>> ntfy_url("runs"), ntfy_url("ntfy.example.org/runs"), ntfy_url("http://127.0.0.1:8080/runs")
    ('https://ntfy.sh/runs', 'https://ntfy.example.org/runs', 'http://127.0.0.1:8080/runs')
    """
    if re.match("https?://", target):
        return target
    return "https://" + target if "/" in target else "{}/{}".format(NTFY, target)


def is_http_url(text: str) -> bool:
    """Return True for a URL that a request can be sent to.

    >>> [is_http_url(x) for x in ("https://example.org/a?b", "file:///etc/passwd", "https://")]
    [True, False, False]
    """
    return bool(re.fullmatch(r"https?://[A-Za-z0-9.\[\]:_@-]+(/[!-~]*)?", text))


def _build_ntfy_request(target: str, message: Message) -> Request:
    headers = {"Title": "hpcrun: " + _to_ascii(message.event)}
    headers["Priority"] = _PRIORITIES.get(message.event, "3")
    if not message.image:
        headers["Content-Type"] = "text/plain; charset=utf-8"
        return Request("POST", ntfy_url(target), headers, message.text.encode("utf-8", "replace"))
    # The text of an attachment is a header. ntfy decodes RFC 2047 there.
    import base64  # deferred: rarely needed

    text = base64.b64encode(message.text.encode("utf-8", "replace")).decode()
    headers.update({"Message": "=?utf-8?B?{}?=".format(text), "Filename": "curve.png"})
    return Request("PUT", ntfy_url(target), headers, message.image)


def _to_ascii(text: str) -> str:
    return "".join(char if " " <= char <= "~" else "?" for char in text)


def _escape_slack(text: str) -> str:
    """Escape the characters by which Slack would read mentions and links."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _build_teams_card(text: str) -> Dict[str, Any]:
    """Build the message of a Teams workflow; Teams takes no other form since connectors ended."""
    block = {"type": "TextBlock", "text": re.sub(r"([*_\[\]`~#])", r"\\\1", text), "wrap": True}
    card = {"type": "AdaptiveCard", "version": "1.4", "body": [block]}
    kind = "application/vnd.microsoft.card.adaptive"
    return {"type": "message", "attachments": [{"contentType": kind, "content": card}]}


def _build_multipart(boundary: str, payload: bytes, image: bytes) -> bytes:
    form = b'Content-Disposition: form-data; name="%s"%s\r\nContent-Type: %s\r\n\r\n%s\r\n'
    line = b"--" + boundary.encode()
    parts = [
        form % (b"payload_json", b"", b"application/json", payload),
        form % (b"files[0]", b'; filename="curve.png"', b"image/png", image),
    ]
    return b"".join(line + b"\r\n" + part for part in parts) + line + b"--\r\n"


# ---- sending


def send(channel: Channel, message: Message, folder: str, timeout: float = TIMEOUT_S) -> None:
    """Send a message.

    Args:
        folder: The directory in which a command runs.
        timeout: The maximum number of seconds without an answer.

    Raises:
        ChannelError: The channel did not accept it; the text says why, without secrets.
    """
    if channel.kind == "mail":
        _send_mail(channel.target, message, timeout)
    elif channel.kind == "command":
        _run_command(channel.target, message, folder)
    elif channel.kind == "apprise":
        _send_by_apprise(channel.target, message)
    else:
        _send_request(build_request(channel, message), timeout)


def _send_request(request: Request, timeout: float) -> None:
    import http.client  # deferred: slow to load
    import urllib.error
    import urllib.parse
    import urllib.request

    class NoRedirects(urllib.request.HTTPRedirectHandler):
        """A redirected POST would become a GET, which delivers nothing."""

        def redirect_request(self, *args: Any, **kwargs: Any) -> Optional[urllib.request.Request]:
            return None

    if not is_http_url(request.url):
        raise ChannelError("the URL is malformed")
    host = urllib.parse.urlsplit(request.url).hostname or "?"
    try:
        headers = {"User-Agent": "hpcrun", **request.headers}
        asked = urllib.request.Request(
            request.url, data=request.body, headers=headers, method=request.method
        )
        with urllib.request.build_opener(NoRedirects).open(asked, timeout=timeout) as answer:
            answer.read(1000)
    except urllib.error.HTTPError as error:
        # The answer may repeat the request, and with it the URL.
        raise ChannelError("{} answered HTTP {}".format(host, error.code))
    except urllib.error.URLError as error:
        raise ChannelError("{}: {}".format(host, _describe_error(error.reason)))
    except (OSError, http.client.HTTPException) as error:
        raise ChannelError("{}: {}".format(host, _describe_error(error)))
    except ValueError:  # its text has the URL
        raise ChannelError("the URL is malformed")


def _describe_error(error: Any) -> str:
    if isinstance(error, OSError) and error.strerror:
        return str(error.strerror)
    text = str(error) if isinstance(error, (OSError, str)) else type(error).__name__
    return "no answer" if "timed out" in text else text[:200]


def _send_mail(address: str, message: Message, timeout: float) -> None:
    import shutil  # deferred: slow to load
    from email.message import EmailMessage

    program = shutil.which("sendmail", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/lib")
    if program is None:
        raise ChannelError("no sendmail command on " + os.uname().nodename)
    mail = EmailMessage()
    mail["To"] = address or str(message.facts.get("user") or "")
    mail["Subject"] = "hpcrun: {} {}".format(message.facts.get("name") or "run", message.event)
    mail.set_content(message.text)
    if message.image:
        mail.add_attachment(message.image, maintype="image", subtype="png", filename="curve.png")
    _run([program, "-t", "-i"], bytes(mail), None, timeout)


def _run_command(command: str, message: Message, folder: str) -> None:
    names = ("run_id", "name", "state", "step", "loss")
    known = {name: message.facts.get(name) for name in names}
    known.update(event=message.event, text=message.text)
    own = {
        "HPCRUN_NOTIFY_" + name.upper(): "" if value is None else str(value)
        for name, value in known.items()
    }
    text = message.text.encode("utf-8", "replace") + b"\n"
    argv = ["bash", "-c", command, "notify", message.text]  # the text is $1, and the input
    environ = {**os.environ, **own}
    _run(argv, text, folder if os.path.isdir(folder) else None, COMMAND_TIMEOUT_S, environ)


def _run(
    argv: List[str],
    given: bytes,
    folder: Optional[str],
    timeout: float,
    environ: Optional[Mapping[str, str]] = None,
) -> None:
    import subprocess  # deferred: slow to load

    try:
        done = subprocess.run(
            argv,
            input=given,
            cwd=folder,
            env=environ,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired:
        raise ChannelError("not finished after {:.0f} s".format(timeout))
    except OSError as error:
        raise ChannelError("{}: {}".format(argv[0], error.strerror))
    if done.returncode:
        raise ChannelError("exit code {}".format(done.returncode))


def _send_by_apprise(url: str, message: Message) -> None:
    from importlib import import_module  # optional, and never available inside a job

    try:
        apprise = import_module("apprise")
    except ImportError:
        raise ChannelError("apprise is not installed (pip install 'hpcrun-slurm[notify]')")
    sender = apprise.Apprise()
    if not sender.add(url):
        raise ChannelError("apprise does not know this URL")
    if not sender.notify(body=message.text, title="hpcrun: " + message.event):
        raise ChannelError("apprise could not send it")
