"""Campaign 10: no network access at import or run time unless asked for, with an installed wheel.

The wheel is built from the source tree and installed into an empty environment, which takes torch and the other
packages from the environment that builds (a .pth file), so that nothing is downloaded. Commands then run in
child processes without any network (`unshare --net` where the system allows it) and with an audit hook that
records every attempt to resolve a name or to connect a socket to anything but a local file. The short form
runs its command from the source tree.
"""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
import venv
from pathlib import Path

from .common import ROOT, TOY, Campaign, Figures, Session, child_environment

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
optimizer = gradcent.attach(torch.optim.SGD(model.parameters(), lr=0.1), model)
before = model.weight.detach().sum(1)
model(torch.randn(5, 4)).square().mean().backward()
optimizer.step()
torch.testing.assert_close(model.weight.detach().sum(1), before)
"""
MAIN = "from gradcent_lab.cli import main; sys.exit(main({words}))"
COMMANDS = {
    "import gradcent": "import gradcent",
    "import every module": EVERY,
    "attach and step": STEP,
    "gradcent list": MAIN.format(words="['list']"),
    "gradcent explain": MAIN.format(words="['explain', 'toy:plain_network']"),
    "gradcent doctor": "from gradcent_lab.cli import main; main(['doctor'])",
    "gradcent run": MAIN.format(words="['run', 'theory', '--scale', 'smoke', '--out', sys.argv[1]]"),
    "gradcent compare": MAIN.format(
        words="['compare', 'campaign_study:experiment', '--seeds', '2', '--out', sys.argv[1]]"
    ),
    "gradcent report": MAIN.format(words="['report', sys.argv[1] + '/runs', '--out', sys.argv[1] + '/r']"),
}


def run(session: Session) -> None:
    """Run the commands without a network; with more than one, from an installed wheel."""
    figures = session.figures
    cut = ["unshare", "--net", "--map-root-user"] if shutil.which("unshare") else []
    if cut and subprocess.run([*cut, "true"], capture_output=True).returncode:
        cut = []
    figures.details["network"] = "none (unshare --net)" if cut else "present, attempts recorded"
    python, environment = sys.executable, child_environment()
    if session.n > 1:
        python = _install(session.folder)
        environment = {**os.environ, "PYTHONPATH": str(TOY), "OMP_NUM_THREADS": "1"}
    for name, code in list(COMMANDS.items())[figures.tried : session.n]:
        if session.time_is_over:
            break
        where = "\nimport gradcent\nassert gradcent.__file__.startswith(sys.prefix), gradcent.__file__"
        program = HOOK + code if session.n == 1 else HOOK + where + "\n" + code
        _try(
            name,
            [*cut, python, "-c", program, str(session.folder / "out")],
            environment,
            figures,
            session.folder,
        )
        session.goes_on()


def _install(folder: Path) -> str:
    """Build the wheel, install it into an empty environment and return the environment's interpreter."""
    source = folder / "source"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.so", "build", ".git", ".venv", "results")
    shutil.copytree(ROOT, source, ignore=ignored)
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--no-build-isolation",
    ]
    subprocess.run([*build, "-w", str(folder / "wheel"), str(source)], check=True)
    (wheel,) = (folder / "wheel").glob("*.whl")
    venv.create(folder / "environment", with_pip=False)
    python = folder / "environment" / "bin" / "python"
    (place,) = (folder / "environment").glob("lib/python*/site-packages")
    (place / "builder.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    install = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "--quiet",
        "--no-index",
        "--no-deps",
    ]
    subprocess.run([*install, "--ignore-installed", str(wheel)], check=True)
    return str(python)


def _try(name: str, command: list[str], environment: dict[str, str], figures: Figures, folder: Path) -> None:
    answer = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=900)
    figures.tried += 1
    attempts = [line for line in answer.stderr.splitlines() if line.startswith("NETWORK")]
    figures.details[name] = f"{len(attempts)} attempts"
    if attempts:
        figures.fail("wrong", f"{name}: {attempts[0]}")
    if answer.returncode:
        last = (answer.stderr.strip().splitlines() or ["no message"])[-1]
        figures.fail("crashed", f"{name}: exit status {answer.returncode}: {last}")


CAMPAIGN = Campaign(
    "offline",
    "commands of an installed wheel without a network, attempts to connect counted",
    run,
    target=len(COMMANDS),
    short=1,
)
