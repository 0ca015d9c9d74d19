"""Where tasks run: on a cluster of this machine that starts and ends with the run, or on another.

Tasks are functions of small arguments whose results are small; what is large lies in files.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from typing import Any, TypeVar

from odcl.errors import InputError
from odcl.threads import one_thread

_FEWER = "start fewer of them, with more memory each (--workers 1), or work on a larger machine"
T = TypeVar("T")
RETRIES = 3  # of a task whose worker was lost
PATIENCE = "10s"  # with a scheduler that does not answer
NO_WORKER = "60s"  # after which work that no worker of this machine is there for has failed
_QUIET = {"logging.distributed": "error", "distributed.comm.timeouts.connect": "30s"}


@dataclass(frozen=True, eq=False)
class Cluster:
    """Where tasks run. ``client`` None: in this process, by Dask's scheduler or one by one."""

    client: Any = None
    n_workers: int = 1
    started: str = ""  # what is to be said of a cluster that was started here
    one_by_one: bool = False  # tasks of this process follow one another

    def run(
        self,
        function: Callable[..., T],
        items: Iterable[Any],
        *shared: Any,
        progress: Callable[[int], None] | None = None,
    ) -> list[T]:
        """``function(item, *shared)`` of every item, in their order.

        An item may be one of Dask's own delayed values: it is worked out where the task runs.
        """
        given = list(items)
        if not given:
            return []
        if self.client is not None:
            return self._on_client(function, given, shared, progress)
        import dask

        tasks = [dask.delayed(function)(one, *shared) for one in given]
        if self.one_by_one:
            with one_thread():  # as workers have it
                (found,) = dask.compute(tasks, scheduler="synchronous")
        else:
            (found,) = dask.compute(tasks)
        if progress is not None:
            progress(len(given))
        return list(found)

    def _on_client(
        self,
        function: Callable[..., T],
        given: Sequence[Any],
        shared: Sequence[Any],
        progress: Callable[[int], None] | None,
    ) -> list[T]:
        from dask import delayed
        from distributed import KilledWorker, as_completed
        from distributed.scheduler import NoWorkerError

        client = self.client
        # Made by a task, and not scattered: what a lost worker held is made again.
        lent = [client.submit(_same, one, pure=False) for one in shared]
        if any(map(is_delayed, given)):
            tasks = [delayed(function, pure=False)(one, *lent) for one in given]
            futures = client.compute(tasks, retries=RETRIES)
        else:
            futures = client.map(
                function, given, *[[one] * len(given) for one in lent], pure=False, retries=RETRIES
            )
        try:
            for future in as_completed(futures, loop=client.loop):
                if future.status == "error":
                    break
                if progress is not None:
                    progress(1)
            return list(client.gather(futures))
        except (KilledWorker, NoWorkerError):
            with suppress(TimeoutError):  # one that is ended while it starts again tells at length
                client.wait_for_workers(self.n_workers, timeout=PATIENCE)
            raise ChildProcessError(
                f"Workers were killed again and again, probably because memory ran out: {_FEWER}"
            ) from None
        finally:
            client.cancel([f for f in futures if not f.done()], force=True)


def is_delayed(value: Any) -> bool:
    """Whether a value is one of Dask's own, worked out where a task runs."""
    return getattr(value, "__dask_graph__", None) is not None and not isinstance(value, type)


@contextmanager
def this_process() -> Iterator[Cluster]:
    """No cluster: for a table so small that workers would take longer to start than to work."""
    words = "a small table: no workers are started for it (--workers N starts some)"
    yield Cluster(started=words, one_by_one=True)


@contextmanager
def local_cluster(n_workers: int | None = None, memory: int | None = None) -> Iterator[Cluster]:
    """A cluster of this machine's cores, of processes with one thread each, that ends with us.

    ``memory`` is what all workers may use together, in bytes; by default 60 % of the machine's.
    """
    dask, distributed = _packages()
    from distributed.system import MEMORY_LIMIT  # of this machine, or of this container

    n = n_workers or max(1, os.cpu_count() or 1)
    each = (memory or int(0.6 * MEMORY_LIMIT)) // n
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    with (
        dask.config.set(
            {
                **_QUIET,
                "distributed.nanny.pre-spawn-environ": threads,
                "distributed.scheduler.no-workers-timeout": NO_WORKER,
            }
        ),
        ExitStack() as us,
    ):
        with _interrupts_wait(), _starting():
            own = distributed.LocalCluster(
                n_workers=n,
                threads_per_worker=1,
                host="127.0.0.1",
                dashboard_address="127.0.0.1:0",
                worker_dashboard_address="127.0.0.1:0",
                scheduler_kwargs={"dashboard": False},
                memory_limit=each,
                silence_logs=50,
            )
            us.enter_context(own)
            client = us.enter_context(distributed.Client(own, set_as_default=False))
        words = f"{n} worker{'s' * (n > 1)} on this machine, {each / 2**30:.1f} GiB each"
        yield Cluster(client, n, words)


@contextmanager
def _starting() -> Iterator[None]:
    """One line for a worker that does not start."""
    try:
        yield
    except RuntimeError:
        raise ChildProcessError(
            f"A worker was killed, or failed, before it was ready: try again, or {_FEWER}"
        ) from None


@contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Ctrl-C comes when the block is done, and never to processes that are started in it.

    A terminal sends it to all processes of a command. The process that started the workers
    ends them: the threads that start them, and so the workers, inherit what is held back here.
    """
    if not hasattr(signal, "pthread_sigmask"):  # not on Windows
        yield
        return
    resource_tracker.ensure_running()  # or the first process started would let interrupts through
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def connected(address: str) -> Iterator[Cluster]:
    """Somebody's cluster, by the address of its scheduler."""
    dask, distributed = _packages()
    with dask.config.set(_QUIET):
        try:
            client = distributed.Client(address, timeout=PATIENCE, set_as_default=False)
        except (OSError, TimeoutError, ValueError) as error:
            raise InputError(
                f"No Dask scheduler answers at {address} ({str(error).rstrip('.')}): start one "
                "with `dask scheduler`, or leave the address out for a cluster on this machine."
            ) from None
        with client:
            n = len(client.scheduler_info(n_workers=-1)["workers"])
            yield Cluster(client, max(n, 1))


def open_cluster() -> Cluster:
    """The cluster of the client that is open; else this process."""
    _packages()
    from distributed import default_client

    try:
        client = default_client()
    except ValueError:
        return Cluster()
    return Cluster(client, max(len(client.scheduler_info(n_workers=-1)["workers"]), 1))


def _same(value: T) -> T:
    return value


def _packages() -> tuple[Any, Any]:
    try:
        import dask
        import distributed
    except ImportError:
        raise InputError(
            "This engine needs Dask, which is not installed: pip install 'odcl[dask]'."
        ) from None
    return dask, distributed
