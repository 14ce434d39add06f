"""Delays every byte to and from an S3 server, as a proxy that simulates a distant store.

Each direction of a connection is a queue of bytes with times. The delay costs latency and no
bandwidth. ``delay_s`` is the delay of a round trip, half of it in each direction.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PIECE = 1 << 20
# Bytes that are due within this time are sent together, to save processor time.
_TOGETHER_S = 0.001


@contextlib.contextmanager
def delayed(host: str, port: int, delay_s: float) -> Iterator[int]:
    """Listen on a free local port until the end of the block, and yield the port."""
    ready: Future[tuple[int, Callable[[], object]]] = Future()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there_reader, there_writer = await asyncio.open_connection(host, port, limit=_PIECE)
        except OSError:
            writer.close()
            return
        # At the end of the block, open connections are closed without an error.
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await asyncio.gather(
                _pass_on(reader, there_writer, delay_s / 2),
                _pass_on(there_reader, writer, delay_s / 2),
            )

    async def serve() -> None:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(connect, "127.0.0.1", 0, limit=_PIECE)
        ready.set_result(
            (server.sockets[0].getsockname()[1], lambda: loop.call_soon_threadsafe(stop.set))
        )
        await stop.wait()
        server.close()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    own_port, end = ready.result(timeout=10)
    try:
        yield own_port
    finally:
        end()
        thread.join()


@contextlib.contextmanager
def delayed_apart(host: str, port: int, delay_s: float) -> Iterator[int]:
    """Run `delayed` in its own process, so that it does not slow down this process."""
    command = [sys.executable, __file__, host, str(port), str(delay_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as wire:
        assert wire.stdout is not None
        try:
            yield int(wire.stdout.readline())
        finally:
            wire.kill()


async def _pass_on(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float
) -> None:
    clock = asyncio.get_running_loop().time
    on_the_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def take() -> None:
        while piece := await reader.read(_PIECE):
            on_the_way.put_nowait((clock() + delay_s, piece))
        on_the_way.put_nowait((clock() + delay_s, b""))

    taking = asyncio.ensure_future(take())
    try:
        while True:
            due, piece = await on_the_way.get()
            await asyncio.sleep(max(0.0, due - clock()))
            pieces = [piece]
            while pieces[-1] and not on_the_way.empty():
                due, piece = on_the_way.get_nowait()
                if due > clock() + _TOGETHER_S:
                    writer.write(b"".join(pieces))
                    await asyncio.sleep(max(0.0, due - clock()))
                    pieces = []
                pieces.append(piece)
            writer.write(b"".join(pieces))
            if not pieces[-1]:
                break
            await writer.drain()
    finally:
        taking.cancel()
        writer.close()


if __name__ == "__main__":
    with delayed(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])) as own_port:
        print(own_port, flush=True)
        while True:
            time.sleep(60)
