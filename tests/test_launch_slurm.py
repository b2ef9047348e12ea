"""launch/slurm.sh, in a checkout whose Python and SLURM are stubs that log what they are asked."""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

import pytest

from e2h.run import AGAIN

ROOT = pathlib.Path(__file__).parent.parent

# Logs its arguments, one a line; then ends with $CODE at once, or when it gets SIGTERM.
PYTHON = """#!/bin/bash
printf '%s\\n' "$@" "" >>"$LOG/python"
trap 'echo TERM >>"$LOG/signals"; exit "${CODE:-0}"' TERM
if [[ -n ${WAIT:-} ]]; then touch "$LOG/waits"; while true; do sleep 0.02; done; fi
exit "${CODE:-0}"
"""
LOGGED = """#!/bin/bash
printf '%s\\n' "$*" >>"$LOG/{name}"
"""
SRUN = LOGGED.format(name="srun") + 'for _ in 1 2; do "$@" & done; for job in $(jobs -p); do wait "$job"; done\n'


class Cluster:
    def __init__(self, parent):
        self.root, self.log, self.bin = parent / "a checkout", parent / "log", parent / "bin"
        for folder in (self.root / "experiments", self.root / ".venv/bin", self.log, self.bin):
            folder.mkdir(parents=True)
        shutil.copytree(ROOT / "launch", self.root / "launch")
        for name in ("one", "two"):
            (self.root / "experiments" / f"{name}.py").touch()
        self.stub(self.root / ".venv/bin/python", PYTHON)
        for name in ("sbatch", "scontrol"):
            self.stub(self.bin / name, LOGGED.format(name=name))
        self.stub(self.bin / "squeue", '#!/bin/bash\necho "${JOB_STATE:-RUNNING}"\n')
        self.environment = {"PATH": f"{self.bin}:/usr/local/bin:/usr/bin:/bin", "LOG": str(self.log)}

    def stub(self, path, text):
        path.write_text(text)
        path.chmod(0o755)

    def start(self, *arguments, cwd="/", **environment):
        pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        script = self.root / "launch/slurm.sh"
        return subprocess.Popen([script, *arguments], cwd=cwd, env=self.environment | environment, **pipes)

    def submit(self, *arguments, **more):
        process = self.start(*arguments, **more)
        out, err = process.communicate(timeout=30)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def job(self, *arguments, **environment):
        """As SLURM runs the script: anywhere, with its variables."""
        return self.submit(*arguments, SLURM_JOB_ID="71", SLURM_SUBMIT_DIR=str(self.root), **environment)

    def told(self, name):
        path = self.log / name
        return path.read_text() if path.exists() else ""


@pytest.fixture
def cluster(tmp_path):
    return Cluster(tmp_path)


def until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_header_asks_for_a_signal_to_the_script_and_for_requeueing():
    header = re.findall(r"^#SBATCH (.*)$", (ROOT / "launch/slurm.sh").read_text(), re.MULTILINE)
    assert {"--signal=B:TERM@120", "--requeue", "--open-mode=append"} <= set(header)


class TestSubmit:
    def test_passes_options_and_words_to_sbatch(self, cluster):
        assert cluster.submit("--array=0-9", "--time=1:0:0", "one", "--first_seed={i}", "--x=a b").returncode == 0
        assert cluster.told("sbatch") == "--array=0-9 --time=1:0:0 launch/slurm.sh one --first_seed={i} --x=a b\n"

    def test_dry_run_prints_what_bash_reads_back(self, cluster):
        odd = "--x=a 'b' \"c\" $HOME *"
        result = cluster.submit("--dry_run", "--array=0-9", "one", odd, "{i}")
        assert result.returncode == 0 and not cluster.told("sbatch")
        subprocess.run(["bash", "-c", result.stdout], env=cluster.environment, check=True)
        assert cluster.told("sbatch") == f"--array=0-9 launch/slurm.sh one {odd} {{i}}\n"

    def test_lines_are_counted_and_relative_to_the_caller(self, cluster, tmp_path):
        (tmp_path / "lines").write_text("one --a=1\ntwo '--b=c d'\none")
        assert cluster.submit("--gres=gpu:1", "--lines=lines", cwd=tmp_path).returncode == 0
        assert cluster.told("sbatch") == f"--gres=gpu:1 --array=1-3 launch/slurm.sh --lines={tmp_path}/lines\n"

    @pytest.mark.parametrize(
        "arguments, words",
        [
            ((), "Name an experiment"),
            (("three",), "no experiment 'three'"),
            (("../launch",), "no experiment"),
            (("one", "--first_seed={i}"), "--array=0-9"),
            (("--lines=no/such/file",), "no lines"),
        ],
    )
    def test_refuses_what_makes_no_sense(self, cluster, arguments, words):
        result = cluster.submit(*arguments)
        assert result.returncode == 2 and words in result.stderr and result.stderr.count("\n") == 1
        assert not cluster.told("sbatch")

    def test_a_wrong_line_is_refused_before_anything_is_submitted(self, cluster, tmp_path):
        (tmp_path / "lines").write_text("one\nthree\n")
        result = cluster.submit("--lines=lines", cwd=tmp_path)
        assert result.returncode == 2 and "'three'" in result.stderr and not cluster.told("sbatch")

    def test_without_setup_or_sbatch_says_so(self, cluster):
        (cluster.bin / "sbatch").unlink()
        if not shutil.which("sbatch", path=cluster.environment["PATH"]):
            assert "no sbatch" in cluster.submit("one").stderr
        shutil.rmtree(cluster.root / ".venv")
        result = cluster.submit("one")
        assert result.returncode == 2 and "launch/setup.sh" in result.stderr

    def test_help(self, cluster):
        result = cluster.submit("--help")
        assert result.returncode == 0 and result.stdout.startswith("Usage: launch/slurm.sh")


class TestJob:
    def test_a_task_of_an_array_has_its_own_flags(self, cluster):
        odd = ("--first_seed={i}", "--out={i}/{i}", 'it\'s $HOME "x" *', "")
        assert cluster.job("one", *odd, SLURM_ARRAY_TASK_ID="7").returncode == 0
        words = ["-m", "experiments.one", "--first_seed=7", "--out=7/7", *odd[2:]]
        assert cluster.told("python") == "\n".join([*words, "", ""])

    @pytest.mark.parametrize("task, words", [("1", ["one", "--a=1"]), ("2", ["two", "--b=c d", "--s=2"])])
    def test_a_task_runs_its_line(self, cluster, task, words):
        (cluster.root / "lines").write_text("one --a=1\ntwo '--b=c d' --s={i}\n")
        assert cluster.job("--lines=lines", SLURM_ARRAY_TASK_ID=task).returncode == 0
        assert cluster.told("python") == "\n".join(["-m", f"experiments.{words[0]}", *words[1:], "", ""])

    def test_a_line_is_not_run_by_a_shell(self, cluster):
        (cluster.root / "lines").write_text("one $(touch$IFS$LOG/bad) `touch bad`;touch\n")
        assert cluster.job("--lines=lines", SLURM_ARRAY_TASK_ID="1").returncode == 0
        assert "$(touch$IFS$LOG/bad)" in cluster.told("python") and not (cluster.log / "bad").exists()

    @pytest.mark.parametrize("task", ["0", "3"])
    def test_a_line_that_is_not_there_is_refused(self, cluster, task):
        (cluster.root / "lines").write_text("one\ntwo\n")
        assert cluster.job("--lines=lines", SLURM_ARRAY_TASK_ID=task).returncode != 0
        assert not cluster.told("python")

    @pytest.mark.parametrize("code", [0, 1, 2, 137, 143])
    def test_an_end_is_an_end(self, cluster, code):
        assert cluster.job("one", CODE=str(code)).returncode == code
        assert not cluster.told("scontrol")

    def test_again_is_queued_again(self, cluster):
        result = cluster.job("one", CODE=str(AGAIN))
        assert cluster.told("scontrol") == "requeue 71\n" and "again" in result.stderr

    def test_a_cancelled_job_does_not_come_back(self, cluster):
        result = cluster.job("one", CODE=str(AGAIN), JOB_STATE="COMPLETING")
        assert not cluster.told("scontrol") and "COMPLETING" in result.stderr

    def test_it_ends_at_last(self, cluster):
        assert cluster.job("one", CODE=str(AGAIN), SLURM_RESTART_COUNT="1000").returncode == AGAIN
        assert not cluster.told("scontrol")

    @pytest.mark.parametrize("code, again", [(AGAIN, True), (143, True), (0, False), (1, False)])
    def test_sigterm_reaches_the_run_and_its_code_is_heeded(self, cluster, code, again):
        job = dict(SLURM_JOB_ID="71", SLURM_SUBMIT_DIR=str(cluster.root), WAIT="1", CODE=str(code))
        process = cluster.start("one", **job)
        until((cluster.log / "waits").exists)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
        assert cluster.told("signals") == "TERM\n"
        assert process.returncode == code
        assert cluster.told("scontrol") == ("requeue 71\n" if again else "")

    def test_several_tasks_are_started_and_told_by_slurm(self, cluster):
        """A signal to srun itself would kill its tasks, so none is sent there."""
        cluster.stub(
            cluster.bin / "srun", "#!/bin/bash\ntrap 'echo srun >>\"$LOG/signals\"' TERM\n" + SRUN[12:] + "exit 75\n"
        )
        cluster.stub(cluster.bin / "scancel", LOGGED.format(name="scancel") + 'touch "$LOG/cancelled"\n')
        waiting = PYTHON.replace("while true", "while [[ ! -e $LOG/cancelled ]]")
        cluster.stub(cluster.root / ".venv/bin/python", waiting)
        job = dict(SLURM_JOB_ID="71", SLURM_SUBMIT_DIR=str(cluster.root), WAIT="1", SLURM_NTASKS="2")
        process = cluster.start("one", "--a=b c", **job)
        until(lambda: cluster.told("python").count("experiments.one") == 2)
        os.kill(process.pid, signal.SIGTERM)
        process.communicate(timeout=30)
        assert cluster.told("srun") == ".venv/bin/python -m experiments.one --a=b c\n"
        assert cluster.told("scancel") == "--signal=TERM 71\n"
        assert not cluster.told("signals")
        assert process.returncode == AGAIN and cluster.told("scontrol") == "requeue 71\n"
