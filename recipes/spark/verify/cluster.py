"""How the Spark jobs get a cluster: rank 0 starts the master and every rank a worker, without SSH."""

import contextlib
import json
import os
import secrets
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import envbuild_job
import tasks
from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.find_spark_home import _find_spark_home

START_S, END_S = 90.0, 10.0
# The time limit of the whole job comes first.
DRIVER_S = 3600.0
# A dozen JVMs that live for seconds share the cores: compile quickly, collect garbage with one thread.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
LOGGING = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""


@dataclass(frozen=True)
class ClusterMember:
    """A rank as a member of the cluster."""

    rank: int
    size: int
    """As the launcher set them (rank from 0)."""
    master: str
    """The master's address (``spark://HOST:PORT``)."""
    directory: Path
    """The directory that this rank's part of Spark writes to."""

    def record(self) -> dict:
        """Return what `tasks.gather` wrote in the one executor of this rank's worker."""
        (path,) = self.directory.glob(f"{tasks.worker_name(self.rank)}/app-*/*/{tasks.RECORD}")
        return json.loads(path.read_text())


@contextlib.contextmanager
def joined() -> "Iterator[ClusterMember]":
    """Start this rank's daemons and yield it as a member of the cluster; at the end all are stopped."""
    rank, size = envbuild_job.launched()
    host = _meeting_host(rank, size)
    with tempfile.TemporaryDirectory(prefix="spark-") as name, contextlib.ExitStack() as daemons:
        directory = Path(name)
        if rank == 0:
            envbuild_job.publish("secret", secrets.token_hex(32))
        _configure(directory, host, size)
        if rank == 0:
            envbuild_job.publish("master", daemons.enter_context(_master(host)))
        master = envbuild_job.await_published("master", timeout_s=START_S)
        work = directory / tasks.worker_name(rank)
        offer = ("--cores", "1", "--memory", "512m", "--work-dir", str(work))
        daemons.enter_context(_daemon("worker.Worker", "--host", host, "--port", "0", *offer, master))
        yield ClusterMember(rank=rank, size=size, master=master, directory=directory)


def run(run_driver: "Callable[[ClusterMember], None]", member: ClusterMember) -> None:
    """Run the driver on rank 0; the other ranks wait until it has ended."""
    if member.rank > 0:
        envbuild_job.await_published("driver-ended", timeout_s=DRIVER_S)
        return
    try:
        run_driver(member)
    finally:
        envbuild_job.publish("driver-ended", "")


@contextlib.contextmanager
def application(member: ClusterMember) -> "Iterator[SparkContext]":
    """Yield an application with one executor of one core on each rank's worker."""
    context = SparkContext(member.master, "envbuild")
    driver = context._gateway.proc
    try:
        yield context
    except Py4JJavaError as error:
        # The text of the error is in the driver's JVM, which ends here.
        raise RuntimeError(error.java_exception.toString()) from None
    finally:
        context.stop()
        # The driver's JVM ends when its input does.
        driver.stdin.close()
        driver.wait(END_S)


def _configure(directory: Path, host: str, size: int) -> None:
    """Write the configuration of master, workers and driver of this rank, and set their variables."""
    settings = {
        # Without it, every process that reaches the master's port could run programs as this user.
        "spark.authenticate": "true",
        "spark.authenticate.secret": envbuild_job.await_published("secret"),
        "spark.master.rest.enabled": "false",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": host,
        "spark.driver.bindAddress": host,
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.cores.max": size,
        # No task before all executors are there.
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{START_S:.0f}s",
        # A lost executor fails the job at once.
        "spark.task.maxFailures": "1",
        "spark.stage.maxConsecutiveAttempts": "1",
        "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
        "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": "5",
        "spark.submit.pyFiles": tasks.__file__,
        "spark.sql.shuffle.partitions": size,
        "spark.sql.warehouse.dir": directory / "warehouse",
    }
    (directory / "spark-defaults.conf").write_text(
        "".join(f"{name} {value}\n" for name, value in settings.items())
    )
    (directory / "log4j2.properties").write_text(LOGGING)
    os.environ.update(
        SPARK_CONF_DIR=str(directory),
        SPARK_LOCAL_DIRS=str(directory),
        # The host may not listen at its own name.
        SPARK_LOCAL_IP=socket.gethostbyname(host),
        SPARK_LOCAL_HOSTNAME=host,
        SPARK_DAEMON_MEMORY="256m",
        JDK_JAVA_OPTIONS=JAVA_OPTIONS,
    )


def _meeting_host(rank: int, size: int) -> str:
    """Return the host that this rank listens on: the loopback if all ranks share a host."""
    here = socket.gethostname()
    envbuild_job.publish(f"host-{rank}", here)
    hosts = {envbuild_job.await_published(f"host-{other}") for other in range(size)}
    return "127.0.0.1" if hosts == {here} else here


@contextlib.contextmanager
def _master(host: str) -> "Iterator[str]":
    """Start the master on a port that the system chose; yield its address once it listens there."""
    with envbuild_job.port_holder(host) as holder:
        port = holder.getsockname()[1]
        with _daemon("master.Master", "--host", host, "--port", str(port)) as process:
            deadline = time.monotonic() + START_S
            while not _listens(host, port):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError("Spark's master did not start")
                time.sleep(0.05)
            holder.close()
            yield f"spark://{host}:{port}"


def _listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1.0).close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _daemon(name: str, *words: str) -> "Iterator[subprocess.Popen]":
    """Run one of Spark's daemons, as its own scripts do, but in the foreground."""
    program = Path(_find_spark_home(), "bin", "spark-class")
    argv = [str(program), f"org.apache.spark.deploy.{name}", "--webui-port", "0", *words]
    # A rank that is killed cannot end its daemons; a worker that gets TERM ends its executors.
    process = subprocess.Popen(["setpriv", "--pdeathsig", "TERM", *argv])
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
