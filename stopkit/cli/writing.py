"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from pathlib import Path


class Replacement:
    """New bytes for `target`, which takes them all at once in `commit`, or never.

    They go to a file beside it.  The mode of a present `target`, and where allowed its owner, are
    kept.

    Raises:
        OSError: it cannot be written, here and in every method.
    """

    def __init__(self, target: Path) -> None:
        self._target = target
        descriptor, name = tempfile.mkstemp(
            dir=target.parent, prefix=f".{target.name[:100]}.", suffix=".part"
        )
        self._temporary = Path(name)
        self.file = open(descriptor, "wb")  # noqa: SIM115
        _take_on(descriptor, target)

    def seal(self) -> None:
        """Everything is written: put it on the disk."""
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()

    def commit(self) -> None:
        """Take the place of `target`."""
        if not self.file.closed:
            self.seal()
        os.replace(self._temporary, self._target)
        _sync_folder(self._target.parent)

    def discard(self) -> None:
        """Leave `target` as it is, and nothing beside it."""
        # What could not be flushed is not wanted any more.
        with contextlib.suppress(OSError):
            self.file.close()
        self._temporary.unlink(missing_ok=True)


def back_up(target: Path) -> Path:
    """Keep the file under another name, `<name>.bak` or the next free `<name>.bak.2`, `.3`, ...

    The backup is the very same file until `target` is replaced: nothing is copied where the file
    system has hard links.

    Raises:
        OSError: no backup could be made.
    """
    number = 1
    while True:
        suffix = ".bak" if number == 1 else f".bak.{number}"
        backup = target.with_name(target.name + suffix)
        try:
            os.link(target, backup)
        except FileExistsError:
            number += 1
        except OSError:
            if not backup.exists():
                _copy(target, backup)
                return backup
            number += 1
        else:
            return backup


def _copy(target: Path, backup: Path) -> None:
    copy = Replacement(backup)
    try:
        with target.open("rb") as source:
            shutil.copyfileobj(source, copy.file)
        copy.commit()
    except BaseException:
        copy.discard()
        raise
    shutil.copystat(target, backup)


def same_version(before: os.stat_result, now: os.stat_result) -> bool:
    """True where nobody wrote the file between the two looks."""
    return (before.st_ino, before.st_dev, before.st_size, before.st_mtime_ns) == (
        now.st_ino,
        now.st_dev,
        now.st_size,
        now.st_mtime_ns,
    )


def _take_on(descriptor: int, target: Path) -> None:
    """Mode and, where allowed, owner of the file that will be replaced."""
    try:
        present = target.stat()
    except FileNotFoundError:
        # mkstemp's files are private; a new file gets what the user's umask says.
        mask = os.umask(0)
        os.umask(mask)
        os.fchmod(descriptor, 0o666 & ~mask)
        return
    mine = os.fstat(descriptor)
    if (mine.st_uid, mine.st_gid) != (present.st_uid, present.st_gid):
        with contextlib.suppress(PermissionError):
            os.fchown(descriptor, present.st_uid, present.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(present.st_mode))


def _sync_folder(folder: Path) -> None:
    """Make the new name itself survive a power cut, where a folder can be synced."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        return
    finally:
        os.close(descriptor)
