"""A cloud in a directory: a gcloud that keeps TPU VMs as directories, and a Python that plays an experiment."""

import os
import pathlib
import shutil
import signal
import subprocess

ROOT = pathlib.Path(__file__).parent.parent

GCLOUD = r"""#!/bin/bash
printf '%s\x1f' "$@" >>"$CLOUD/calls"; echo >>"$CLOUD/calls"
log() { echo "$*" >>"$CLOUD/events"; }
fail() { echo "ERROR: (gcloud) $1" >&2; exit 1; }
absent() { fail "NOT_FOUND: Resource 'projects/p/nodes/n' was not found"; }
option() { local word; for word in "${all[@]}"; do [[ $word == "--$1="* ]] && echo "${word#*=}"; done; }
local_path() { case $1 in gs://*) echo "$CLOUD/bucket/${1#gs://}" ;; *) echo "$1" ;; esac; }
appear() {
  local i
  for ((i = 0; i < ${WORKERS:-1}; i++)); do mkdir -p "$CLOUD/vm/$i"; done
  echo READY >"$CLOUD/state"
}
each() { # worker
  if [[ $(option worker) == all ]]; then ls "$CLOUD/vm"; else option worker; fi
}
all=("$@")
case "$*" in
  "config get-value project") echo "${PROJECT-a-project}"; exit ;;
  "config get-value compute/zone") echo "${ZONE-a-zone}"; exit ;;
esac
if [[ -s $CLOUD/errors/$3-$4 ]]; then # what each call fails with, if it does
  message=$(head -n 1 "$CLOUD/errors/$3-$4") && sed -i 1d "$CLOUD/errors/$3-$4"
  if [[ -n $message ]]; then fail "$message"; fi
fi
case "$1 $2 $3 $4" in
  "compute tpus tpu-vm create") log create; appear ;;
  "compute tpus tpu-vm delete") log delete; rm -rf "$CLOUD/vm" "$CLOUD/state" ;;
  "compute tpus tpu-vm describe") cat "$CLOUD/state" 2>/dev/null || absent ;;
  "compute tpus tpu-vm accelerator-types") printf '%s\n' v3-8 v2-8 ;;
  "compute tpus queued-resources create") log create; echo WAITING_FOR_RESOURCES >"$CLOUD/request" ;;
  "compute tpus queued-resources delete") log delete; rm -rf "$CLOUD/vm" "$CLOUD/state" "$CLOUD/request" ;;
  "compute tpus queued-resources describe")
    cat "$CLOUD/request" 2>/dev/null || absent
    if [[ $(<"$CLOUD/request") == WAITING* ]]; then echo ACTIVE >"$CLOUD/request"; appear; fi
    if [[ $(<"$CLOUD/state") == PREEMPTED ]]; then echo SUSPENDED >"$CLOUD/request"; fi
    ;;
  "compute tpus tpu-vm ssh")
    [[ -e $CLOUD/state ]] || absent
    [[ $(<"$CLOUD/state") == READY ]] || fail "unusable"
    status=0
    for worker in $(each); do
      (cd "$CLOUD/vm/$worker" && HOME=$PWD PATH="$CLOUD/vm-bin:$PATH" WORKER=$worker bash -c "$(option command)") ||
        status=$?
    done
    exit "$status"
    ;;
  "compute tpus tpu-vm scp")
    [[ -e $CLOUD/state ]] || absent
    words=()
    for word in "${all[@]:4}"; do [[ $word == --* ]] || words+=("$word"); done
    for worker in $(each); do
      from=${words[0]} to=${words[1]}
      case $from in
        *:*) eval cp -r "$CLOUD/vm/$worker/${from#*:}" '"$to"' ;; # a star in it is for the VM's shell
        *) cp "$from" "$CLOUD/vm/$worker/${to#*:}" ;;
      esac
    done
    ;;
  "storage ls gs://none"*) fail "gs://none not found: 404." ;;
  "storage ls "*) [[ -e $(local_path "$3") ]] || fail "One or more URLs matched no objects." ;;
  "storage cp "*)
    case $4 in gs://read-only/*) fail "HTTPError 403" ;; esac
    mkdir -p "$(dirname "$(local_path "$4")")" && cp "$(local_path "$3")" "$(local_path "$4")"
    ;;
  *) fail "unknown: $*" ;;
esac
"""

# Makes virtual environments of itself, and plays experiments: the plan's line for this launch says how it ends.
PYTHON = r"""#!/bin/bash
case "$1 $2" in
  "-m venv") mkdir -p "${!#}/bin" && cp "$0" "${!#}/bin/python"; exit ;;
  "-m experiments."*) ;;
  *) exit 0 ;;
esac
for word in "$@"; do [[ $word == --runs=* ]] && runs=${word#*=}; [[ $word == --results=* ]] && results=${word#*=}; done
echo launch >>"$CLOUD/launches.$WORKER"
launch=$(grep -c '' "$CLOUD/launches.$WORKER")
printf '%s\n' "$@" >"$CLOUD/words"
mkdir -p "$runs/one/digest/checkpoints" "$results"
echo "launch $launch" | tee -a "$runs/one/digest/rows.jsonl" "$runs/one/digest/checkpoints/1"
ends() { echo "ends $1" >>"$runs/one/digest/rows.jsonl"; echo "$1" >"$results/claims.json"; exit "$1"; }
gone() { # the VM with all that runs on it
  echo PREEMPTED >"$CLOUD/state"
  for pid in "$CLOUD"/vm/*/e2h-runs/*/pid; do [[ $(<"$pid") == "$PPID" ]] || kill -KILL -- "-$(<"$pid")"; done
  kill -KILL -- "-$PPID"
}
case $(sed -n "${launch}p" "$CLOUD/plan.$WORKER") in
  stored) # lives until its rows are in the bucket
    rows() { tar -xOf "$CLOUD"/bucket/*/*/*.tar --wildcards '*rows.jsonl' 2>/dev/null; }
    until rows | grep -q "launch $launch"; do sleep 0.02; done
    gone ;;
  preempted) gone ;;
  vanishes) kill -KILL -- "-$PPID" ;;
  waits) trap 'ends 75' TERM; until [[ -e $CLOUD/go ]]; do sleep 0.02; done; ends 0 ;;
  "") ends 0 ;;
  *) ends "$(sed -n "${launch}p" "$CLOUD/plan.$WORKER")" ;;
esac
"""


class Cloud:
    def __init__(self, parent):
        self.root, self.cloud, self.bin = parent / "a checkout", parent / "cloud", parent / "bin"
        for folder in (self.root / "experiments", self.cloud / "vm-bin", self.cloud / "errors", self.bin):
            folder.mkdir(parents=True)
        shutil.copytree(ROOT / "launch", self.root / "launch")
        shutil.copy(ROOT / "pyproject.toml", self.root)
        for name in ("one", "benchmark", "_main"):
            (self.root / "experiments" / f"{name}.py").write_text("committed")
        self.stub(self.bin / "gcloud", GCLOUD)
        self.stub(self.cloud / "vm-bin/python3", PYTHON)
        self.stub(self.cloud / "vm-bin/hostname", '#!/bin/bash\necho "t1v-n-1234-w-$WORKER"\n')
        self.environment = {
            "PATH": f"{self.bin}:/usr/local/bin:/usr/bin:/bin",
            "CLOUD": str(self.cloud),
            "HOME": str(parent),  # no settings of whoever runs the tests
            "GIT_CONFIG_NOSYSTEM": "1",
        }
        self.git("init", "-q")
        self.git("add", ".")
        self.git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "first")

    def stub(self, path, text):
        path.write_text(text)
        path.chmod(0o755)

    def git(self, *arguments):
        subprocess.run(["git", *arguments], cwd=self.root, env=self.environment, check=True)

    def plan(self, *ends, worker=0):
        """How the launches end: stored, preempted, vanishes, waits, or a code; with 0 when nothing is planned."""
        (self.cloud / f"plan.{worker}").write_text("".join(f"{end}\n" for end in ends))

    def errors(self, command, *messages):
        (self.cloud / "errors" / command).write_text("".join(f"{message}\n" for message in messages))

    def start(self, *arguments, **environment):
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        command = [self.root / "launch/tpu_vm.sh", *arguments]
        return subprocess.Popen(
            command, cwd=self.cloud.parent, env=self.environment | environment, start_new_session=True, **pipes
        )

    def run(self, *arguments, answer="", **environment):
        with self.start(*arguments, **environment) as process:
            try:
                out, err = process.communicate(answer, timeout=60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                raise
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def babysit(self, *arguments, **environment):
        return self.run("babysit", "--poll=0.05", "--to=fetched", *arguments, **environment)

    def end(self):
        """Kills what a failed test has left running: each supervisor leads a group."""
        for pid in self.cloud.glob("vm/*/e2h-runs/*/pid"):
            subprocess.run(["kill", "-KILL", "--", f"-{pid.read_text().strip()}"], stderr=subprocess.DEVNULL)

    def told(self, name):
        path = self.cloud / name
        return path.read_text().splitlines() if path.exists() else []

    def calls(self):
        """The words of each call of gcloud."""
        return [line.split("\x1f")[:-1] for line in self.told("calls")]

    def launches(self, worker=0):
        return len(self.told(f"launches.{worker}"))

    def fetched(self):
        """The rows of each fetched run."""
        folder = self.cloud.parent / "fetched"
        return {p.parts[-5]: p.read_text().splitlines() for p in folder.glob("*/runs/one/digest/rows.jsonl")}
