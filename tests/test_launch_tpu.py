"""launch/tpu_vm.sh against a cloud in a directory."""

import os
import pathlib
import shlex
import shutil
import subprocess
import tarfile
import time

import pytest

from e2h.run import AGAIN
from tests._cloud import PYTHON, Cloud

ODD = ("--a=b c", "it's", '$HOME "x" `y`', "*", "", "--tab=\t")
COMMANDS = ("babysit", "create", "setup", "run", "status", "logs", "fetch", "stop", "delete")
BUCKET = "--bucket=gs://b/deep"


@pytest.fixture
def cloud(tmp_path):
    made = Cloud(tmp_path)
    yield made
    made.end()


def until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def words_of(command):
    return ("one", *ODD) if command in ("run", "babysit") else ()


class TestBabysit:
    def test_two_preemptions_are_three_launches_of_one_run_in_one_directory(self, cloud):
        cloud.plan("stored", "stored", 0)
        result = cloud.babysit("--spot", BUCKET, "--sync=1", "one", *ODD)
        assert result.returncode == 0, result.stderr
        assert cloud.told("events") == ["create", "delete", "create", "delete", "create"]
        (rows,) = cloud.fetched().values()
        assert rows == ["launch 1", "launch 2", "launch 3", "ends 0"]
        assert len(list((cloud.cloud / "bucket/b/deep").iterdir())) == 1

    def test_two_preemptions_of_a_queued_resource(self, cloud):
        cloud.plan("preempted", "preempted", 0)
        result = cloud.babysit("--queued", "one")
        assert result.returncode == 0, result.stderr
        assert cloud.told("events") == ["create", "delete", "create", "delete", "create"]
        assert cloud.launches() == 3
        assert list(cloud.fetched().values()) == [["launch 3", "ends 0"]]  # no bucket, so nothing survived

    def test_again_is_launched_again_on_the_same_vm(self, cloud):
        cloud.plan(AGAIN, 143, "vanishes", 0)
        result = cloud.babysit("one")
        assert result.returncode == 0, result.stderr
        assert cloud.told("events") == ["create"] and cloud.launches() == 4
        (rows,) = cloud.fetched().values()
        assert [row for row in rows if row.startswith("launch")] == [f"launch {i}" for i in range(1, 5)]

    @pytest.mark.parametrize("code", [1, 2, 137])
    def test_a_plain_failure_ends_it_and_keeps_the_vm(self, cloud, code):
        cloud.plan(AGAIN, code, 0)
        result = cloud.babysit("one")
        assert result.returncode == code and cloud.launches() == 2
        assert "failed" in result.stderr and "billed until" in result.stderr
        assert cloud.told("events") == ["create"]
        assert len(cloud.fetched()) == 1  # with the log

    def test_quick_ends_are_not_repeated_for_ever(self, cloud):
        cloud.plan(*[AGAIN] * 9)
        result = cloud.babysit("--tries=3", "one")
        assert result.returncode == 1 and cloud.launches() == 3 and "giving up" in result.stderr

    def test_ends_that_are_not_quick_do_not_count(self, cloud):
        cloud.plan(*[AGAIN] * 4, 0)
        assert cloud.babysit("--tries=3", "--quick=0", "one").returncode == 0

    def test_deletes_after_fetching_if_asked(self, cloud):
        cloud.plan(1)
        assert cloud.babysit("--delete", "one").returncode == 1
        assert cloud.told("events") == ["create", "delete"] and len(cloud.fetched()) == 1

    def test_does_not_delete_what_could_not_be_fetched(self, cloud):
        assert cloud.babysit(BUCKET, "one").returncode == 0
        shutil.rmtree(cloud.cloud / "bucket")
        result = cloud.babysit("--delete", BUCKET, "one")
        assert cloud.told("events") == ["create"] and "nothing was fetched" in result.stderr

    def test_waits_for_a_free_tpu(self, cloud):
        full = 'code 8: There is no more capacity in the zone "a-zone"; you can try another zone'
        cloud.errors("tpu-vm-create", full, full)
        result = cloud.babysit("--tries=1", "one")
        assert result.returncode == 0 and cloud.told("events") == ["create"]
        assert result.stderr.count("There is no free v5litepod-1") == 2

    def test_does_not_wait_for_quota(self, cloud):
        cloud.errors("tpu-vm-create", "RESOURCE_EXHAUSTED: Quota limit 'TPUV5' has been exceeded. Limit: 0", *["x"] * 9)
        result = cloud.babysit("one")
        assert result.returncode == 1 and "no quota left" in result.stderr
        assert sum("create" in call for call in cloud.calls()) == 1

    def test_finds_a_run_that_is_going_on(self, cloud):
        cloud.plan("waits")
        for command in ("create", "setup"):
            assert cloud.run(command).returncode == 0
        assert cloud.run("run", "one").returncode == 0
        process = cloud.start("babysit", "--poll=0.05", "--to=fetched", "one")
        while "running already" not in process.stderr.readline():
            assert process.poll() is None
        (cloud.cloud / "go").touch()
        process.communicate(timeout=30)
        assert process.returncode == 0 and cloud.launches() == 1 and len(cloud.fetched()) == 1

    def test_a_run_that_has_ended_is_not_run_again(self, cloud):
        assert cloud.babysit("one").returncode == 0
        assert cloud.babysit("one").returncode == 0
        assert cloud.launches() == 1

    def test_an_unreachable_cloud_is_not_asked_for_ever(self, cloud):
        cloud.errors("tpu-vm-describe", "", *["Connection refused"] * 99)
        result = cloud.babysit("one")
        assert result.returncode == 1 and "no answer 30 times" in result.stderr and not cloud.launches()

    def test_what_fails_at_once_ends_at_once(self, cloud):
        cloud.errors("tpu-vm-describe", *["PERMISSION_DENIED: Permission denied on project"] * 99)
        result = cloud.babysit("one")
        assert result.returncode == 1 and result.stderr.count("TPU Admin") == 1 and not cloud.told("events")

    def test_no_vm_is_made_for_a_bucket_that_is_not_there(self, cloud):
        for command in (["babysit", "--bucket=gs://none/deep", "one"], ["create", "--bucket=gs://none"]):
            result = cloud.run(*command)
            assert result.returncode == 2 and "buckets create gs://none --project=a-project" in result.stderr
        assert not cloud.told("events")

    def test_a_stopped_vm_is_left_to_its_owner(self, cloud):
        (cloud.cloud / "state").write_text("STOPPED\n")
        result = cloud.babysit("one")
        assert result.returncode == 1 and "STOPPED" in result.stderr and not cloud.told("events")

    def test_a_failing_setup_is_not_repeated_for_ever(self, cloud):
        cloud.stub(cloud.cloud / "vm-bin/python3", PYTHON.replace("*) exit 0", '"-m pip") exit 1 ;;\n  *) exit 0'))
        result = cloud.babysit("--tries=2", "one")
        assert result.returncode == 1 and "setup failed" in result.stderr and not cloud.launches()


class TestWorkers:
    def test_all_run_and_the_first_stores(self, cloud):
        assert cloud.babysit(BUCKET, "one", WORKERS="4").returncode == 0
        assert [cloud.launches(i) for i in range(4)] == [1, 1, 1, 1]
        uploads = [call for call in cloud.calls() if call[:2] == ["storage", "cp"] and call[3].startswith("gs://")]
        assert len(uploads) == 2 and all("/vm/0/" in words[2] for words in uploads)  # at the start and at the end

    def test_all_begin_with_what_is_stored(self, cloud):
        cloud.plan("stored", 0)
        cloud.plan("waits", 0, worker=1)
        assert cloud.babysit(BUCKET, "--sync=1", "one", WORKERS="2").returncode == 0
        (run,) = (cloud.cloud / "vm/1/e2h-runs").glob("one-*")
        rows = (run / "runs/one/digest/rows.jsonl").read_text().splitlines()
        assert rows[0] == "launch 1" and rows[-2:] == ["launch 2", "ends 0"]

    @pytest.mark.parametrize("end, code", [(AGAIN, 0), (1, 1)])
    def test_one_that_ends_early_ends_the_others(self, cloud, end, code):
        """They would wait for it for ever. A failure of one is the run's, though the others were told to stop."""
        cloud.plan(end, 0)
        cloud.plan("waits", 0, worker=1)
        result = cloud.babysit("one", WORKERS="2")
        assert cloud.launches(1) == 2 - code, result.stderr
        assert result.returncode == code


class TestRun:
    @pytest.fixture
    def ready(self, cloud):
        for command in ("create", "setup"):
            result = cloud.run(command)
            assert result.returncode == 0, result.stderr
        return cloud

    def test_words_arrive_unharmed(self, ready):
        assert ready.run("run", "one", *ODD).returncode == 0
        until(lambda: ready.told("words"))
        words = (ready.cloud / "words").read_text().split("\n")
        assert words[: len(ODD) + 2] == ["-m", "experiments.one", *ODD]

    def test_same_words_are_the_same_run(self, ready):
        for words in (["a b"], ["a b"], ["a", "b"]):
            assert ready.run("run", "one", *words).returncode == 0
            until(lambda: "exit 0" in ready.run("run_states").stdout)
        folders = list((ready.cloud / "vm/0/e2h-runs").glob("one-*"))
        assert len(folders) == 2

    def test_outlives_the_connection_and_stops_when_told(self, ready):
        ready.plan("waits")
        result = ready.run("run", "--run=mine", "one")
        assert result.returncode == 0 and "mine runs on e2h" in result.stderr
        until(ready.launches)
        status = ready.run("status").stdout
        assert status.startswith("e2h: READY\ne2h-state: running\n") and status.endswith("launch 1\n")
        assert ready.run("stop").returncode == 0
        assert "e2h-state: exit 75" in ready.run("status").stdout
        log = ready.run("logs").stdout
        assert "launch 1" in log and "experiments.one" not in log.splitlines()[1] and "ended with 75" in log

    def test_status_without_a_run_or_a_vm(self, ready):
        result = ready.run("status")
        assert (result.returncode, result.stdout) == (0, "e2h: READY\n") and "no such run" in result.stderr
        ready.run("delete", "--yes")
        result = ready.run("status")
        assert (result.returncode, result.stdout) == (0, "e2h: absent\n")

    def test_a_tpu_serves_one_run_at_a_time(self, ready):
        ready.plan("waits")
        assert ready.run("run", "--run=mine", "one").returncode == 0
        assert ready.run("run", "--run=mine", "one").returncode == 0  # the same one: nothing to do
        for command in (("run", "one"), ("setup",)):
            result = ready.run(*command)
            assert result.returncode == 1 and "mine is running" in result.stderr
        assert ready.launches() == 1
        ready.run("stop")

    def test_the_working_tree_is_what_runs(self, ready):
        (ready.root / "experiments/one.py").write_text("changed")
        (ready.root / "experiments/secret.py").touch()
        (ready.root / "experiments/benchmark.py").unlink()
        before = (ready.root / ".git/HEAD").read_text(), ready.told("events")
        assert ready.run("setup").returncode == 0
        there = ready.cloud / "vm/0/e2h"
        assert (there / "experiments/one.py").read_text() == "changed"
        assert sorted(p.name for p in (there / "experiments").iterdir()) == ["_main.py", "one.py"]
        assert (there / ".commit").read_text().endswith("+changes\n")
        assert (there / ".venv/bin/python").exists()
        assert ((ready.root / ".git/HEAD").read_text(), ready.told("events")) == before
        assert (ready.root / "experiments/one.py").read_text() == "changed"

    def test_a_run_is_stored_with_checkpoints_before_rows(self, ready):
        """So the rows in it are never behind the checkpoints, and a run can be continued from it."""
        ready.run("run", "--run=mine", BUCKET, "one")
        until(lambda: "exit 0" in ready.run("run_states").stdout)
        with tarfile.open(ready.cloud / "bucket/b/deep/mine.tar") as packed:
            names = packed.getnames()
        rows, checkpoint = (names.index(f"mine/runs/one/digest/{name}") for name in ("rows.jsonl", "checkpoints/1"))
        assert checkpoint < rows
        assert "mine/log" in names and not {"mine/pid", "mine/exit"} & set(names)

    def test_a_bucket_that_cannot_be_read_stops_the_start(self, ready):
        """Begun anew, the run would be stored over the old one."""
        ready.stub(ready.cloud / "vm-bin/gcloud", "#!/bin/bash\necho 'HTTPError 403: no access' >&2\nexit 1\n")
        result = ready.run("run", "--run=mine", BUCKET, "one")
        assert result.returncode == 1 and "no access" in result.stderr and not ready.launches()

    def test_a_bucket_that_cannot_be_written_stops_the_start(self, ready):
        result = ready.run("run", "--bucket=gs://read-only", "one")
        assert result.returncode == 1 and "Storage Object User" in result.stderr and not ready.launches()

    def test_fetch_brings_all_runs_or_one_from_the_vm_or_the_bucket(self, ready):
        for run in ("a", "b"):
            ready.run("run", f"--run={run}", BUCKET, "one")
            until(lambda: "exit 0" in ready.run("run_states").stdout)
        for arguments, there in [(["--run=b"], {"b"}), ([], {"a", "b"}), (["--run=a", BUCKET], {"a"})]:
            assert ready.run("fetch", "--to=fetched", *arguments).returncode == 0
            assert set(ready.fetched()) == there
            shutil.rmtree(ready.cloud.parent / "fetched")

    def test_an_old_python_is_replaced(self, cloud):
        """The images of TPU VMs have 3.10, which setup.sh refuses."""
        good = cloud.cloud / "good"
        cloud.stub(good, PYTHON)
        old = f"""#!/bin/bash
            echo "$*" >>"$CLOUD/old"
            case "$*" in "-m uv python find"*) echo {shlex.quote(str(good))} ;; "-m "*) ;; *) exit 1 ;; esac"""
        for name in ("python3", *(f"python3.{i}" for i in range(11, 15))):
            cloud.stub(cloud.cloud / "vm-bin" / name, old)
        cloud.run("create")
        result = cloud.run("setup")
        assert result.returncode == 0, result.stderr
        assert "-m pip install --quiet --user uv" in cloud.told("old")
        assert (cloud.cloud / "vm/0/e2h/.venv/bin/python").read_text() == PYTHON


class TestDryRun:
    PLACE = ("--zone=z", "--project=p", "--name=odd-name")

    @pytest.mark.parametrize("more", [(), ("--queued", "--spot", BUCKET, "--run=r", "--delete")], ids=["bare", "all"])
    @pytest.mark.parametrize("command", COMMANDS)
    def test_runs_nothing_and_prints_what_bash_reads(self, cloud, command, more):
        cloud.stub(cloud.bin / "tar", '#!/bin/bash\ntouch "$CLOUD/ran"\n')
        result = cloud.run(command, "--dry_run", *more, *words_of(command))
        assert result.returncode == 0 and result.stdout, result.stderr
        assert not cloud.told("calls") and not (cloud.cloud / "ran").exists()
        subprocess.run(["bash", "-n"], input=result.stdout, text=True, check=True)
        assert not (cloud.cloud.parent / "runs").exists()

    @pytest.mark.parametrize("command", ["create", "run", "stop", "logs", "delete"])
    def test_pasted_it_does_the_same(self, cloud, command):
        """The same words reach gcloud."""
        arguments = (*self.PLACE, "--yes", BUCKET, "--spot", *words_of(command))
        printed = cloud.run(command, "--dry_run", *arguments).stdout
        cloud.run(command, *arguments)
        asked = ("accelerator-types", "ls")  # about what there is, to explain a failure and before creating
        really = [call for call in cloud.calls() if not set(asked) & set(call)]
        (cloud.cloud / "calls").unlink()
        subprocess.run(["bash", "-c", printed], env=cloud.environment, check=False, capture_output=True)
        assert really and cloud.calls() == really

    def test_needs_no_gcloud(self, cloud):
        (cloud.bin / "gcloud").write_text("#!/bin/bash\nexit 127\n")
        assert "tpu-vm create e2h" in cloud.run("create", "--dry_run").stdout

    def test_names_what_was_chosen(self, cloud):
        printed = shlex.split(cloud.run("create", "--dry_run", "--spot", "--type=v6e-8", *self.PLACE).stdout)
        assert printed[:6] == ["gcloud", "compute", "tpus", "tpu-vm", "create", "odd-name"]
        wanted = {"--accelerator-type=v6e-8", "--version=v2-alpha-tpuv6e", "--spot", "--zone=z", "--project=p"}
        assert wanted <= set(printed)

    def test_asks_for_a_queued_resource(self, cloud):
        printed = shlex.split(cloud.run("create", "--dry_run", "--queued", "--type=v4-8", "--version=v").stdout)
        assert printed[3:6] == ["queued-resources", "create", "e2h"]
        assert {"--accelerator-type=v4-8", "--runtime-version=v", "--node-id=e2h"} <= set(printed)
        assert "--spot" not in printed


class TestRefusals:
    @pytest.mark.parametrize(
        "arguments, words",
        [
            ((), "no command ''"),
            (("launch",), "no command 'launch'"),
            (("create", "--zoen=z"), "no option '--zoen=z'"),
            (("create", "--type=v9-8"), "'v9-8'"),
            (("create", "--name=A B"), "'A B'"),
            (("run", "--run=../x", "one"), "'../x'"),
            (("run", "--bucket=b", "one"), "gs://NAME"),
            (("run", "--sync=soon", "one"), "'soon'"),
            (("babysit", "--tries=few", "one"), "'few'"),
            (("run",), "Name an experiment"),
            (("babysit", "two"), "no experiment 'two'"),
            (("babysit", "benchmark"), "no experiment 'benchmark'"),
            (("run", "_main"), "no experiment '_main'"),
            (("run", "../experiments/one"), "no experiment"),
            (("run", "one", "--runs=x"), "--runs is chosen"),
            (("delete", "my-vm"), "--name=NAME"),
            (("fetch", BUCKET), "--run=RUN"),
        ],
    )
    def test_what_makes_no_sense_exits_2_before_anything_is_asked(self, cloud, arguments, words):
        result = cloud.run(*arguments)
        assert result.returncode == 2 and words in result.stderr and result.stderr.count("\n") == 1
        assert not [call for call in cloud.calls() if call[0] != "config"]

    def test_an_experiment_that_would_not_be_copied(self, cloud):
        (cloud.root / "experiments/new.py").touch()
        assert "git add" in cloud.run("run", "new").stderr

    @pytest.mark.parametrize("name, words", [("PROJECT", "Which project?"), ("ZONE", "Which zone?")])
    def test_without_a_project_or_a_zone(self, cloud, name, words):
        result = cloud.run("create", **{name: ""})
        assert result.returncode == 2 and words in result.stderr and not cloud.told("events")

    def test_without_gcloud(self, cloud):
        """On a PATH that has all that is needed but gcloud."""
        shutil.rmtree(cloud.bin)
        cloud.bin.mkdir()
        for name in ("bash", "dirname", "git"):
            os.symlink(shutil.which(name), cloud.bin / name)
        result = cloud.run("create", PATH=str(cloud.bin))
        assert result.returncode == 2 and "gcloud is missing" in result.stderr

    @pytest.mark.parametrize(
        "message, words, code",
        [
            ("RESOURCE_EXHAUSTED: Quota limit 'TPUV5sPreemptible' has been exceeded. Limit: 0", "no quota left", 1),
            ("There is no more capacity in the zone; you can try in another zone", "no free v5litepod-1", 75),
            ("Quota exceeded for 'Write requests per minute'", "Not just now", 75),
            ("INVALID_ARGUMENT: Invalid accelerator type", "This zone has v2-8 v3-8.", 1),
            ("PERMISSION_DENIED: Permission 'tpu.nodes.create' denied", "TPU Admin", 1),
            ("Cloud TPU API has not been used in project p before", "gcloud services enable tpu.googleapis.com", 1),
            ("You do not currently have an active account selected.", "gcloud auth login", 1),
            ("ALREADY_EXISTS: Resource already exists", "--name", 1),
            ("Invalid choice: 'tpu-vm'.", "components update", 1),
            ("Something nobody has met", "", 1),
        ],
    )
    def test_what_gcloud_says_is_shown_and_explained(self, cloud, message, words, code):
        cloud.errors("tpu-vm-create", message)
        result = cloud.run("create")
        assert result.returncode == code and message in result.stderr and words in result.stderr
        assert "billed" not in result.stderr

    def test_help(self, cloud):
        result = cloud.run("--help")
        assert result.returncode == 0 and result.stdout.startswith("Usage: launch/tpu_vm.sh")
        assert all(f"\n  {command} " in result.stdout for command in COMMANDS)


class TestDelete:
    @pytest.mark.parametrize(
        "arguments, answer, deleted",
        [((), "y\n", True), ((), "n\n", False), ((), "\n", False), ((), "", False), (("--yes",), "", True)],
    )
    def test_asks(self, cloud, arguments, answer, deleted):
        cloud.run("create")
        result = cloud.run("delete", *arguments, answer=answer)
        assert result.returncode == (0 if deleted else 1)
        assert cloud.told("events") == (["create", "delete"] if deleted else ["create"])

    def test_create_says_what_it_costs_and_how_to_end_that(self, cloud):
        result = cloud.run("create", "--name=mine")
        assert "billed from now on" in result.stderr
        command = result.stderr.strip().rpartition("until: ")[2]
        subprocess.run(["bash", "-c", f"{command} --yes"], cwd=cloud.root, env=cloud.environment, check=True)
        assert cloud.told("events") == ["create", "delete"]


def test_the_code_for_again_is_the_one_of_the_host_loop():
    for name in ("_tpu_babysit.sh", "slurm.sh"):
        assert str(AGAIN) in (pathlib.Path(__file__).parent.parent / "launch" / name).read_text()
