"""Takes the settings of a storage from Hadoop's of the same session.

Rules of this file
------------------
1. Settings of a bucket or an account take precedence over those of all, as in Hadoop.
2. Only fixed credentials are taken. A credential provider or a file that Hadoop would read is not:
   without credentials, the environment's are used.
3. No setting of one storage applies to URLs of another.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from icechunk_format.errors import InvalidInputError, UnsupportedError
from icechunk_format.storage.address import parse_url

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_S3: Final = {
    "access.key": "storage.key",
    "secret.key": "storage.secret",
    "session.token": "storage.token",
    "endpoint": "storage.endpoint_url",
    "endpoint.region": "storage.region",
}
_AZURE: Final = {
    "fs.azure.account.key": "storage.account_key",
    "fs.azure.sas.fixed.token": "storage.sas_token",
    "fs.azure.account.oauth2.client.id": "storage.client_id",
    "fs.azure.account.oauth2.client.secret": "storage.client_secret",
}
_TENANT: Final = re.compile(r"^https://[^/]+/([^/]+)/oauth2/")
_OAUTH: Final = ("storage.client_id", "storage.client_secret", "storage.tenant_id")
_Get = Callable[[str], str | None]
_ANONYMOUS: Final = "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"

# The settings that are used, for Java: of all buckets and accounts, and of each.
_USED: Final = (
    r"^fs\.s3a\.(bucket\..+\.)?(access\.key|secret\.key|session\.token|endpoint"
    r"|endpoint\.region|connection\.ssl\.enabled|aws\.credentials\.provider)$"
    r"|^fs\.azure\.(account\.key|sas\.fixed\.token|account\.oauth2\.client\.(id|secret|endpoint))"
    r"(\..+)?$"
    r"|^fs\.gs\.(auth\.type|auth\.service\.account\.json\.keyfile|project\.id)$"
    r"|^google\.cloud\.auth\.service\.account\.json\.keyfile$"
)


def settings_of_hadoop(spark: SparkSession | None) -> dict[str, str]:
    """Return those of Hadoop's settings in a session that `options_of_hadoop` uses.

    Raises UnsupportedError for a client of Connect, which cannot read them.
    """
    context: Any = getattr(spark, "_jsc", None)
    if context is None:
        raise UnsupportedError(
            "storage.from_spark needs a classic session, since a client of Connect cannot read"
            " Hadoop's settings: use the option credentials, or set storage.key, storage.secret and"
            " storage.region",
            option="storage.from_spark",
        )
    return dict(context.hadoopConfiguration().getValByRegex(_USED))


def takes_settings(url: str) -> bool:
    """Return True if Hadoop has settings of the storage of a URL."""
    return bool(url) and _kind_of(url) in ("s3", "az", "gs")


def _kind_of(url: str) -> str:
    try:
        return parse_url(url).kind
    except InvalidInputError:  # the parser of options raises it
        return "other"


def options_of_hadoop(url: str, settings: Mapping[str, str]) -> dict[str, str]:
    """Return options of the storage of a URL from Hadoop's settings; none for other storages."""
    get = settings.get
    address = parse_url(url)
    if address.kind == "s3":
        return _of_s3(address.bucket, get)
    if address.kind == "az":
        return _of_azure(address.account, get)
    return _of_google(get) if address.kind == "gs" else {}


def _of_s3(bucket: str, get: _Get) -> dict[str, str]:
    def setting(word: str) -> str | None:
        return get(f"fs.s3a.bucket.{bucket}.{word}") or get(f"fs.s3a.{word}")

    found = {ours: setting(theirs) for theirs, ours in _S3.items()}
    own_key = get(f"fs.s3a.bucket.{bucket}.access.key")
    if own_key and not get(f"fs.s3a.bucket.{bucket}.session.token"):
        # The token of all buckets belongs to their key.
        found["storage.token"] = None
    kept = {name: value.strip() for name, value in found.items() if value and value.strip()}
    endpoint = kept.get("storage.endpoint_url")
    if endpoint is not None and "://" not in endpoint:
        uses_tls = (setting("connection.ssl.enabled") or "true").strip().lower() == "true"
        kept["storage.endpoint_url"] = f"http{'s' if uses_tls else ''}://{endpoint}"
    if (setting("aws.credentials.provider") or "").strip() == _ANONYMOUS:
        secret = ("storage.key", "storage.secret", "storage.token")
        return {n: v for n, v in kept.items() if n not in secret} | {"storage.anon": "true"}
    return kept


def _of_azure(account: str | None, get: _Get) -> dict[str, str]:
    if account is None:  # Hadoop's settings are by account
        return {}
    hosts = [f"{account}.{kind}.core.windows.net" for kind in ("dfs", "blob")]

    def setting(name: str) -> str | None:
        found = [get(f"{name}.{host}") for host in hosts]
        return next(filter(None, found), None) or get(name)

    found = {ours: setting(theirs) for theirs, ours in _AZURE.items()}
    endpoint = _TENANT.match(setting("fs.azure.account.oauth2.client.endpoint") or "")
    found["storage.tenant_id"] = endpoint and endpoint[1]
    kept = {name: value.strip() for name, value in found.items() if value and value.strip()}
    if any(name not in kept for name in _OAUTH):
        kept = {name: value for name, value in kept.items() if name not in _OAUTH}
    # A client takes one kind of credentials; Hadoop's order.
    for one in ("storage.account_key", "storage.sas_token"):
        if one in kept:
            return {one: kept[one]}
    return kept


def _of_google(get: _Get) -> dict[str, str]:
    kind = (get("fs.gs.auth.type") or "").upper()
    key_file = get("fs.gs.auth.service.account.json.keyfile") or get(
        "google.cloud.auth.service.account.json.keyfile"
    )
    if kind == "UNAUTHENTICATED":
        return {"storage.anon": "true"}
    found = {"storage.token": key_file, "storage.project": get("fs.gs.project.id")}
    return {name: value.strip() for name, value in found.items() if value and value.strip()}
