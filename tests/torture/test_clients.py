"""Writers and readers get through to a server that fails at random, or get an error.

Beside the torture of the layer above: here the clients' own repetitions take part, over HTTP.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter

import pytest
from helpers.builder import add_array
from helpers.servers.http import misbehaving_server
from helpers.sessions.model import stored_contents

from icechunk_format.errors import CommitOutcomeUnknownError, ConflictError, StorageError
from icechunk_format.repository import Repository
from icechunk_format.repository.files import metadata_cache
from icechunk_format.storage.location import Location

WRITERS, COMMITS = 3, 2


@pytest.mark.parametrize("client", ["obstore", "fsspec"])
def test_writers_and_a_reader_over_an_unreliable_server(client):
    with misbehaving_server() as server:
        server.clock = time.time
        options = {"anon": "true", "endpoint_url": server.url, "max_retries": "4"}
        location = Location("s3://bucket/root", client=client, options=options)
        repository = Repository.create(location)
        session = repository.writable_session()
        add_array(session, "/a", (12,))
        session.commit("first")
        told: list[tuple[str, str, int, bytes]] = []
        wrong: list[BaseException] = []

        def write(number):
            handle = Repository.open(location)
            for turn in range(COMMITS):
                message, place = f"{number}-{turn}", number * COMMITS + turn
                payload = random.Random(message).randbytes(700)
                outcome = "failed"
                for _ in range(6):
                    try:
                        session = handle.writable_session()
                        session.set_chunk("/a", [place], payload)
                        session.commit(message)
                        outcome = "landed"
                    except CommitOutcomeUnknownError:
                        outcome = "unknown"
                    except (StorageError, ConflictError):
                        continue
                    except BaseException as error:
                        wrong.append(error)
                    break
                told.append((message, outcome, place, payload))

        def read():
            handle = Repository.open(location)
            for _ in range(6):
                try:
                    stored_contents(handle, handle.resolve())
                except StorageError:
                    continue
                except BaseException as error:
                    wrong.append(error)

        server.chance, server.rate = random.Random(5), 0.08
        threads = [threading.Thread(target=write, args=(n,)) for n in range(WRITERS)]
        threads.append(threading.Thread(target=read))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        server.rate = 0.0
        metadata_cache().clear()
        assert not wrong
        sound = Repository.open(location)
        found = Counter(info.message for info in sound.ancestry())
        contents = stored_contents(sound, sound.resolve())
        for message, outcome, place, payload in told:
            assert found[message] <= 1
            assert (found[message] == 1) >= (outcome == "landed")
            assert (found[message] == 0) >= (outcome == "failed")
            assert (contents.get(f"a/c/{place}") == payload) == (found[message] == 1)
        assert sum(found.values()) > WRITERS
