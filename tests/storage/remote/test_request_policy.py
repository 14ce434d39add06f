"""Requests are repeated by the rules: how often, how long, and which never."""

from __future__ import annotations

import pickle

import obstore.exceptions
import pytest

from icechunk_format.errors import InvalidInputError, NotFoundError, StorageError
from icechunk_format.storage.remote import request_policy
from icechunk_format.storage.remote.obstore.store import classify as classify_obstore
from icechunk_format.storage.remote.request_policy import (
    Backoff,
    Failure,
    FailureKind,
    RequestFailedError,
    Server,
    failure_of_code,
    failure_of_status,
    safe_reason,
)


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self):
        self.now = 0.0
        self.slept = []

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(request_policy, "time", clock)
    return clock


class Refusal(Exception):
    def __init__(self, kind):
        super().__init__("a text with a secret")
        self.kind = kind


def classify(error, secrets):
    return Failure(kind=error.kind, reason="as scripted") if isinstance(error, Refusal) else None


def server(backoff=None, **changes):
    backoff = backoff or Backoff()
    facts = {"root_url": "s3://b/x", "kind": "s3", **changes}
    return Server(classify=classify, backoff=backoff, **facts)


def scripted(*outcomes):
    """Return an operation that raises or returns one outcome after the other."""
    remaining = list(outcomes)

    def operation():
        outcome = remaining.pop(0)
        if isinstance(outcome, FailureKind):
            raise Refusal(outcome)
        return outcome

    operation.remaining = remaining
    return operation


@pytest.mark.parametrize(
    "kind", [FailureKind.BROKEN, FailureKind.THROTTLED, FailureKind.UNREACHABLE]
)
def test_what_may_pass_is_tried_again(clock, kind):
    operation = scripted(kind, kind, "done")
    assert server().attempt(operation) == "done"
    assert operation.remaining == []
    assert len(clock.slept) >= 2


@pytest.mark.parametrize(
    "kind",
    [FailureKind.MISSING, FailureKind.DENIED, FailureKind.CONDITION, FailureKind.REFUSED],
)
def test_a_refusal_is_final(clock, kind):
    operation = scripted(kind, "never")
    with pytest.raises(RequestFailedError) as caught:
        server().attempt(operation)
    assert caught.value.failure.kind is kind
    assert operation.remaining == ["never"]
    assert clock.slept == []


def test_a_conditional_write_is_repeated_only_if_nobody_looked_at_it(clock):
    throttled = scripted(FailureKind.THROTTLED, FailureKind.UNREACHABLE, "done")
    assert server().attempt(throttled, conditional=True) == "done"
    broken = scripted(FailureKind.BROKEN, "never")
    with pytest.raises(RequestFailedError):
        server().attempt(broken, conditional=True)
    assert broken.remaining == ["never"]


def test_patience_ends_by_count_and_by_time(clock):
    always = scripted(*[FailureKind.BROKEN] * 100)
    with pytest.raises(RequestFailedError):
        server(Backoff(max_retries=4)).attempt(always)
    assert len(clock.slept) == 4
    clock.slept.clear()
    clock.now = 0.0
    with pytest.raises(RequestFailedError):
        server(Backoff(max_retries=10_000, max_delay=5.0, give_up_after=60.0)).attempt(
            scripted(*[FailureKind.BROKEN] * 10_000)
        )
    assert clock.now <= 60.0


def test_delays_grow_up_to_a_limit_and_are_spread():
    backoff = Backoff(first_delay=0.1, max_delay=2.0)
    longest = [max(backoff.delay(n) for _ in range(300)) for n in range(12)]
    assert all(d <= min(2.0, 0.1 * 2**n) for n, d in enumerate(longest))
    assert longest[3] > 0.4
    assert len({backoff.delay(3) for _ in range(20)}) > 10
    assert backoff.delay(10_000) <= 2.0


def test_other_errors_pass_through(clock):
    def typed():
        raise InvalidInputError("ours")

    def a_bug():
        raise ZeroDivisionError

    with pytest.raises(InvalidInputError):
        server().attempt(typed)
    with pytest.raises(ZeroDivisionError):
        server().attempt(a_bug)


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (404, "NoSuchKey", FailureKind.MISSING),
        (404, "NoSuchBucket", FailureKind.MISSING_BUCKET),
        (404, "ContainerNotFound", FailureKind.MISSING_BUCKET),
        (401, "", FailureKind.DENIED),
        (403, "AccessDenied", FailureKind.DENIED),
        (403, "SlowDown", FailureKind.THROTTLED),
        (409, "ConditionalRequestConflict", FailureKind.CONDITION),
        (412, "PreconditionFailed", FailureKind.CONDITION),
        (416, "InvalidRange", FailureKind.RANGE),
        (429, "", FailureKind.THROTTLED),
        (503, "SlowDown", FailureKind.THROTTLED),
        (503, "ServiceUnavailable", FailureKind.BROKEN),
        (500, "InternalError", FailureKind.BROKEN),
        (408, "", FailureKind.BROKEN),
        (400, "InvalidArgument", FailureKind.REFUSED),
        (301, "PermanentRedirect", FailureKind.REFUSED),
    ],
)
def test_what_a_status_means(status, code, kind):
    failure = failure_of_status(status, code)
    assert failure.kind is kind
    assert failure.status == status


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("SlowDown", FailureKind.THROTTLED),
        ("InternalError", FailureKind.BROKEN),
        # One object of many: the others are tried without it, and without pauses.
        ("AccessDenied", FailureKind.REFUSED),
    ],
)
def test_what_a_code_within_a_response_means(code, kind):
    text = f"Server returned error response: <DeleteResult><Error><Code>{code}</Code></Error>"
    for failure in (
        failure_of_code(code),
        classify_obstore(obstore.exceptions.GenericError(text), ()),
    ):
        assert failure == Failure(kind=kind, reason=code)


@pytest.mark.parametrize(
    ("code", "advice"),
    [("ExpiredToken", "renew them"), ("RequestTimeTooSkewed", "the clock of this machine")],
)
def test_codes_with_an_advice_of_their_own(code, advice):
    failure = failure_of_status(400, code)
    assert advice in str(server().error(failure, "read", "repo"))


def test_reasons_are_short_and_clean():
    text = (
        "GET https://user:pw@host/x?X-Amz-Signature=abc&sig=def failed\n for AKIA1234 " + "x" * 999
    )
    reason = safe_reason(text, ["AKIA1234", ""])
    assert reason.startswith("GET https://host/x failed for *** xxx")
    assert len(reason) < 310


def error(kind, *, status=None, conditional=False, key="repo", **changes):
    failure = Failure(kind=kind, reason="HTTP something", status=status)
    return server(**changes).error(failure, "write", key, conditional=conditional)


def test_errors_name_the_thing_and_what_to_do():
    for made in (
        error(FailureKind.DENIED, status=403),
        error(FailureKind.THROTTLED),
        error(FailureKind.UNREACHABLE, endpoint="http://h:1"),
        error(FailureKind.REFUSED, status=400),
        error(FailureKind.BROKEN),
        error(FailureKind.BROKEN, conditional=True),
    ):
        assert isinstance(made, StorageError)
        last = str(made).splitlines()[-1]
        assert "'repo'" in last
        assert "s3://b/x" in last
        assert str(pickle.loads(pickle.dumps(made))) == str(made)
    assert "http://h:1" in str(error(FailureKind.UNREACHABLE, endpoint="http://h:1"))
    assert "storage.concurrency" in str(error(FailureKind.THROTTLED))


def test_only_broken_conditional_writes_are_unknown():
    unknown = {
        kind: error(kind, conditional=True).outcome_unknown
        for kind in FailureKind
        if kind not in (FailureKind.MISSING, FailureKind.MISSING_BUCKET)
    }
    assert [kind for kind, is_unknown in unknown.items() if is_unknown] == [FailureKind.BROKEN]
    assert not error(FailureKind.BROKEN, conditional=False).outcome_unknown


def test_what_is_missing_is_not_a_storage_error():
    assert error(FailureKind.MISSING).facts["kind"] == "object"
    assert isinstance(error(FailureKind.MISSING), NotFoundError)
    assert error(FailureKind.MISSING_BUCKET, key="").facts["kind"] == "bucket"
