"""A file that is being written is the old one or the new one, whatever happens."""

import errno
import os
import signal
import stat
import subprocess
import sys
import textwrap
import time

import pytest

from sees_torch import SavedFileError
from sees_torch.saving import atomic
from sees_torch.saving.atomic import remove_parts, write_atomically


def run(code: str, *arguments: str, **options) -> subprocess.Popen:
    command = [sys.executable, "-c", textwrap.dedent(code), *arguments]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **options)


def test_it_replaces_a_file_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "file"
    write_atomically(path, b"old")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_a_link_and_its_file_is_replaced(tmp_path):
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    write_atomically(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"


def test_others_may_read_it_as_they_may_any_new_file(tmp_path):
    (tmp_path / "plain").write_bytes(b"")
    write_atomically(tmp_path / "file", b"")
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("plain", "file")]
    assert modes[0] == modes[1]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_file(step, tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(atomic.os, step, full)
    with pytest.raises(SavedFileError, match="No space left"):
        write_atomically(path, b"new")
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_size_limit_of_the_system_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    write_atomically(path, b"old")
    code = """
    import resource, signal, sys
    from sees_torch.errors import SavedFileError
    from sees_torch.saving.atomic import write_atomically
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    try:
        write_atomically(sys.argv[1], bytes(100_000))
    except SavedFileError as error:
        sys.exit("refused" if "too large" in str(error) else str(error))
    """
    assert run(code, str(path)).communicate()[1].strip() == "refused"
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_missing_or_a_name_that_is_a_folder_is_refused(tmp_path):
    with pytest.raises(SavedFileError, match="could not be written"):
        write_atomically(tmp_path / "absent" / "file", b"")
    with pytest.raises(SavedFileError, match="is a folder"):
        write_atomically(tmp_path, b"")


def test_without_permission_it_says_so(tmp_path, monkeypatch):
    def forbidden(*_):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(atomic, "_write", forbidden)  # The superuser may write anywhere.
    with pytest.raises(SavedFileError, match="Permission denied"):
        write_atomically(tmp_path / "file", b"")


def test_a_kill_at_any_moment_leaves_a_whole_file(tmp_path):
    path = tmp_path / "file"
    contents = [bytes([letter]) * 2_000_000 for letter in b"ab"]
    code = """
    import itertools, sys
    from sees_torch.saving.atomic import write_atomically
    for letter in itertools.cycle(b"ab"):
        write_atomically(sys.argv[1], bytes([letter]) * 2_000_000)
        print(flush=True)
    """
    process = run(code, str(path), stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    parts = 0
    for delay in range(12):
        # Stopped, looked at, and set going again: what a kill at this moment would leave.
        time.sleep(0.003 * delay)
        os.kill(process.pid, signal.SIGSTOP)
        assert path.read_bytes() in contents
        parts += len(list(tmp_path.iterdir())) - 1
        if delay < 11:
            os.kill(process.pid, signal.SIGCONT)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert path.read_bytes() in contents
    assert parts  # Some of the moments were in the middle of a write.
    remove_parts(path)
    assert list(tmp_path.iterdir()) == [path]
