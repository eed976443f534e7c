"""What importing the library loads."""

import subprocess
import sys

LOADED = "import sys, {}; print(*sorted(m for m in sys.modules if '.' not in m))"


def loaded(modules: str) -> set[str]:
    command = [sys.executable, "-c", LOADED.format(modules)]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


def test_importing_does_not_wait_for_torchmetrics():
    assert "torchmetrics" not in loaded("sees_torch")


def test_every_public_name_is_there():
    import sees_torch

    for name in sees_torch.__all__:
        assert getattr(sees_torch, name) is not None
