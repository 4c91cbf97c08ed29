"""Who lives, for the embedded frontier: an exclusive ``flock`` per worker.

``flock`` belongs to the open file, not to the process, so several crawlers of one process
have lives of their own; the kernel lets go of it when the process ends, however it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import Protocol


class Liveness(Protocol):
    """Which epochs belong to a worker that lives."""

    def begin(self, epoch: str) -> None:
        """This process lives as ``epoch`` from now on."""
        ...

    def end(self, epoch: str) -> None:
        """This process's ``epoch`` is over."""
        ...

    def held(self, epoch: str) -> bool:
        """True while this process lives as ``epoch``."""
        ...

    def alive(self, epoch: str) -> bool:
        """True while anybody lives as ``epoch``."""
        ...

    def sweep(self, epoch: str) -> None:
        """Remove what a dead epoch left."""
        ...

    def forget(self) -> None:
        """Remove what all dead epochs left."""
        ...


_open_locks: set[int] = set()


def _let_go_in_child() -> None:
    """A forked child shares its parent's locks: it would keep a killed worker alive."""
    for fd in _open_locks:
        os.close(fd)
    _open_locks.clear()


os.register_at_fork(after_in_child=_let_go_in_child)


class FileLocks:
    """One locked file per live epoch in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._held: dict[str, int] = {}

    def _path(self, epoch: str) -> Path:
        return self.folder / f"{epoch}.lock"

    def begin(self, epoch: str) -> None:
        """Create and lock the epoch's file."""
        self.folder.mkdir(parents=True, exist_ok=True)
        fd = os.open(self._path(epoch), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        # Whatever the umask is: others have to look whether it is locked.
        os.fchmod(fd, 0o644)
        fcntl.flock(fd, fcntl.LOCK_EX)
        self._held[epoch] = fd
        _open_locks.add(fd)

    def end(self, epoch: str) -> None:
        """Unlock and remove the epoch's file."""
        fd = self._held.pop(epoch, None)
        if fd is not None:
            self.sweep(epoch)
            _open_locks.discard(fd)
            os.close(fd)

    def held(self, epoch: str) -> bool:
        """True while this object holds the epoch's lock."""
        return epoch in self._held

    def alive(self, epoch: str) -> bool:
        """True while somebody holds the epoch's lock."""
        if epoch in self._held:
            return True
        try:
            fd = os.open(self._path(epoch), os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError, ValueError):
            # ValueError: what somebody wrote in place of an epoch is no file name.
            return False
        except OSError:
            # Another user's, mostly. To take the living for dead hands their pages out twice; to take
            # the dead for living only leaves them to whoever may look.
            return True
        try:
            # Shared, so that two who look at the same time do not take each other for the worker.
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(fd)
        return False

    def sweep(self, epoch: str) -> None:
        """Remove the epoch's file."""
        # Another user's folder, or one that became read-only: an unlocked file harms nobody.
        with contextlib.suppress(OSError):
            self._path(epoch).unlink()

    def forget(self) -> None:
        """Remove the folder when nobody has a file in it."""
        with contextlib.suppress(OSError):
            self.folder.rmdir()


class LocalLives:
    """Lives of one process's memory."""

    def __init__(self) -> None:
        self._alive: set[str] = set()

    def begin(self, epoch: str) -> None:
        """The epoch lives."""
        self._alive.add(epoch)

    def end(self, epoch: str) -> None:
        """The epoch is dead."""
        self._alive.discard(epoch)

    def held(self, epoch: str) -> bool:
        """True while the epoch lives."""
        return epoch in self._alive

    def alive(self, epoch: str) -> bool:
        """True while the epoch lives."""
        return epoch in self._alive

    def sweep(self, epoch: str) -> None:
        """Nothing is left of a dead epoch."""

    def forget(self) -> None:
        """Nothing is left of dead epochs."""
