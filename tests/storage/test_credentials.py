"""Credentials under names: settings, functions that renew them, the environment, and pickles."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta

import pytest
from helpers.raised import raises

from icechunk_format.errors import InvalidInputError, StorageError
from icechunk_format.options.keywords import parse_arguments
from icechunk_format.options.location import access_of, location_of
from icechunk_format.storage.credentials import Credentials, Profiles, with_credentials

SECRET = "canary-4711"
S3 = {"key": "AKIA", "secret": SECRET}


def settings(options, url="s3://bucket/r", call="read"):
    return dict(location_of(parse_arguments(url, options, call)).options)


def test_settings_come_from_a_mapping_in_any_spelling():
    one = Credentials(
        "weather", {"storage.key": "AKIA", "aws_secret_access_key": SECRET, "x": None}
    )
    found = dict(with_credentials(one, {"region": "eu", "anon": "false"}, "s3://bucket/r"))
    assert found == {"key": "AKIA", "secret": SECRET, "region": "eu", "anon": "false"}
    assert dict(Credentials("a", {"anon": True, "timeout": 5}).settings()) == {
        "anon": "true",
        "timeout": "5",
    }


def test_given_settings_replace_those_of_the_credentials_but_not_halves_of_a_pair():
    one = Credentials("weather", {**S3, "region_name": "us-east-1"})
    assert settings({"credentials": one, "storage.region": "eu"})["region"] == "eu"
    for name in ("storage.secret", "storage.aws_access_key_id", "storage_token"):
        with raises(InvalidInputError, option="credentials") as caught:
            settings({"credentials": one, name: SECRET})
        assert "exclude one another" in str(caught.value)
        assert SECRET not in str(caught.value)


def test_a_setting_of_another_storage_is_named():
    with pytest.raises(InvalidInputError, match=r"storage.key is not an option of local"):
        settings({"credentials": Credentials("weather", S3)}, "/folder")


def test_virtual_chunks_have_credentials_of_their_own():
    one = Credentials("archive", S3)
    request = parse_arguments("/folder", {"virtual_credentials": one}, "read")
    assert dict(location_of(request).options) == {}
    assert dict(access_of(request).options) == S3
    given = {"virtual_credentials": one, "virtual_storage_secret": "x"}
    with raises(InvalidInputError, option="virtual.credentials"):
        access_of(parse_arguments("/folder", given, "read"))


def test_the_environment_is_read_at_each_use(monkeypatch):
    with raises(InvalidInputError, option="credentials", nearest=None) as caught:
        settings({"credentials": "weather-eu"})
    assert "ICECHUNK_CREDENTIALS__WEATHER_EU__*" in str(caught.value)
    monkeypatch.setenv("ICECHUNK_CREDENTIALS__WEATHER_EU__KEY", "AKIA")
    monkeypatch.setenv("ICECHUNK_CREDENTIALS__WEATHER_EU__SECRET", SECRET)
    assert settings({"credentials": "weather-eu"}) == S3
    monkeypatch.setenv("ICECHUNK_CREDENTIALS__WEATHER_EU__SECRET", "new")
    assert settings({"credentials": "weather-eu"})["secret"] == "new"
    with raises(InvalidInputError, option="credentials", nearest="weather_eu"):
        settings({"credentials": "weather_ue"})


def test_profiles_precede_the_environment(monkeypatch):
    monkeypatch.setenv("ICECHUNK_CREDENTIALS__WEATHER__SECRET", "other")
    monkeypatch.setenv("ICECHUNK_CREDENTIALS__OCEAN__SECRET", "ocean")
    profiles = Profiles({"weather": S3})
    assert dict(profiles.named("weather").settings()) == S3
    assert dict(profiles.named("ocean").settings()) == {"secret": "ocean"}
    with raises(InvalidInputError, option="credentials", nearest="weather") as caught:
        profiles.named("wether")
    assert "Known are ocean, weather" in str(caught.value)


@pytest.mark.parametrize("left", [None, timedelta(hours=1), timedelta(minutes=4)])
def test_a_function_is_called_again_before_its_settings_expire(monkeypatch, left):
    import icechunk_format.storage.credentials as module

    now = datetime(2026, 1, 1, tzinfo=UTC)
    calls = []

    class Clock:
        @staticmethod
        def time():
            return now.timestamp()

    monkeypatch.setattr(module, "time", Clock)

    def renewed():
        calls.append(now)
        expires = {} if left is None else {"expires_at": now + left}
        return {**S3, "token": str(len(calls)), **expires}

    one = Credentials("weather", renewed)
    kept = timedelta(minutes=5) if left is None else max(left - timedelta(minutes=5), left / 2)
    assert one.settings()["token"] == "1"
    now += kept - timedelta(seconds=1)
    assert one.settings()["token"] == "1"
    now += timedelta(seconds=1)
    assert one.settings()["token"] == "2"
    assert "expires_at" not in one.settings()


@pytest.mark.parametrize("expires", ["2999-01-01T00:00:00Z", datetime(2999, 1, 1), None])
def test_times_of_expiry_are_timestamps_or_strings(expires):
    assert dict(Credentials("a", lambda: {**S3, "expires_at": expires}).settings()) == S3


def test_what_a_function_returns_is_checked_and_never_shown():
    def failing():
        raise TimeoutError(f"request with {SECRET}")

    for source, error, words in (
        (failing, StorageError, "'weather' raised TimeoutError"),
        (lambda: SECRET, InvalidInputError, "returned a str"),
        (lambda: {"secret": [SECRET]}, InvalidInputError, "but one is a list"),
        (lambda: {"secret": {SECRET}}, InvalidInputError, "but one is a set"),
        (lambda: {"secret": object()}, InvalidInputError, "but one is a object"),
        (dict, InvalidInputError, "returned no settings"),
        (lambda: {"expires_at": "2999-01-01"}, InvalidInputError, "returned no settings"),
        (
            lambda: {**S3, "expires_at": "2026-01-01T00:00:00Z"},
            StorageError,
            "settings that expired",
        ),
        (lambda: {**S3, "expires_at": datetime.min}, StorageError, "settings that expired"),
        (lambda: {**S3, "expires_at": SECRET}, InvalidInputError, "expires_at must be"),
    ):
        with pytest.raises(error, match=words) as caught:
            Credentials("weather", source).settings()
        assert SECRET not in str(caught.value)
        assert caught.value.__cause__ is None
        assert caught.value.__context__ is None or caught.value.__suppress_context__


@pytest.mark.parametrize("source", [5, "text", ["key"], {"secret": {"a": SECRET}}, {5: SECRET}])
def test_sources_are_checked(source):
    with pytest.raises(InvalidInputError) as caught:
        Credentials("weather", source)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("name", ["", "a b", "a.b", f"{SECRET}/+=", None, 5, "x" * 65])
def test_a_value_in_the_place_of_a_name_is_not_shown(name):
    with raises(InvalidInputError, option="credentials") as caught:
        Credentials(name, S3)
    assert SECRET not in str(caught.value)


def test_nothing_shows_a_value():
    one = Credentials("weather", S3)
    request = parse_arguments("s3://bucket/r", {"credentials": one}, "read")
    texts = [one, [one], one.settings(), Profiles({"weather": S3}), request, location_of(request)]
    for text in texts:
        assert SECRET not in f"{text!r} {text!s}"
    assert "credentials=Credentials('weather')" in repr(request)


def renewing():
    return S3


def test_a_pickle_has_the_settings_and_that_of_profiles_the_function():
    sent = pickle.loads(pickle.dumps(Credentials("weather", lambda: S3)))
    assert (sent.name, sent.source) == ("weather", S3)
    profiles = pickle.loads(pickle.dumps(Profiles({"weather": renewing})))
    assert profiles.sources() == {"weather": renewing}
    assert not pickle.loads(pickle.dumps(Profiles()))


def test_an_unknown_name_has_the_places_of_its_session():
    for kind, has, lacks in (
        (None, "in the environment of this process", "Spark's configuration"),
        ("classic", "spark.icechunk.credentials.ocean.* in Spark's configuration", "server"),
        ("connect", "the environment of the client; for format('icechunk')", "configuration"),
    ):
        sent = pickle.loads(pickle.dumps(Profiles({"weather": S3}, kind)))
        with raises(InvalidInputError, option="credentials") as caught:
            sent.named("ocean")
        assert has in str(caught.value)
        assert lacks not in str(caught.value)
        assert "Known are weather." in str(caught.value)


def test_equal_credentials_are_those_with_equal_settings():
    assert Credentials("a", S3) == Credentials("a", dict(S3))
    assert Credentials("a", S3) != Credentials("a", {**S3, "secret": "other"})
    assert Credentials("a", S3) != "a"
    assert len({Credentials("a", S3), Credentials("a", dict(S3))}) == 1
