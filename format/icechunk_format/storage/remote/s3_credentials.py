"""Finds the settings and credentials of an S3 location, and makes botocore clients.

Order of credentials: ``storage.anon``; ``storage.key`` and ``storage.secret``; ``storage.profile``;
then what botocore finds (environment, configuration files, single sign-on, containers, instance).
botocore also finds the credentials for obstore, which does not read the AWS configuration files and
waits long for instance metadata outside of AWS.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from icechunk_format.errors import InvalidInputError, StorageError, UnsupportedError
from icechunk_format.storage.address import Address
from icechunk_format.storage.options import StorageOptions
from icechunk_format.storage.remote.endpoint import endpoint_url, host_part

_DEFAULT_REGION: Final = "us-east-1"
_REFRESH_SECONDS: Final = 300
_READ_SECONDS: Final = 60
_CONNECT_SECONDS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Settings:
    """Settings of an S3 location from its options and the environment, for both clients."""

    endpoint: str | None
    """URL of the server, ``None`` for AWS itself."""
    region: str
    credentials: S3Credentials | None
    """Keys, or their provider; ``None`` to send unsigned requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Credentials:
    """Fixed keys, or botocore credentials that are renewed automatically; never shown."""

    key: str = field(default="", repr=False)
    secret: str = field(default="", repr=False)
    token: str | None = field(default=None, repr=False)
    renewing: Any = field(default=None, repr=False)

    def current(self) -> tuple[str, str, str | None, datetime | None]:
        """Return key id, secret, session token, and the time to renew them."""
        if self.renewing is None:
            return self.key, self.secret, self.token, None
        frozen = self.renewing.get_frozen_credentials()
        again = datetime.now(UTC) + timedelta(seconds=_REFRESH_SECONDS)
        return frozen.access_key, frozen.secret_key, frozen.token, again

    def for_obstore(self) -> dict[str, Any]:
        """Return the keys as options of obstore, so that it does not use the environment."""
        key, secret, token, again = self.current()
        return {
            "access_key_id": key,
            "secret_access_key": secret,
            "token": token,
            "expires_at": again,
        }

    def secrets(self) -> list[str]:
        """Return the strings that must not appear in errors."""
        key, secret, token, _ = self.current()
        return [part for part in (key, secret, token) if part]


def s3_settings(address: Address, options: StorageOptions) -> S3Settings:
    """Return the settings of an S3 location from its options and the environment."""
    endpoint = endpoint_url(address, options)
    region = (
        options.get("region")
        or os.environ.get("AWS_REGION")
        or os.environ.get("AWS_DEFAULT_REGION")
    )
    # Servers other than AWS accept any region; AWS reports the right one in its refusal.
    if not region and endpoint is None:
        region = _from_botocore(options, lambda session: session.get_config_variable("region"))
    return S3Settings(
        endpoint=endpoint,
        region=host_part(region or _DEFAULT_REGION, "region", address),
        credentials=_credentials(address, options),
    )


def _credentials(address: Address, options: StorageOptions) -> S3Credentials | None:
    if options.flag("anon"):
        return None
    key, secret = options.get("key"), options.get("secret")
    if (key is None) != (secret is None):
        given, absent = ("key", "secret") if secret is None else ("secret", "key")
        raise InvalidInputError(
            f"storage.{given} is given without storage.{absent}; give both, or neither to use the "
            "environment's credentials",
            option=absent,
        )
    if key is not None and secret is not None:
        return S3Credentials(key=key, secret=secret, token=options.get("token"))
    if options.get("profile") is None:
        key, secret = os.environ.get("AWS_ACCESS_KEY_ID"), os.environ.get("AWS_SECRET_ACCESS_KEY")
        if key and secret:
            token = os.environ.get("AWS_SESSION_TOKEN") or None
            return S3Credentials(key=key, secret=secret, token=token)
    found = _from_botocore(options, lambda session: session.get_credentials())
    if found is None:
        raise StorageError(
            f"there are no credentials for {address.shown_url}: give storage.key and "
            "storage.secret, set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or set "
            "storage.anon=true for public data",
            reason="no credentials",
        )
    return S3Credentials(renewing=found)


def make_client(settings: S3Settings, options: StorageOptions, *, connections: int) -> Any:
    """Return a botocore client that sends each request exactly once."""
    # Imported here because it takes half a second, and most locations do not need it.
    import botocore
    import botocore.config
    import botocore.session

    arguments: dict[str, Any] = {}
    config: dict[str, Any] = {}
    if settings.credentials is None:
        config["signature_version"] = botocore.UNSIGNED
    elif settings.credentials.renewing is None:
        key, secret, token, _ = settings.credentials.current()
        arguments = {
            "aws_access_key_id": key,
            "aws_secret_access_key": secret,
            "aws_session_token": token,
        }
    if options.flag("allow_invalid_certificates"):
        arguments["verify"] = False
    style = "virtual" if options.flag("virtual_hosted_style") else "path"
    return botocore.session.Session(profile=options.get("profile")).create_client(
        "s3",
        region_name=settings.region,
        endpoint_url=settings.endpoint,
        config=botocore.config.Config(
            connect_timeout=_CONNECT_SECONDS,
            read_timeout=options.number("timeout", _READ_SECONDS),
            max_pool_connections=connections,
            retries={"total_max_attempts": 1, "mode": "standard"},
            s3={"addressing_style": style},
            **config,
        ),
        **arguments,
    )


def check_conditions(client: Any) -> None:
    """Raise UnsupportedError if the installed botocore is too old for conditional writes."""
    known = client.meta.service_model.operation_model("PutObject").input_shape.members
    if not {"IfMatch", "IfNoneMatch"} <= set(known):
        raise UnsupportedError(
            "the installed botocore is too old for conditional writes, so two writers could "
            "overwrite one another; upgrade s3fs and aiobotocore, or use storage.client=obstore"
        )


def _from_botocore(options: StorageOptions, question: Callable[[Any], Any]) -> Any:
    """Return what a botocore session finds; it is needed only without options and environment."""
    # Imported here because it takes half a second, and explicit keys do not need it.
    import botocore.exceptions
    import botocore.session

    profile = options.get("profile")
    try:
        return question(botocore.session.Session(profile=profile))
    except botocore.exceptions.ProfileNotFound:
        raise InvalidInputError(
            f"the AWS profile {profile or os.environ.get('AWS_PROFILE')!r} is not in any "
            "AWS configuration file; check storage.profile and AWS_PROFILE",
            option="profile",
        ) from None
    except botocore.exceptions.BotoCoreError as error:
        raise StorageError(
            f"the AWS configuration provides no credentials: {type(error).__name__}; "
            "renew the login or give storage.key and storage.secret",
            reason=type(error).__name__,
        ) from None
