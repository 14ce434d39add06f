"""Takes the settings of a storage from Hadoop's of the same session.

Rules of this file
------------------
1. Settings of a bucket, container or account take precedence over those of all, as in Hadoop.
2. Only fixed credentials are taken. A credential provider or a file that Hadoop would read is not:
   without credentials, the environment's are used.
3. No setting of one storage applies to URLs of another.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from icechunk_format.errors import InvalidInputError, UnsupportedError
from icechunk_format.storage.address import Address, parse_url

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_S3: Final = {
    "access.key": "storage.key",
    "secret.key": "storage.secret",
    "session.token": "storage.token",
    "endpoint": "storage.endpoint_url",
    "endpoint.region": "storage.region",
}
_OAUTH: Final = "fs.azure.account.oauth2.client."
# The login server and the tenant of an endpoint of tokens.
_LOGIN: Final = re.compile(r"^(https?://[^/]+)/([^/]+)/oauth2/")
_PUBLIC_LOGIN: Final = "https://login.microsoftonline.com"
_PUBLIC_GOOGLE: Final = "https://storage.googleapis.com"
# By Hadoop's `fs.azure.account.auth.type`, in the order of a configuration without it.
_AZURE_TYPES: Final = ("sharedkey", "sas", "oauth")
_Get = Callable[[str], str | None]
_ANONYMOUS: Final = "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"

# The settings that are used, for Java: of all buckets and accounts, and of each.
_USED: Final = (
    r"^fs\.s3a\.(bucket\..+\.)?(access\.key|secret\.key|session\.token|endpoint"
    r"|endpoint\.region|connection\.ssl\.enabled|aws\.credentials\.provider)$"
    r"|^fs\.azure\.(account\.(key|auth\.type)|sas\.fixed\.token|account\.oauth2\.client"
    r"\.(id|secret|endpoint))(\..+)?$"
    r"|^fs\.azure\.sas\.[^.]+\.[^.]+\.blob\..+$"
    r"|^fs\.gs\.(auth\.type|auth\.service\.account\.json\.keyfile|project\.id|storage\.root\.url)$"
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
        return _of_azure(address, get)
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


def _of_azure(address: Address, get: _Get) -> dict[str, str]:
    if address.account is None:  # Hadoop's settings are by account
        return {}
    # Settings of one file system apply to the other one: both are the same account.
    host = address.url.partition("@")[2].partition("/")[0]
    hosts = [host, host.replace(".dfs.", ".blob.", 1), host.replace(".blob.", ".dfs.", 1)]

    def setting(name: str) -> str:
        found = [get(f"{name}.{host}") for host in hosts]
        return (next(filter(None, found), None) or get(name) or "").strip()

    def of_container(name: str) -> str:
        return setting(f"{name}.{address.bucket}")

    tokens = (of_container("fs.azure.sas.fixed.token"), of_container("fs.azure.sas"))
    token = next(filter(None, tokens), "") or setting("fs.azure.sas.fixed.token")
    login = _LOGIN.match(setting(f"{_OAUTH}endpoint"))
    principal = {
        "storage.client_id": setting(f"{_OAUTH}id"),
        "storage.client_secret": setting(f"{_OAUTH}secret"),
        "storage.tenant_id": "" if login is None else login[2],
    }
    if login is not None and login[1] != _PUBLIC_LOGIN:
        principal["storage.authority_host"] = login[1]
    found = {
        "sharedkey": {"storage.account_key": setting("fs.azure.account.key")},
        "sas": {"storage.sas_token": token},
        "oauth": principal,
    }
    chosen = setting("fs.azure.account.auth.type").lower()
    # A client takes one kind of credentials, and all of it.
    for kind in (chosen,) if chosen else _AZURE_TYPES:
        if all(found.get(kind, {}).values()):
            return found.get(kind, {})
    return {}


def _of_google(get: _Get) -> dict[str, str]:
    kind = (get("fs.gs.auth.type") or "").strip().upper()
    key_file = get("fs.gs.auth.service.account.json.keyfile") or get(
        "google.cloud.auth.service.account.json.keyfile"
    )
    found = {
        "storage.token": key_file if kind in ("", "SERVICE_ACCOUNT_JSON_KEYFILE") else None,
        "storage.project": get("fs.gs.project.id"),
        "storage.endpoint_url": (get("fs.gs.storage.root.url") or "").strip().rstrip("/"),
    }
    if found["storage.endpoint_url"] == _PUBLIC_GOOGLE:
        found["storage.endpoint_url"] = None
    kept = {name: value.strip() for name, value in found.items() if value and value.strip()}
    return kept | ({"storage.anon": "true"} if kind == "UNAUTHENTICATED" else {})
