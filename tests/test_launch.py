"""The scripts of launch/, run in a copy of the checkout whose Python, pip and nvidia-smi are stubs."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from experiments import _main

ROOT = pathlib.Path(__file__).parent.parent
SCRIPTS = [*sorted(ROOT.glob("launch/*.sh")), ROOT / ".ci/run"]

# Logs its arguments. `-m venv` puts the stub itself into the environment; `-m pip` can be slow and can fail.
PYTHON = """#!/bin/bash
echo "$*" >>"$LOG"
case "$1 $2" in
  "-m venv") mkdir -p "${!#}/bin" && cp "$0" "${!#}/bin/python" ;;
  "-m pip") sleep "${PIP_SECONDS:-0}" && exit "${PIP_STATUS:-0}" ;;
esac
"""


class Checkout:
    def __init__(self, parent):
        self.root = parent / "a checkout"
        self.log = parent / "log"
        self.bin = parent / "bin"
        shutil.copytree(ROOT / "launch", self.root / "launch")
        shutil.copy(ROOT / "pyproject.toml", self.root)
        (self.root / "experiments").mkdir()
        for name in ("figure_one", "table_two", "_shared", "__init__"):
            (self.root / "experiments" / f"{name}.py").touch()
        self.bin.mkdir()
        self.stub("python3", PYTHON)
        self.stub("nvidia-smi", "#!/bin/bash\nexit 9\n")
        self.environment = {
            "PATH": f"{self.bin}:/usr/local/bin:/usr/bin:/bin",
            "LOG": str(self.log),
            "E2H_ROOT_DIR": str(parent / "devices"),
        }

    def stub(self, name, text):
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def start(self, script, *arguments, **environment):
        command = [self.root / "launch" / script, *arguments]
        pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        return subprocess.Popen(command, cwd="/", env=self.environment | environment, **pipes)

    def run(self, script, *arguments, **environment):
        process = self.start(script, *arguments, **environment)
        out, err = process.communicate(timeout=30)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def calls(self, start):
        """The logged calls of Python that start so, oldest first."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line for line in lines if line.startswith(start)]


@pytest.fixture
def checkout(tmp_path):
    return Checkout(tmp_path)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_script_is_executable_and_clean(script):
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", script], check=True)
    shellcheck = shutil.which("shellcheck", path=f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}")
    assert shellcheck, "shellcheck is missing; install the dev extra"
    result = subprocess.run([shellcheck, script], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("script", ["setup.sh", "reproduce.sh"])
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_exits_0_and_sets_nothing_up(checkout, script, flag):
    result = checkout.run(script, flag)
    assert result.returncode == 0
    assert result.stdout.startswith(f"Usage: launch/{script}")
    assert not (checkout.root / ".venv").exists()


@pytest.mark.parametrize(("name", "nearest"), [("figure_1", "figure_one"), ("tabel-two", "table_two")])
def test_unknown_experiment_exits_2_and_names_the_nearest(checkout, name, nearest):
    result = checkout.run("reproduce.sh", name, "--seed=1")
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert f"no experiment '{name}'; the nearest is {nearest} of figure_one, table_two." in result.stderr
    assert not (checkout.root / ".venv").exists()


@pytest.mark.parametrize("arguments", [(), ("",)])
def test_missing_experiment_exits_2_and_lists_them(checkout, arguments):
    result = checkout.run("reproduce.sh", *arguments)
    assert result.returncode == 2
    assert result.stderr == "reproduce: Name an experiment: figure_one, table_two.\n"
    assert not (checkout.root / ".venv").exists()


@pytest.mark.parametrize(
    "name", ["_shared", "__init__", "*", "figure_one.py", "figure_on.", "figure", "../e2h/rng", "-e"]
)
def test_only_listed_names_are_experiments(checkout, name):
    result = checkout.run("reproduce.sh", name)
    assert result.returncode == 2
    assert result.stderr.startswith("reproduce: There is no experiment")
    assert result.stderr.count("\n") == 1


def test_reproduce_sets_up_and_passes_the_flags_on(checkout):
    assert checkout.run("reproduce.sh", "table_two", "--name=a b", "--help").returncode == 0
    assert len(checkout.calls("-m pip install")) == 1
    assert checkout.calls("")[-1] == "-m experiments.table_two --name=a b --help"


@pytest.mark.parametrize("name", _main.TOOLS)
def test_tools_run_like_experiments_and_are_not_offered_as_such(checkout, name):
    (checkout.root / "experiments" / f"{name}.py").touch()
    assert name not in checkout.run("reproduce.sh", "--help").stdout
    assert checkout.run("reproduce.sh", f"{name}s").stderr.endswith("of figure_one, table_two.\n")
    assert checkout.run("reproduce.sh", name, "--a").returncode == 0
    assert checkout.calls("")[-1] == f"-m experiments.{name} --a"


def test_the_experiments_that_are_offered_are_the_ones_there_are():
    command = [ROOT / "launch" / "reproduce.sh", "--help"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert f"\nExperiments: {', '.join(_main.names())}.\n" in told


def test_pytest_gets_the_arguments_on_any_number_of_cores(checkout):
    checkout.stub("nproc", "#!/bin/bash\necho 96\n")
    assert checkout.run("setup.sh", "dev").returncode == 0
    checkout.stub("shellcheck", "#!/bin/bash\n")
    shutil.copy(checkout.bin / "shellcheck", checkout.root / ".venv/bin")
    assert checkout.run("test.sh", "-k", "a b").returncode == 0
    assert checkout.calls("-m pytest") == ["-m pytest -n 8 --dist worksteal -k a b"]


class TestWhich:
    def which(self, checkout, **environment):
        result = checkout.run("setup.sh", "--which", **environment)
        assert result.returncode == 0
        assert not (checkout.root / ".venv").exists()
        return result.stdout

    def device(self, checkout, vendor, number):
        folder = pathlib.Path(checkout.environment["E2H_ROOT_DIR"], "sys/bus/pci/devices/0000:00:04.0")
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(vendor + "\n")
        (folder / "device").write_text(number + "\n")

    def test_no_accelerator_is_cpu(self, checkout):
        assert self.which(checkout) == "cpu\n"

    def test_nvidia_gpu_is_cuda(self, checkout):
        checkout.stub("nvidia-smi", "#!/bin/bash\n[[ $* == -L ]] && echo 'GPU 0: NVIDIA H100 (UUID: GPU-0)'\n")
        assert self.which(checkout) == "cuda\n"

    def test_driver_without_a_gpu_is_cpu(self, checkout):
        checkout.stub("nvidia-smi", "#!/bin/bash\necho 'No devices found.'\n")
        assert self.which(checkout) == "cpu\n"

    def test_tpu_chip_is_tpu(self, checkout):
        self.device(checkout, "0x1ae0", "0x0063")
        assert self.which(checkout) == "tpu\n"

    @pytest.mark.parametrize(("vendor", "number"), [("0x1ae0", "0x0042"), ("0x8086", "0x0063")])
    def test_other_device_is_cpu(self, checkout, vendor, number):
        self.device(checkout, vendor, number)
        assert self.which(checkout) == "cpu\n"

    @pytest.mark.parametrize("build", ["cpu", "cuda", "tpu"])
    def test_environment_overrides(self, checkout, build):
        assert self.which(checkout, E2H_JAX=build) == f"{build}\n"

    def test_unknown_build_exits_2(self, checkout):
        for arguments in (["--which"], []):
            result = checkout.run("setup.sh", *arguments, E2H_JAX="gpu")
            assert (result.returncode, result.stderr) == (2, "setup: E2H_JAX is cpu, cuda or tpu, not 'gpu'.\n")


class TestSetup:
    PIP = "-m pip install --quiet --disable-pip-version-check --editable "

    def run(self, checkout, *arguments, **environment):
        result = checkout.run("setup.sh", *arguments, **environment)
        assert result.returncode == 0, result.stderr
        return result

    def installs(self, checkout):
        return [line.removeprefix(self.PIP) for line in checkout.calls("-m pip install")]

    @pytest.mark.parametrize(("build", "package"), [("cpu", "."), ("cuda", ".[cuda]"), ("tpu", ".[tpu]")])
    def test_installs_the_build_and_says_which(self, checkout, build, package):
        assert f"JAX for {build}; installing" in self.run(checkout, E2H_JAX=build).stderr
        assert self.installs(checkout) == [package]

    def test_second_setup_installs_nothing(self, checkout):
        self.run(checkout, "dev")
        assert self.run(checkout, "dev").stderr == "setup: JAX for cpu; .venv is up to date.\n"
        assert self.installs(checkout) == [".[dev]"]

    def test_extras_add_up(self, checkout):
        for extras in (["tfds"], ["dev"], [], ["tfds", "dev"]):
            self.run(checkout, *extras, E2H_JAX="cuda")
        assert self.installs(checkout) == [".[tfds,cuda]", ".[dev,tfds,cuda]"]

    def test_changed_pyproject_installs_again_into_the_same_environment(self, checkout):
        self.run(checkout, "dev")
        with open(checkout.root / "pyproject.toml", "a") as file:
            file.write("# changed\n")
        self.run(checkout)
        assert self.installs(checkout) == [".[dev]", ".[dev]"]
        assert len(checkout.calls("-m venv")) == 1

    def test_other_build_installs_again(self, checkout):
        self.run(checkout, E2H_JAX="cpu")
        self.run(checkout, E2H_JAX="cuda")
        assert self.installs(checkout) == [".", ".[cuda]"]

    def test_moved_checkout_installs_again(self, checkout):
        self.run(checkout)
        checkout.root = checkout.root.rename(checkout.root.with_name("moved"))
        self.run(checkout)
        assert self.installs(checkout) == [".", "."]

    def test_failed_installation_is_rebuilt_with_its_extras(self, checkout):
        assert checkout.run("setup.sh", "dev", PIP_STATUS="1").returncode == 1
        self.run(checkout)
        assert len(checkout.calls("-m venv")) == 2
        assert self.installs(checkout) == [".[dev]", ".[dev]"]
        self.run(checkout)
        assert len(self.installs(checkout)) == 2

    def test_environment_without_a_working_python_is_rebuilt(self, checkout):
        self.run(checkout, "dev")
        (checkout.root / ".venv/bin/python").unlink()
        self.run(checkout)
        assert len(checkout.calls("-m venv")) == 2
        assert self.installs(checkout) == [".[dev]", ".[dev]"]

    @pytest.mark.skipif(not shutil.which("flock"), reason="this machine cannot lock")
    def test_two_at_once_install_once(self, checkout):
        processes = [checkout.start("setup.sh", "dev", PIP_SECONDS="0.3") for _ in range(2)]
        outputs = [process.communicate(timeout=30) for process in processes]
        assert [process.returncode for process in processes] == [0, 0], outputs
        assert self.installs(checkout) == [".[dev]"]

    def test_no_suitable_python_exits_2(self, checkout):
        checkout.stub("python3", "#!/bin/bash\nexit 1\n")
        for name in ("python3.11", "python3.12", "python3.13", "python3.14"):
            checkout.stub(name, "#!/bin/bash\nexit 127\n")
        result = checkout.run("setup.sh")
        assert result.returncode == 2
        assert result.stderr.startswith("setup: No Python 3.11 or later")
        assert result.stderr.count("\n") == 1

    def test_named_python_is_the_only_candidate(self, checkout):
        result = checkout.run("setup.sh", E2H_PYTHON="/no/such/python")
        assert result.returncode == 2
        assert "among: /no/such/python;" in result.stderr
        (checkout.bin / "python3").rename(checkout.bin / "my python")
        self.run(checkout, E2H_PYTHON=str(checkout.bin / "my python"))
        assert self.installs(checkout) == ["."]

    def test_unknown_option_exits_2(self, checkout):
        assert checkout.run("setup.sh", "--wich").returncode == 2
        assert not (checkout.root / ".venv").exists()
