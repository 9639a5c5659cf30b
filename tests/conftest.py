"""No test calls home."""

import logging
import os

logging.raiseExceptions = False  # a server that ends after its test: the stderr it logs to is closed

os.environ.update(
    MLFLOW_DISABLE_TELEMETRY="true",
    DO_NOT_TRACK="true",
    PREFECT_SERVER_ANALYTICS_ENABLED="false",
    MLFLOW_SERVER_ENABLE_JOB_EXECUTION="false",
)
