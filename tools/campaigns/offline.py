"""Campaign 10: no network access at import or run time unless asked for.

Commands run in child processes without any network (`unshare --net` where the system allows it) and with an
audit hook that records every attempt to resolve a name or to connect a socket to anything but a local file.
The package comes from the source tree; tools that check the built wheel are separate.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from .common import ROOT, Campaign, Figures, child_environment

HOOK = """
import sys
def hook(event, args):
    if event in ("socket.getaddrinfo", "socket.gethostbyname", "urllib.Request", "http.client.connect"):
        print("NETWORK", event, args, file=sys.stderr)
    if event == "socket.connect" and isinstance(args[1], tuple):
        print("NETWORK", event, args[1], file=sys.stderr)
sys.addaudithook(hook)
"""
EVERY = """
import importlib, pkgutil, gradcent, gradcent_lab
for package in (gradcent, gradcent_lab):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if ".integrations." in module.name or "triton" in module.name:
            continue  # they import frameworks of other projects
        importlib.import_module(module.name)
"""
STEP = """
import torch, gradcent
model = torch.nn.Linear(4, 3)
optimizer = gradcent.attach(torch.optim.AdamW(model.parameters()), model) or None
"""
COMMANDS = {
    "import gradcent": "import gradcent",
    "import every module": EVERY,
    "attach": STEP,
    "gradcent list": "from gradcent_lab.cli import main; sys.exit(main(['list']))",
    "gradcent explain": "from gradcent_lab.cli import main; sys.exit(main(['explain', 'toy:plain_network']))",
    "gradcent doctor": "from gradcent_lab.cli import main; main(['doctor'])",
    "gradcent compare": "from gradcent_lab.cli import main; "
    "sys.exit(main(['compare', 'toy:experiment', '--seeds', '2', '--epochs', '1', '--out', sys.argv[1]]))",
}


def run(n: int, seed: int, folder: Path) -> Figures:
    """Run the first `n` commands without a network."""
    figures = Figures()
    cut = ["unshare", "--net", "--map-root-user"] if shutil.which("unshare") else []
    if cut and subprocess.run([*cut, "true"], capture_output=True).returncode:
        cut = []
    figures.details["network"] = "none (unshare --net)" if cut else "present, attempts recorded"
    for name, code in list(COMMANDS.items())[:n]:
        command = [*cut, sys.executable, "-c", HOOK + code, str(folder / "out")]
        answer = subprocess.run(
            command, env=child_environment(), cwd=ROOT, capture_output=True, text=True, timeout=600
        )
        figures.tried += 1
        attempts = [line for line in answer.stderr.splitlines() if line.startswith("NETWORK")]
        figures.details[name] = f"{len(attempts)} attempts"
        if attempts:
            figures.fail("wrong", f"{name}: {attempts[0]}")
        if answer.returncode:
            last = (answer.stderr.strip().splitlines() or ["no message"])[-1]
            figures.fail("crashed", f"{name}: exit status {answer.returncode}: {last}")
    return figures


CAMPAIGN = Campaign(
    "offline", "commands without a network, attempts to connect counted", run, target=len(COMMANDS), short=1
)
