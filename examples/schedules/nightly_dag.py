"""An Airflow DAG that adds the last day, copies it to a Delta table, checks both, and cleans up.

Each task is one command, so that a cluster's ``spark-submit`` and the command ``icechunk-spark`` do
the work, and Airflow needs neither Spark nor this package. A task that runs again changes nothing
that it has done before. For Airflow 3, with the package ``apache-airflow-providers-standard``.
"""

import os
from datetime import datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG
from airflow.timetables.interval import CronDataIntervalTimetable

JOBS = os.path.dirname(os.path.abspath(__file__))
REPOSITORY = os.environ.get("WEATHER_REPOSITORY", "s3://bucket/weather")
TABLE = os.environ.get("WEATHER_TABLE", "s3://bucket/weather-table")
# Such as "spark-submit --master yarn --archives environment.tar.gz#environment".
SUBMIT = os.environ.get("WEATHER_SUBMIT", "spark-submit")

with DAG(
    "weather_nightly",
    # A cron expression alone would make `ds` the day of the run, which has just begun.
    schedule=CronDataIntervalTimetable("0 3 * * *", timezone="UTC"),
    start_date=datetime(2024, 7, 1),
    catchup=False,  # airflow backfill adds days that are missing
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(minutes=10)},
) as dag:
    add = BashOperator(
        task_id="add",
        bash_command=f"{SUBMIT} {JOBS}/add_a_day.py {REPOSITORY} {{{{ ds }}}}",
    )
    copy = BashOperator(
        task_id="copy",
        bash_command=f"icechunk-spark mirror {REPOSITORY} {TABLE}",
    )
    # The exit code of a check is the alert: set on_failure_callback for mail or chat.
    fresh = BashOperator(
        task_id="fresh",
        bash_command=f"python {JOBS}/check.py {REPOSITORY} --max-age 26",
        retries=0,
    )
    expire = BashOperator(
        task_id="expire",
        bash_command=f"icechunk-spark expire {REPOSITORY} --older-than 30d --yes",
    )
    collect = BashOperator(
        task_id="collect",
        bash_command=f"icechunk-spark gc {REPOSITORY} --older-than 7d --yes",
    )
    sound = BashOperator(
        task_id="sound",
        bash_command=f"python {JOBS}/check.py {REPOSITORY} --verify --max-snapshots 5000",
        retries=0,
    )
    add >> [copy, fresh]
    add >> expire >> collect >> sound
