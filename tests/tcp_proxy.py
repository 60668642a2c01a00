"""A TCP proxy between a client and a server that can inject network faults."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from types import TracebackType


class TcpProxy:
    """Forwards all data until a fault is injected; a context manager.

    >>> with TcpProxy(server.port) as proxy:  # doctest: +SKIP
    ...     client = swanlake.connect(proxy.url)
    ...     proxy.black_hole()
    """

    def __init__(self, port: int) -> None:
        self._server_port = port
        self._listener: socket.socket | None = None
        self._links: list[_Link] = []
        self._lock = threading.Lock()
        self._hanging = 0.0
        #: Seconds by which every chunk of data is delayed.
        self.delay = 0.0
        self.port = 0

    @property
    def url(self) -> str:
        return f"grpc://127.0.0.1:{self.port}"

    @property
    def connections(self) -> int:
        """The number of open connections."""
        with self._lock:
            return sum(1 for link in self._links if not link.is_closed)

    def start(self) -> TcpProxy:
        """Listens, after a stop on the same port as before."""
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        listener.listen(128)
        self.port = listener.getsockname()[1]
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        return self

    def stop(self) -> None:
        """Refuses new connections and resets the open ones."""
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        self.drop()

    def restart(self) -> None:
        self.stop()
        self.start()

    def drop(self) -> None:
        """Resets all connections; new ones are accepted."""
        with self._lock:
            links, self._links = self._links, []
        for link in links:
            link.reset()

    def hang(self, connections: float = float("inf")) -> None:
        """Accepts the next connections and forwards nothing."""
        self._hanging = connections

    def black_hole(self) -> None:
        """Silently stops forwarding on all open connections."""
        with self._lock:
            for link in self._links:
                link.flowing.clear()

    def heal(self) -> None:
        """Forwards everything again, including what was held back."""
        self._hanging = 0.0
        with self._lock:
            for link in self._links:
                link.flowing.set()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                accepted, _ = listener.accept()
                link = _Link(self, accepted, self._server_port)
                with self._lock:
                    self._links.append(link)
                    if self._hanging > 0:
                        self._hanging -= 1
                        link.flowing.clear()
                link.start()

    def __enter__(self) -> TcpProxy:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


class _Link:
    """One client's connection and the server's end of it."""

    def __init__(self, proxy: TcpProxy, accepted: socket.socket, server_port: int) -> None:
        self._proxy = proxy
        self._client = accepted
        self._server = socket.socket()
        self._server_port = server_port
        self.flowing = threading.Event()
        self.flowing.set()
        self.is_closed = False

    def start(self) -> None:
        threading.Thread(target=self._run, daemon=True).start()

    def reset(self) -> None:
        self.is_closed = True
        self.flowing.set()
        for end in (self._client, self._server):
            # A reset, so that the peer notices at once.
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _run(self) -> None:
        try:
            self._server.connect(("127.0.0.1", self._server_port))
        except OSError:
            self.reset()
            return
        back = threading.Thread(target=self._pump, args=(self._server, self._client), daemon=True)
        back.start()
        self._pump(self._client, self._server)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self.flowing.wait()
                if self._proxy.delay:
                    threading.Event().wait(self._proxy.delay)
                sink.sendall(data)
        self.reset()
