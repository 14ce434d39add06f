"""Named credentials of sessions and of Spark's configuration, without Spark."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
from helpers.raised import raises

from icechunk_format.errors import InvalidInputError, UnsupportedError
from icechunk_format.options.location import location_of
from icechunk_format.storage.credentials import Profiles
from icechunk_spark.jobs.profiles import (
    PREFIX,
    expanded,
    profiles_of,
    sendable,
    set_profiles,
    with_profiles,
)
from icechunk_spark.jobs.session_options import with_session_options
from icechunk_spark.mapping.map_blocks import _others

SECRET = "canary-4711"
S3 = {"key": "AKIA", "secret": SECRET}


def session(name="one", **settings):
    conf = SimpleNamespace(getAll={key.replace("_", "."): v for key, v in settings.items()})
    return SimpleNamespace(session_id=name, conf=conf)


def configured(**settings):
    made = session()
    made.conf.getAll = {f"{PREFIX}{name}": value for name, value in settings.items()}
    return made


def test_sessions_have_other_credentials_under_one_name():
    one, two = session("one"), session("two")
    set_profiles(one, {"weather": S3})
    set_profiles(two, {"weather": {"secret": "of two"}})
    try:
        found = [
            dict(with_session_options(s, {"credentials": "weather"})["credentials"].settings())
            for s in (one, two)
        ]
        assert found == [S3, {"secret": "of two"}]
        with raises(InvalidInputError, option="credentials"):
            with_session_options(session("three"), {"credentials": "weather"})
    finally:
        set_profiles(one, None)
        set_profiles(two, {})
    assert not profiles_of(one)
    assert not profiles_of(None)


def test_a_function_is_called_once_for_many_calls_of_a_session():
    spark, calls = session("one"), []

    def renewed():
        calls.append(1)
        return S3

    set_profiles(spark, {"weather": renewed})
    try:
        for _ in range(3):
            found = with_session_options(spark, {"credentials": "weather"})["credentials"]
            assert dict(found.settings()) == S3
    finally:
        set_profiles(spark, None)
    assert len(calls) == 1


@pytest.mark.parametrize("wrong", ["weather", 5, ["weather"], {"a b": {}}, {"a": 5}, {5: {}}])
def test_credentials_of_a_session_are_checked(wrong):
    with pytest.raises(InvalidInputError, match="credentials"):
        set_profiles(session(), wrong)


def test_the_configuration_has_settings_by_name():
    spark = configured(
        **{"weather.access.key": "AKIA", "weather.secret": SECRET, "weather.region": "eu"},
        **{"ocean.session.token": "t"},
    )
    found = profiles_of(spark)
    assert dict(found.named("weather").settings()) == {
        "access_key": "AKIA",
        "secret": SECRET,
        "region": "eu",
    }
    set_profiles(spark, {"weather": S3})
    assert dict(profiles_of(spark).named("weather").settings()) == S3
    assert dict(profiles_of(spark).named("ocean").settings()) == {"session_token": "t"}
    set_profiles(spark, None)


@pytest.mark.parametrize(
    ("setting", "advice"),
    [
        ("key", "write spark.icechunk.credentials.weather.access.key, or"),
        ("account.key", "write spark.icechunk.credentials.weather.access.key, or"),
        ("connection_string", "extend spark.redaction.regex"),
    ],
)
def test_a_setting_that_spark_would_show_is_refused(setting, advice):
    spark = configured(**{f"weather.{setting}": SECRET})
    with raises(InvalidInputError, option=f"{PREFIX}weather.{setting}") as caught:
        profiles_of(spark)
    assert advice in str(caught.value)
    assert SECRET not in str(caught.value)
    spark.conf.getAll["spark.redaction.regex"] = "(?i)secret|icechunk[.]credentials"
    assert profiles_of(spark)
    spark.conf.getAll["spark.redaction.regex"] = "(*"
    with raises(InvalidInputError, option=f"{PREFIX}weather.{setting}"):
        profiles_of(spark)


def test_an_unknown_name_over_connect_has_no_advice_on_the_configuration():
    """Clients of Connect do not see the server's configuration."""
    module = {"__module__": "pyspark.sql.connect.session"}
    client = type("SparkSession", (SimpleNamespace,), module)(**vars(session()))
    classic = session()
    for spark, advises in ((classic, True), (client, False)):
        for profiles in (profiles_of(spark), sendable(profiles_of(spark))):
            with raises(InvalidInputError, option="credentials") as caught:
                profiles.named("ocean")
            assert ("Spark's configuration" in str(caught.value)) == advises
            assert ("environment of the server" in str(caught.value)) != advises


def test_names_among_options_become_credentials_in_any_spelling():
    profiles = Profiles({"weather": S3})
    found = with_profiles({"Credentials": "weather", "virtual_credentials": "weather"}, profiles)
    assert [str(one) for one in found.values()] == ["weather", "weather"]
    assert with_profiles({"credentials": "", "tag": "weather"}, profiles) == {
        "credentials": "",
        "tag": "weather",
    }
    assert expanded({"virtual.credentials": "weather", "credentials": "weather"}, profiles) == {
        "virtual.credentials": "",
        "credentials": "",
        **{f"virtual.storage.{name}": value for name, value in S3.items()},
        **{f"storage.{name}": value for name, value in S3.items()},
    }


def test_a_function_that_cannot_be_sent_is_replaced_by_its_error():
    lock = threading.Lock()

    def locked():
        with lock:
            return S3

    found = sendable(Profiles({"weather": locked, "ocean": lambda: S3, "plain": S3}))
    assert dict(found.named("ocean").settings()) == S3
    assert dict(found.named("plain").settings()) == S3
    with raises(UnsupportedError, credentials="weather"):
        found.named("weather").settings()


def test_further_sources_of_blocks_take_the_credentials_of_the_call_unless_they_have_their_own():
    spark = session("one")
    set_profiles(spark, {"weather": S3, "other": {"key": "AKIB", "secret": "of other"}})
    others = {
        "same": "s3://b/obs",
        "own": {"path": "s3://c/obs", "credentials": "other"},
        "anonymous": {"path": "s3://c/obs", "storage_anon": "true"},
        "local": "/obs",
    }
    try:
        found = _others(spark, "s3://a/model", others, {"credentials": "weather"})
    finally:
        set_profiles(spark, None)
    keys = {one.name: dict(location_of(one.read).options).get("key") for one in found}
    assert keys == {"same": "AKIA", "own": "AKIB", "anonymous": None, "local": None}
