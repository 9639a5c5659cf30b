"""A store that is no local folder: an FTP server in a thread, as much of it as fsspec's client asks for."""

import gc
import os
import shutil
import socket
import socketserver
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class Session(socketserver.StreamRequestHandler):
    """One client: a command a line."""

    server: "Server"
    data: socket.socket
    offset = 0

    def say(self, text: str) -> None:
        self.wfile.write(f"{text}\r\n".encode())

    def handle(self) -> None:
        self.say("220 ready")
        while line := self.rfile.readline():
            word, _, rest = line.decode().strip().partition(" ")
            act: Callable[[Path], None] | None = getattr(self, f"do_{word.lower()}", None)
            if act is None:
                self.say("502 not here")
                continue
            self.rest = rest
            try:
                act(self.server.folder / rest.strip("/"))
            except OSError as error:
                self.say(f"550 {error.strerror}")
            if word == "QUIT":
                return

    def do_user(self, _: Path) -> None:
        self.say("230 welcome")

    do_type = do_abor = lambda self, _: self.say("200 fine")

    def do_quit(self, _: Path) -> None:
        self.say("221 bye")

    def do_pasv(self, _: Path) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        port = self.listener.getsockname()[1]
        self.say(f"227 entering passive mode (127,0,0,1,{port >> 8},{port & 255})")

    def do_rest(self, _: Path) -> None:
        self.offset = int(self.rest)
        self.say("350 go on")

    @contextmanager
    def transfer(self) -> Iterator[socket.socket]:
        self.say("150 begins")
        connection, _ = self.listener.accept()
        self.listener.close()
        with connection, suppress(ConnectionError):  # a client that has read enough leaves
            yield connection
        self.say("226 done")

    def do_mlsd(self, path: Path) -> None:
        if not path.is_dir():
            raise FileNotFoundError(2, "no such folder")
        with self.transfer() as connection:
            for entry in sorted(path.iterdir()):
                kind = "dir" if entry.is_dir() else "file"
                facts = f"type={kind};size={entry.stat().st_size}; {entry.name}\r\n"
                connection.sendall(facts.encode())

    def do_retr(self, path: Path) -> None:
        data, self.offset = path.read_bytes()[self.offset :], 0
        with self.transfer() as connection:
            connection.sendall(data)

    def do_stor(self, path: Path) -> None:
        with open(path, "r+b" if self.offset else "wb") as file, self.transfer() as connection:
            file.seek(self.offset)
            self.offset = 0
            while block := connection.recv(1 << 16):
                file.write(block)

    def do_mkd(self, path: Path) -> None:
        path.mkdir()
        self.say(f'257 "{self.rest}"')

    def do_rmd(self, path: Path) -> None:
        path.rmdir()
        self.say("250 gone")

    def do_dele(self, path: Path) -> None:
        os.unlink(path)
        self.say("250 gone")


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = allow_reuse_address = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        super().__init__(("127.0.0.1", 0), Session)

    @property
    def url(self) -> str:
        return f"ftp://127.0.0.1:{self.server_address[1]}"


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    """A server whose store is `folder`; what it holds goes with it."""
    folder.mkdir()
    with Server(folder) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield server
        server.shutdown()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()  # the client's connections, before another test meets them
    shutil.rmtree(folder)
