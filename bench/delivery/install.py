"""Brings the servers that Debian packages: `python -m bench.delivery.install`. Needs root; says so where it is not.

Servers and clients from the Python registry are the extra `bench`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

PACKAGES = {"mosquitto": "mosquitto", "redis-server": "redis-server"}
INSTALL_WITHIN_S = 300


def main() -> None:
    path = f"{os.environ.get('PATH', '')}:/usr/sbin"
    missing = sorted(
        package for program, package in PACKAGES.items() if shutil.which(program, path=path) is None
    )
    if not missing:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        print(f"not installed: {', '.join(missing)}; that needs root and Debian's packages")
        return
    # Packages start their servers when they are installed; the benchmark starts its own, on ports of its own.
    policy = Path("/usr/sbin/policy-rc.d")
    is_ours = not policy.exists()
    if is_ours:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    try:
        subprocess.run(
            ["apt-get", "install", "--yes", "--quiet", "--no-install-recommends", *missing],
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            stdout=subprocess.DEVNULL,
            timeout=INSTALL_WITHIN_S,
            check=False,
        )
    finally:
        if is_ours:
            policy.unlink()


if __name__ == "__main__":
    main()
