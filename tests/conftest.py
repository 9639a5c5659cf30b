"""Settings for all tests: no connections to the internet, no GPU, and one core for a process's arithmetic.
Several tests run at once, and threads that wait for each other on busy cores take many times as long.
"""

import atexit
import logging
import os
import shutil
import signal
import tempfile

from tests.checkout import python_path

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as a script's & does; tests need SIGINT
    signal.signal(signal.SIGINT, signal.default_int_handler)

logging.raiseExceptions = False  # a server that ends after its test: the stderr it logs to is closed

os.environ.update(
    MLFLOW_DISABLE_TELEMETRY="true",
    DO_NOT_TRACK="true",
    PREFECT_SERVER_ANALYTICS_ENABLED="false",
    MLFLOW_SERVER_ENABLE_JOB_EXECUTION="false",
    OMP_NUM_THREADS="1",
    OPENBLAS_NUM_THREADS="1",
    CUDA_VISIBLE_DEVICES="",  # pool=here computes on CPUs, whatever this machine has
    PYTHONPATH=python_path(),  # of what tests start, whose code some of it is
    # this process's Prefect server outlives the test that starts it, and so does its database
    PREFECT_HOME=tempfile.mkdtemp(prefix="atelier-prefect-"),
)
atexit.register(shutil.rmtree, os.environ["PREFECT_HOME"], ignore_errors=True)

pytest_plugins = ["tests.budget", "tests.projects"]
