"""What a server checks and prepares before it creates or opens the lake."""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import time
from pathlib import Path
from urllib.parse import urlsplit

from swanlake._internal.addresses import is_loopback
from swanlake._internal.waiting import polling, wait
from swanlake.config import Settings
from swanlake.errors import AddressInUse, ConfigError, HomeInUse

log = logging.getLogger("swanlake.server")

_SCHEMES = ("grpc", "grpc+tls")
#: What SwanLake stores in the home directory, and what a new volume contains.
_LOCK_FILE = "server.lock"
_HOME_ENTRIES = {
    *("catalogs", "data", "logs", "queue", "tmp", "tokens", "status-history.json", "lost+found"),
    _LOCK_FILE,
}
#: A server that has just been stopped may still be closing its files.
_LOCK_SECONDS = 2.0


def check_exposure(settings: Settings, host: str, *, has_tls: bool) -> None:
    """Raises ConfigError if other machines could use the server, or read what it sends."""
    if settings.insecure or is_loopback(host):
        return
    missing = []
    if settings.auth == "none":
        missing.append("authentication (--auth)")
    if not has_tls:
        missing.append("TLS (--tls-cert, --tls-key)")
    if missing:
        raise ConfigError(
            f"Other machines can reach {host}, and the server has no "
            f"{' and no '.join(missing)}. Set it, listen on 127.0.0.1, or start with --insecure if "
            "a proxy or a private network protects the server."
        )


def check_advertised_url(url: str) -> None:
    """Raises ConfigError unless the URL is empty or complete."""
    try:
        parts = urlsplit(url)
        is_complete = parts.scheme in _SCHEMES and bool(parts.hostname and parts.port)
    except ValueError:
        is_complete = False
    if url and not is_complete:
        raise ConfigError(
            f"advertised_url: {url!r} is not a URL at which other machines reach this server, such "
            "as grpc://host:port or grpc+tls://host:port."
        )


def check_status_url(url: str) -> None:
    """Raises ConfigError unless the URL is empty, or an address without a path."""
    try:
        parts = urlsplit(url)
        is_complete = parts.scheme in ("http", "https") and bool(parts.hostname)
        is_complete = is_complete and not parts.path.strip("/")
    except ValueError:
        is_complete = False
    if url and not is_complete:
        raise ConfigError(
            f"status_url: {url!r} is not the URL of a host, such as https://swanlake.example.org."
        )


def check_address(settings: Settings) -> None:
    """Raises AddressInUse if the server cannot listen."""
    try:
        _listen(settings.host, settings.port).close()
    except OSError as refused:
        raise address_in_use(settings) from refused
    if settings.status == "on" and (listener := listen_for_status(settings)):
        listener.close()


def address_in_use(settings: Settings) -> AddressInUse:
    """The error for an address that the server cannot listen on."""
    return AddressInUse(
        f"Cannot listen on {settings.host}:{settings.port}: another process uses it, or the "
        "address does not belong to this machine. Choose another with --port or --host."
    )


def listen_for_status(settings: Settings) -> socket.socket | None:
    """A socket for the status server; None if it is off, or may be and the port is taken."""
    if settings.status == "off":
        return None
    try:
        return _listen(settings.status_host, settings.status_port)
    except OSError as refused:
        sentence = (
            f"Cannot listen on {settings.status_host}:{settings.status_port} for the console and "
            "health checks: another process uses it, or the address does not belong to this "
            "machine. Choose another with --status-port or --status-host, or --status off."
        )
        if settings.status == "on":
            raise AddressInUse(sentence) from refused
        log.warning("%s", sentence)
        return None


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket; raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family)


class HomeLock:
    """The home directory belongs to one server: from ``lock_home`` until it is closed."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    def close(self) -> None:
        """Gives the directory up; idempotent."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def lock_home(home: Path) -> HomeLock:
    """Takes the home directory for this process; raises HomeInUse if another server has it."""
    try:
        descriptor = os.open(home / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:  # what cannot be used at all fails later
        return HomeLock(None)

    def is_taken() -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    try:
        is_ours = wait(polling(is_taken), deadline=time.monotonic() + _LOCK_SECONDS)
    except OSError as unsupported:  # some network file systems have no locks
        log.warning("the home directory %s cannot be locked: %s", home, unsupported)
        is_ours = True
    if not is_ours:
        pid = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
        os.close(descriptor)
        raise HomeInUse(
            f"The home directory {home.absolute()} belongs to a server that runs (process {pid}). "
            "Stop it, or choose another directory with --home."
        )
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return HomeLock(descriptor)


def make_private(home: Path) -> None:
    """Creates the home directory, and takes other users' access to it away.

    A directory that other programs use too, such as /tmp, is left as it is.
    """
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not home.stat().st_mode & 0o077:
            return
        foreign = sorted(set(os.listdir(home)) - _HOME_ENTRIES)
        if foreign:
            log.warning(
                "other users can read the home directory %s; it is not made private, because it "
                "contains more than SwanLake's files: %s",
                home.absolute(),
                foreign[0],
            )
            return
        home.chmod(0o700)
    except OSError as refused:
        # A mounted volume may belong to another user. What cannot be used at all fails later.
        log.warning("the home directory cannot be made private: %s", refused)
