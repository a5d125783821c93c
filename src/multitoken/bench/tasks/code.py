"""Small Python functions to complete, with tests of their own, in the manner of HumanEval (Chen et al., 2107.03374).

The prompts are this project's own. An output is checked only when asked (``--run-code``), since that runs what a model
wrote: in a process of its own with limits on time, memory and files, but with the rights of the user.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from multitoken.bench.tasks.code_problems import PROBLEMS
from multitoken.bench.tasks.question import Question, TaskData
from multitoken.errors import OptionError

PROMPT = "Complete this Python function. Answer with the whole function in one code block.\n\n```python\n{stub}\n```"
FENCE = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)
SECONDS, MEMORY = 5, 1 << 30


def load(data: Path | None, run_code: bool) -> TaskData:
    if data is not None:
        raise OptionError("data", str(data), "task code has its own problems; leave --data out, or use --task jsonl")
    questions = [
        Question(problem.name, "code", (PROMPT.format(stub=problem.stub),), problem.tests) for problem in PROBLEMS
    ]
    digest = hashlib.sha256(repr(PROBLEMS).encode()).hexdigest()
    return TaskData("code", questions, scored=run_code, source="bundled", sha256=digest)


def correct(text: str, tests: str) -> bool:
    """The code in ``text`` passes ``tests`` within the limits."""
    blocks = FENCE.findall(text)
    return passes(blocks[0] if blocks else text, tests)


def passes(code: str, tests: str, seconds: float = SECONDS) -> bool:
    """Run ``code`` and then ``tests`` in an isolated interpreter, in an empty folder, without its environment."""
    program = f"{LIMITS}\n{code}\n\n{tests}\nprint('all tests passed')\n"
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-c", program],
                cwd=folder,
                env={},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=seconds,
                check=False,
            )
        except (subprocess.TimeoutExpired, ValueError):  # ValueError: a null byte in the code
            return False
    return done.returncode == 0 and done.stdout.endswith(b"all tests passed\n")


LIMITS = f"""
try:
    import resource as _r
    for _k, _v in ((_r.RLIMIT_AS, {MEMORY}), (_r.RLIMIT_FSIZE, 1 << 20), (_r.RLIMIT_CPU, {SECONDS})):
        _r.setrlimit(_k, (_v, _v))
except ImportError:
    pass
"""
