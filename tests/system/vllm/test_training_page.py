"""The page "Train an agent", word for word: TRL trains an agent of another project on what was recorded of vLLM.

Only this finds an export of which a real trainer learns nothing.
"""

import json
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import mean

import httpx
import pytest

from tests.kit import pip
from tests.kit.server import ROOT, Server
from tests.project.docs.pages import DOCS, blocks_of
from tests.system.vllm.server import START_SECONDS

PYTHON, FOLDER = ".venv-vllm/bin/python", "var/walk"
TRAIN_SECONDS = 900.0  # 60 on a quiet machine
STEP = re.compile(r"^step (\d+) reward (\S+) ratio (\S+)", re.MULTILINE)


def lines() -> list[list[str]]:
    codes = [each.code for each in blocks_of(DOCS / "how-to" / "train-an-agent.md") if each.language == "sh"]
    whole = [re.sub(r",\n\s+", ", ", code) for code in codes]
    return [shlex.split(line) for code in whole for line in code.splitlines()]


class Trainer:
    """The page's programs, with TRL beside what vLLM's environment has."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        requirements = next(words[-1] for words in lines() if words[0].endswith("/pip"))
        venv = pip.installed(ROOT / requirements).parent.parent
        packages = venv / "lib" / f"python{'.'.join(platform.python_version_tuple()[:2])}" / "site-packages"
        own = {"PYTHONPATH": str(packages), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HOME": str(folder)}
        self.environ = {**os.environ, **own}

    def run(self, name: str, *more: str) -> str:
        """Run one of the programs as the page does, in a folder of the test's own; return what it prints."""
        (words,) = [each for each in lines() if each[0] == PYTHON and each[1].endswith(f"/{name}")]
        own = [word.replace(FOLDER, str(self.folder)) for word in words[1:]]
        done = subprocess.run(
            [sys.executable, *own, *more],
            cwd=ROOT,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=TRAIN_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        return done.stdout


@pytest.fixture
def trainer(tmp_path: Path) -> Trainer:
    trainer = Trainer(tmp_path)
    trainer.run("make_model.py")
    return trainer


@pytest.fixture
def server(trainer: Trainer) -> Iterator[Server]:
    pairs = [word.split("=", 1) for words in lines() if words[0] == "export" for word in words[1:]]
    own = {name.lower(): value for name, value in pairs} | {"model": trainer.folder / "model"}
    server = Server(trainer.folder / "server", start_seconds=START_SECONDS, **own)
    del server.environ["PYTHONWARNINGS"]  # vLLM looks at a model in a process of its own, which warns
    with server:
        yield server


def test_the_agent_learns(trainer: Trainer, server: Server) -> None:
    assert [words[-2:] for words in lines() if words[0].endswith("/respsite")] == [[".venv-vllm/bin/respsite", "serve"]]
    printed = trainer.run("train.py", server.url)
    steps = [(int(step), float(reward), float(ratio)) for step, reward, ratio in STEP.findall(printed)]
    assert [step for step, _, _ in steps] == list(range(1, 25))
    # The trainer finds each token as likely as the engine has said: what was exported is what was sampled.
    assert steps[0][2] == pytest.approx(1.0, abs=2e-3)
    rewards = [reward for _, reward, _ in steps]
    assert mean(rewards[-4:]) > mean(rewards[:4]) + 0.1, rewards

    with httpx.Client(base_url=server.base_url, timeout=60, verify=False) as api:
        # One update before the first step, and one behind each.
        assert api.get("/engine").json()["version"] == "step-25"
        rows = [json.loads(line) for line in exported(api)]
        versions = {row["model_version"] for row in rows}
        assert min(versions) == 1
        assert len(versions) > 10
        for row in rows:
            # What two rows share is trained on in the first one.
            assert sum(span["tokens"] for span in row["weights"]) >= sum(row["completion_mask"]) > 0
        # As the agent goes on, the server continues with the very tokens: most walks are one sequence.
        walks = {row["rollout_id"]: row for row in rows}
        assert len(rows) < 1.5 * len(walks)


def exported(api: httpx.Client) -> list[str]:
    """Return the rows of all roll-outs."""
    return api.get("/rollouts/export", params={"format": "trl"}).raise_for_status().text.splitlines()
