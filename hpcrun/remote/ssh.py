"""Transport to a cluster over ssh; each operation is one script and one round trip."""

from __future__ import annotations

import base64
import contextlib
import os
import re
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from signal import SIGINT
from typing import Any

from msgspec import structs

from hpcrun.errors import HpcrunError, InputError, OutOfReach
from hpcrun.remote import far
from hpcrun.remote.clients import open_connection
from hpcrun.remote.connection import (
    RESET,
    Connection,
    Prompts,
    Reply,
    SshSettings,
    listen_on_loopback,
)
from hpcrun.remote.feed import MOST_RUNS, Feed
from hpcrun.remote.mirror import (
    Mirror,
    MirrorMismatch,
    Outputs,
    Receiver,
    UploadStream,
    check_size,
    code_files,
    find_nearest_tree,
)
from hpcrun.remote.queries import in_order, parse_answers, query_script
from hpcrun.remote.transport import (
    TRASH,
    Answers,
    Connect,
    Query,
    Result,
    ShowProgress,
    no_progress_bar,
)
from hpcrun.signals import defer_signals

# Delays before a broken round trip is repeated, in seconds.
PAUSES = (0.5, 2.0, 5.0)
# Timeout without data while files are sent, unpacked or removed, in seconds.
_LONG = 600.0
# A failure within this many seconds is retried once at once.
_SOON = 3.0


class SshTransport:
    """Runs commands and stores run folders over one connection; the local folders are a mirror.

    Args:
        env: Variables that are added to the login's environment.
        runs_dir: The folder of the runs on the cluster, as the profile writes it.
        deadline: As for LocalTransport.
        waiting: As for LocalTransport.
        bar: Shows the progress of uploads.
    """

    def __init__(
        self,
        env: Mapping[str, str],
        *,
        connection: Connection,
        transfers: Connection | None = None,
        mirror: Path,
        runs_dir: str,
        settings: SshSettings | None = None,
        feed: Feed | None = None,
        deadline: float | None = None,
        waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
        bar: Callable[[str, str], AbstractContextManager[ShowProgress]] = no_progress_bar,
    ) -> None:
        self.env = dict(env)
        self.connection = connection
        self.transfers = transfers or connection
        self.mirror = Mirror(mirror)
        self.runs_dir = runs_dir
        self.feed = feed or Feed(connection, self.mirror, runs_dir)
        self.settings = settings or SshSettings(host=connection.host)
        self.deadline = deadline
        self.waiting = waiting
        self.bar = bar

    # ---- commands

    def open(self) -> None:
        """Connect; see Transport."""
        with self.waiting():
            self.connection.open()

    def run(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = 60,
        stdin: str | None = None,
    ) -> Result:
        """Run a command to its end; see Transport."""
        # run_queries() asks by a script for the environment that jobs get there
        is_slurm = env is None and argv[0] != "bash"
        # time zone of the command's output
        zone = f"export TZ={far.quote(local_timezone())}\n" if is_slurm else ""
        script = self._build_environment(env) + zone + far.build_command(argv, cwd)
        data = (stdin or "").encode("utf-8", "surrogateescape")
        reply = self._run_in_time(argv[0], script, stdin=data, timeout=timeout)
        return self._build_result(argv, reply.exit_code, reply.stdout, reply.stderr)

    def run_queries(self, queries: Iterable[Query[Any]]) -> Answers:
        """Answer queries by one script; see Transport."""
        asked, mark = in_order(queries), os.urandom(16).hex()
        if not asked:
            return Answers({})
        script = query_script(asked, mark)
        try:
            result = self.run(["bash", "-s"], stdin=script)
        except OutOfReach as lost:
            if not lost.maybe_done:
                raise
            result = self.run(["bash", "-s"], stdin=script)  # queries are idempotent
        try:
            return parse_answers(asked, mark, result.stdout)
        except OutOfReach as error:
            raise OutOfReach(f"{self.connection.host}: {error.message}") from error

    def _build_environment(self, env: Mapping[str, str] | None) -> str:
        if env is not None:
            return far.build_environment(env)
        exports = (f"export {name}={far.quote(value)}\n" for name, value in self.env.items())
        return far.UNFILTERED + "".join(exports)

    def _build_result(self, argv: Sequence[str], code: int, stdout: bytes, stderr: str) -> Result:
        if code == 127 and not stdout:
            raise OutOfReach(
                f"{argv[0]}: command not found on {self.connection.host}",
                fix="check that this is a login node; slurm_path: in the profile names the "
                "folder of Slurm's commands, and login_shell: true loads the login profile",
            )
        return Result(
            list(argv),
            code,
            stdout.decode("utf-8", "surrogateescape"),
            _remove_control_characters(stderr),
        )

    def _run_in_time(
        self,
        what: str,
        script: str,
        *,
        timeout: float,
        over: Connection | None = None,
        **options: Any,
    ) -> Reply:
        over = over or self.connection
        if self.deadline is not None:
            timeout = min(timeout, self.deadline - time.monotonic())
            if timeout <= 0:
                raise OutOfReach(f"deadline reached before {what} ran", maybe_done=True)
        begun = time.monotonic()
        with self.waiting():
            try:
                return over.run(script, timeout=timeout, **options)
            except MirrorMismatch:  # the request itself was wrong, too
                raise
            except OutOfReach as error:
                is_late = time.monotonic() - begun > _SOON
                if error.maybe_done or error.is_final or is_late:
                    raise
            # Nothing ran: an old connection may have broken, so connect again.
            return over.run(script, timeout=timeout, **options)

    def wrap_command(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, terminal: bool = False
    ) -> tuple[list[str], dict[str, str]]:
        """Return a call of the system's ssh, which uses an open connection of its own kind.

        See Transport.
        """
        script = f"{RESET}\n{self._build_environment(None)}{far.build_command(argv, None)}"
        if self.settings.slurm_path:
            script = f"PATH={far.quote(self.settings.slurm_path)}:$PATH\n{script}"
        # One word that all login shells parse alike, csh and fish included.
        text = base64.b64encode(script.encode("utf-8", "surrogateescape")).decode()
        login = "-l " if self.settings.login_shell else ""
        word = f"exec bash --norc {login}-c 'eval \"`echo {text}|base64 -d`\"'"
        options = [*self.connection.share_options(), "-t" if terminal else "-T"]
        return ["ssh", *options, "--", self.connection.host, word], dict(os.environ)

    def forward_port(self, host: str, port: int, helper: Sequence[str] = ()) -> tuple[str, int]:
        """Forward a port; see Transport."""
        if not helper:
            return "127.0.0.1", self.connection.forward_port(host, port)
        listener = listen_on_loopback(port)
        script = self._build_environment(None) + far.build_command(helper, None)

        def bridge(here: socket.socket) -> None:
            with contextlib.suppress(OutOfReach), here:  # the next connection may succeed
                self.connection.bridge_socket(script, here)

        def serve() -> None:
            while True:
                threading.Thread(target=bridge, args=listener.accept()[:1], daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        return "127.0.0.1", int(listener.getsockname()[1])

    # ---- downloads

    def run_script(self, script: str, on_output: Callable[[bytes], None]) -> Result:
        """Run a script on the transfer host; see Transport."""
        reply = self._run_in_time(
            "fetch", script, timeout=60, over=self.transfers, on_output=on_output
        )
        return self._build_result(["fetch"], reply.exit_code, b"", reply.stderr)

    def fetch_changes(
        self, run_dirs: Iterable[Path], *, whole: bool = False, follow: bool = False
    ) -> None:
        """Fetch changes; see Transport."""
        own = [path for path in run_dirs if path.is_relative_to(self.mirror.folder)]
        runs = [path.name for path in own if path != self.mirror.folder]
        names = len(runs) < len(own)
        if not own:
            return
        if follow and not names and len(runs) <= MOST_RUNS and not self.connection.is_full:
            self.feed.follow_runs(runs)
            return
        if whole:
            self.feed.stop()
        elif not names and self.feed.wait_for_changes(runs, timeout=60):
            return
        try:
            self._fetch_once(runs, names=names, whole=whole)
        except MirrorMismatch:
            self._fetch_once(runs, names=names, whole=whole)
        except OSError as error:
            raise self.mirror.not_written(error) from error

    def _fetch_once(self, runs: Sequence[str], *, names: bool, whole: bool) -> None:
        script = self.mirror.build_script(self.runs_dir, runs, names=names, whole=whole)
        host = self.connection.host
        receiver = Receiver(self.mirror, runs, names=names, whole=whole, host=host)
        try:
            self._run_in_time("refresh", script, timeout=60, on_output=receiver.receive)
            if not receiver.rounds:
                raise OutOfReach(f"{self.connection.host}: truncated response")
        finally:
            receiver.close()
        self.mirror.remove_gone(receiver.gone)

    def copy_outputs(
        self, paths: Sequence[str], *, whole: bool = True
    ) -> tuple[list[Path], dict[str, str]]:
        """Copy files; see Transport."""
        outputs = Outputs(self.mirror.folder.parent / "outputs")
        places = [outputs.copy_path(path) for path in paths]
        if not paths:
            return places, {}
        for is_last in (False, True):
            receiver = outputs.build_receiver(self.connection.host, whole=whole)
            script = outputs.build_script(paths, whole=whole)
            try:
                reply = self._run_in_time("copy", script, timeout=60, on_output=receiver.receive)
                if not receiver.rounds:
                    raise OutOfReach(f"{self.connection.host}: truncated response")
                return places, outputs.remove_unreadable(paths, reply.stderr)
            except MirrorMismatch:
                if is_last:
                    raise
            except OSError as error:
                raise self.mirror.not_written(error) from error
            finally:
                receiver.close()
        raise AssertionError

    # ---- uploads

    def submit_directories(
        self,
        run_dirs: Sequence[Path],
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        timeout: float = 60,
    ) -> Result:
        """Send folders and run a command in the first, exactly once despite broken connections.

        Of the copy of the code only changes relative to an earlier copy are sent.
        """
        code = run_dirs[0] / "code"
        tree, files = code_files(code) if code.is_dir() else ("", {})
        known = self.mirror.list_trees()
        base = tree if tree in known else find_nearest_tree(files, known)
        answer = self._submit_once(run_dirs, argv, env, timeout, tree=tree, files=files, base=base)
        if answer is None:  # the copy that the changes apply to was removed there
            answer = self._submit_once(
                run_dirs, argv, env, timeout, tree=tree, files=files, base=""
            )
        if answer is None and self.transfers is not self.connection:
            raise InputError(
                f"{self.transfers.host} and {self.connection.host} do not share {self.runs_dir}: "
                "files sent to the first are not visible on the second",
                fix="set transfer_host: to a host with the same file systems, or remove it",
            )
        if answer is None:
            raise OutOfReach(f"{self.connection.host}: the code could not be unpacked")
        if tree:
            self.mirror.keep_tree(tree, files)
        return answer

    def _submit_once(
        self,
        run_dirs: Sequence[Path],
        argv: Sequence[str],
        env: Mapping[str, str],
        timeout: float,
        *,
        tree: str,
        files: Mapping[str, str],
        base: str,
    ) -> Result | None:
        script = far.build_preamble(self.runs_dir, names=[path.name for path in run_dirs])
        script += f"tree={tree} base={base} incoming={far.INCOMING}{os.urandom(8).hex()}\n"
        script += f"run_sbatch() {{\n{far.build_sbatch_call(argv, env)}}}\n"
        brings = self.transfers is not self.connection and bool(tree) and tree != base
        script += f"brought={int(brings) or ''}\n"
        with UploadStream() as stream:
            for path in run_dirs:
                stream.add_folder(f"runs/{path.name}")
                for inner in sorted(path.iterdir()):
                    if inner.name not in ("code", "cache"):
                        stream.add(inner, f"runs/{path.name}/{inner.name}")
            if tree and tree != base:
                before = self.mirror.list_trees().get(base, {})
                self._add_code(stream, run_dirs[0] / "code", files, before)
            if brings:
                self._upload_to_transfer_host(script, env, stream, run_dirs[0].name)
            pieces = None if brings else stream
            reply = self._run_until_answered(
                argv[0], script + far.DELIVER, pieces, max(timeout, _LONG)
            )
        if reply.exit_code == far.NO_CODE:
            return None
        head, _, out = reply.stdout.partition(b"\n")
        if head.startswith(b"A "):
            with contextlib.suppress(ValueError):
                return self._build_result(argv, int(head[2:]), out, reply.stderr)
        if head == b"unknown":
            raise OutOfReach(
                f"{self.connection.host}: the run exists there, but the response of {argv[0]} is "
                "missing",
                maybe_done=True,
            )
        raise self._write_error(reply, run_dirs[0].name)

    def _upload_to_transfer_host(
        self, script: str, env: Mapping[str, str], stream: UploadStream, name: str
    ) -> None:
        """Unpack a stream on the transfer host, where nothing else runs."""
        # The transfer host may lack the variables in the profile's paths.
        named = {"HOME", *re.findall(r"\$\{?(\w+)", self.runs_dir)} & env.keys()
        known = "".join(f"export {name}={far.quote(env[name])}\n" for name in sorted(named))
        to = script.partition("run_sbatch() {")[0]
        reply = self._run_until_answered(
            "transfer", known + to + far.BRING, stream, _LONG, self.transfers
        )
        if reply.exit_code != 0:
            raise self._write_error(reply, name, self.transfers.host)

    def _add_code(
        self, stream: UploadStream, code: Path, files: Mapping[str, str], before: Mapping[str, str]
    ) -> None:
        """Add the files changed since a copy of code on the cluster, and the removed names."""
        changed = [name for name, what in files.items() if before.get(name) != what]
        check_size(code, [name for name in changed if not files[name].startswith("->")])
        for name in changed:
            stream.add(code / name, f"code/{name}")
        gone = "".join(f"{name}\0" for name in before if before[name] != files.get(name))
        stream.add_bytes("gone", os.fsencode(gone))

    def _run_until_answered(
        self,
        what: str,
        script: str,
        stream: UploadStream | None,
        timeout: float,
        over: Connection | None = None,
    ) -> Reply:
        """Run an idempotent script, and retry it until it answers or the delays are used up.

        Ctrl-C aborts it only before the whole script was sent for the first time: later it may run.
        """
        was_sent = False
        with self.bar("sending", "MB") as show, defer_signals() as signals:
            for pause in (*PAUSES, None):
                try:
                    stop = () if was_sent else signals
                    stdin = _report_progress(stream, show, stop) if stream is not None else b""
                    return self._run_in_time(what, script, stdin=stdin, timeout=timeout, over=over)
                except OutOfReach as error:
                    was_sent = was_sent or error.maybe_done
                    if not was_sent:
                        raise
                    if pause is None or error.is_final:
                        raise OutOfReach(error.message, fix=error.fix, maybe_done=True) from error
                    time.sleep(pause)
        raise AssertionError

    def upload_files(self, paths: Sequence[Path]) -> None:
        """Copy files to the cluster, and remove there what is missing here; see Transport."""
        if not paths:
            return
        there: list[str] = []
        gone: list[str] = []
        with UploadStream() as stream:
            for path in paths:
                name = str(path.relative_to(self.mirror.folder))
                if path.is_file():
                    stream.add(path, f"runs/{name}")
                    there.append(name)
                else:
                    gone.append(name)
            script = far.build_preamble(self.runs_dir, names=there, gone=gone)
            script += f"incoming={far.INCOMING}{os.urandom(8).hex()}\n{far.SEND}"
            reply = self._run_until_answered("send", script, stream, _LONG)
        if reply.exit_code != 0:
            raise self._write_error(reply, paths[0].name)

    def remove_directories(self, run_dirs: Sequence[Path]) -> None:
        """Remove folders on the cluster, then in the mirror; see Transport."""
        names = [path.name for path in run_dirs]
        trash = [f"{TRASH}{os.urandom(8).hex()}" for _ in names]
        script = far.build_preamble(self.runs_dir, names=names, trash=trash) + far.REMOVE
        reply = self._run_in_time("remove", script, timeout=_LONG)
        if reply.exit_code != 0:
            raise OSError(reply.exit_code, _last_line(reply.stderr), names[0])
        for path in run_dirs:
            shutil.rmtree(path, ignore_errors=True)

    def _write_error(self, reply: Reply, name: str, host: str | None = None) -> HpcrunError:
        where = f"{host or self.connection.host}: {self.runs_dir}"
        # messages of gzip and tar
        is_short = re.search("unexpected end of file|Unexpected EOF", reply.stderr)
        if reply.exit_code == far.CUT_SHORT or is_short:
            return OutOfReach(
                f"{where}: {name} arrived incomplete",
                fix="if that host forbids transfers, set transfer_host: to one that allows them",
            )
        why = re.search(r"No space left on device|Disk quota exceeded", reply.stderr)
        # Otherwise the first line: tar's last line only reports a failure.
        said = (
            why[0] if why else _remove_control_characters(reply.stderr).strip().partition("\n")[0]
        )
        return HpcrunError(
            f"{where}: {name} cannot be written: {said or 'no message'}",
            fix="free some space there, or set runs_dir in the profile to a folder that you can "
            "write to and that all nodes can see",
        )


def _report_progress(
    stream: UploadStream, show: ShowProgress, signals: Sequence[int]
) -> Iterator[bytes]:
    """Yield a stream's pieces, and show how much of it is sent; abort after Ctrl-C."""
    total, sent = stream.complete(), 0
    for piece in stream.pieces():
        if SIGINT in signals:
            raise KeyboardInterrupt
        yield piece
        sent += len(piece)
        show(sent / 1e6, total / 1e6)


def local_timezone() -> str:
    """Return this machine's UTC offset in the syntax of TZ, where POSIX counts westward.

    Slurm's commands print local times; they should be those of the reader.
    """
    offset = time.strftime("%z")
    return f"<{offset}>{'-' if offset[0] == '+' else '+'}{offset[1:3]}:{offset[3:]}"


def _remove_control_characters(text: str) -> str:
    """Replace control characters, which could steer a terminal, in a remote program's output."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", "?", text)


def _last_line(stderr: str) -> str:
    lines = [line for line in _remove_control_characters(stderr).splitlines() if line.strip()]
    return lines[-1] if lines else "no message"


class _NoPrompts:
    """Fails on every prompt: there is no terminal."""

    def secret(self, question: str, *, echo: bool = False) -> str:
        raise OutOfReach(f"{question} cannot prompt: no terminal")

    def tell(self, text: str) -> None:
        pass


NO_PROMPTS = _NoPrompts()


def read_ssh_settings(profile: Any) -> SshSettings:
    """Return the ssh settings of a profile."""
    return SshSettings(**{key: getattr(profile, key) for key in SshSettings.__struct_fields__})


def build_ssh_connect(
    profile: Any, mirror: Path, ask: Prompts | None = None, *, system_ssh: bool = False
) -> Connect:
    """Return a factory of transports to a profile's host, which share one connection.

    ``system_ssh``: Connect by the system's ssh whatever the profile names, for this command only.
    """
    settings = read_ssh_settings(profile)
    keeps = settings.ssh == "openssh"
    if system_ssh:
        settings = structs.replace(settings, ssh="openssh")
    connection = open_connection(settings, ask or NO_PROMPTS, keeps=keeps)
    transfers = connection
    if settings.transfer_host:
        own = structs.replace(settings, host=settings.transfer_host)
        transfers = open_connection(own, ask or NO_PROMPTS, keeps=keeps)
    feed = Feed(connection, Mirror(mirror), profile.runs_dir)

    def connect(env: Mapping[str, str], **options: Any) -> SshTransport:
        options |= {"mirror": mirror, "runs_dir": profile.runs_dir, "settings": settings}
        options["feed"] = feed
        return SshTransport(env, connection=connection, transfers=transfers, **options)

    return connect
