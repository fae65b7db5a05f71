"""The official clients for tests, installed below build/; where they cannot be had, the test says that nothing was
checked."""

import fcntl
import os
import pathlib
import shutil
import subprocess
import sys

PYTHON_PACKAGES = ["openai==3.57.0", "anthropic==2.14.0"]
NODE_PACKAGES = ["openai@7.59.0", "@anthropic-ai/sdk@1.14.0"]
NODE_FOLDER = pathlib.Path("build/test-data/sdk-node")


def enter_python(script):
    """Runs the script again with the interpreter that has the clients; call it where importing them failed."""
    if os.environ.get("DEEPINFER_SDK_TEST"):
        raise ImportError("the environment with the clients does not have them")
    made = subprocess.run(
        ["tools/test_venv.sh", "build/test-data/sdk-venv", *PYTHON_PACKAGES], capture_output=True, text=True
    )
    if made.returncode:
        print(f"SKIPPED, NOTHING WAS CHECKED: {made.stderr.strip()}", file=sys.stderr)
        sys.exit(0)
    os.environ["DEEPINFER_SDK_TEST"] = "1"
    os.execv(made.stdout.strip(), [made.stdout.strip(), "-B", script, *sys.argv[1:]])


def install_node():
    """Returns what is missing, or nothing."""
    if not shutil.which("npm"):
        return "npm is not installed"
    NODE_FOLDER.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{NODE_FOLDER}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = NODE_FOLDER / "packages.txt"
        if stamp.exists() and stamp.read_text() == " ".join(NODE_PACKAGES):
            return None
        shutil.rmtree(NODE_FOLDER, ignore_errors=True)
        NODE_FOLDER.mkdir()
        (NODE_FOLDER / "package.json").write_text("{}")
        done = subprocess.run(
            [
                "npm",
                "install",
                "--silent",
                "--no-audit",
                "--no-fund",
                "--fetch-retries=1",
                "--fetch-timeout=20000",
                *NODE_PACKAGES,
            ],
            cwd=NODE_FOLDER,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            return f"cannot install {' '.join(NODE_PACKAGES)}: {done.stderr.strip()[-300:]}"
        stamp.write_text(" ".join(NODE_PACKAGES))
        return None
