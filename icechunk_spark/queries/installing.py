"""Installs the rule of ``Pushdown.java`` in the optimizer of a session.

The driver's JVM compiles the text by Janino, which Spark brings for its own generated code. So the
package needs no JAR, and one text serves all versions of Spark.

Rules of this file
------------------
1. The rule is compiled once for each JVM, and installed once for each session. Spark copies the
   rules of a session to those of its streaming queries.
2. Where the rule cannot be, as with Spark Connect, reads return all rows, which is right. One line
   at INFO names the reason and the alternative.
3. Python serves the rule by py4j's callback server, as it does for ``foreachBatch``.
"""

from __future__ import annotations

import logging
import secrets
import threading
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

from icechunk_format.errors import InvalidInputError, UnsupportedError
from icechunk_format.options.path import CATALOG_TABLE
from icechunk_format.storage.options import SECRET_WORDS
from icechunk_spark.jobs.session import is_connect
from icechunk_spark.queries.answering import Planner
from icechunk_spark.queries.reads import READS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: The setting of a session that turns the rule off.
PUSHDOWN: Final = "icechunk.pushdown"
_CLASS: Final = "icechunk.Pushdown"
_CHANGE: Final = (
    "UPDATE, DELETE and MERGE do not apply to views of icechunk, which are read-only:"
    " df.write.format('icechunk').mode('append').save(path) writes cells at their labels, existing"
    " or new; icechunk_spark.delete takes out labels or cells; option 'replaceWhere' of mode"
    " 'overwrite' replaces a region"
)
_SECRET: Final = (
    "CREATE TEMPORARY VIEW … USING icechunk takes no credentials as options, because Spark keeps"
    " statements in its UI and logs: give their name, credentials 'weather', after"
    " icechunk_spark.register(spark, credentials={'weather': ...}); or use"
    " icechunk_spark.register(spark, storage_from_spark=True) or the environment"
)
# Names of options in lower case, as the rule compares them.
_SECRET_OPTION: Final = rf"(virtual\W?)?storage\W?.*({SECRET_WORDS.pattern}).*"
_log = logging.getLogger("icechunk_spark")
_lock = threading.RLock()


class Rule:
    """The rule in one JVM, for the sessions of one SparkContext."""

    def __init__(self, jvm_rule: Any, application: str) -> None:
        self.jvm_rule = jvm_rule
        self.application = application
        self.sessions: set[str] = set()

    def watch(self, frame: DataFrame, id: str) -> None:
        """Keep a read as long as the JVM holds its plan, and forget those that it dropped."""
        plan: Any = frame
        self.jvm_rule.watch(plan._jdf.queryExecution().analyzed(), id)
        READS.drop(str(self.jvm_rule.forgotten()).split())


# The rule of the current gateway, None if it could not be compiled; and the gateway.
_current: tuple[Any, Rule | None] | None = None
_has_informed = False


def installed(spark: SparkSession) -> Rule | None:
    """Install the rule in a session if it is not there yet; return None where it cannot be."""
    global _current
    if is_connect(spark):
        _inform("Spark Connect has no optimizer rules of Python")
        return None
    context = spark.sparkContext
    gateway: Any = context._gateway
    application = str(context.applicationId)
    with _lock:
        if _current is None or _current[0] is not gateway:
            _current = gateway, _compiled(spark, gateway, application)
        rule = _current[1]
        if rule is None:
            return None
        if rule.application != application:
            READS.clear()
            rule.application = application
            rule.sessions.clear()
        session: Any = spark._jsparkSession
        uuid = str(session.sessionUUID())
        if uuid not in rule.sessions:
            try:
                _install(gateway, session, rule.jvm_rule)
            except Exception as error:
                _inform(_reason(error))
                return None
            rule.sessions.add(uuid)
        return rule


def _compiled(spark: SparkSession, gateway: Any, application: str) -> Rule | None:
    """Compile the rule in the JVM of a session, and connect it with Python."""
    from pyspark import java_gateway

    token = f"icechunk_{secrets.token_hex(4)}_"
    try:
        start_server: Any = java_gateway.ensure_callback_server_started
        start_server(gateway)
        jvm: Any = spark._jvm
        session: Any = spark._jsparkSession
        text = resources.files("icechunk_spark.queries").joinpath("Pushdown.java").read_text()
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setParentClassLoader(session.getClass().getClassLoader())
        # The default is 1.6, which has no static methods of interfaces.
        compiler.setSourceVersion(8)
        compiler.setTargetVersion(8)
        compiler.cook(text)
        found = compiler.getClassLoader().loadClass(_CLASS)
        no_arguments = gateway.new_array(jvm.java.lang.Object, 0)
        rule = found.getConstructors()[0].newInstance(no_arguments)
        rule.connect(token, Planner(token), *_refusals())
        return Rule(rule, application)
    except Exception as error:  # a JVM may refuse py4j or Janino
        _inform(_reason(error))
        return None


def _refusals() -> list[str]:
    """Return the errors of statements, as tasks print them, and the names of secret options."""
    refusals = [
        (UnsupportedError, CATALOG_TABLE),
        (UnsupportedError, _CHANGE),
        (InvalidInputError, _SECRET),
    ]
    errors = [f"{kind.__module__}.{kind.__qualname__}: {text}" for kind, text in refusals]
    return [*errors, _SECRET_OPTION]


def _install(gateway: Any, session: Any, rule: Any) -> None:
    methods = session.experimental()
    rules = gateway.jvm.scala.collection.mutable.ListBuffer()
    rules.addAll(methods.extraOptimizations())
    if not rules.contains(rule):
        rules.addOne(rule)
        getattr(methods, "extraOptimizations_$eq")(rules.toSeq())


def _reason(error: Exception) -> str:
    _log.debug("the optimizer's rule was not installed", exc_info=error)
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _inform(reason: str) -> None:
    global _has_informed
    if not _has_informed:
        _has_informed = True
        _log.info(
            "queries do not limit what is read (%s): use the options where, sel and variables",
            reason,
        )
