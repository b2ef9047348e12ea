#!/usr/bin/env bash
set -euo pipefail

usage() {
  cat <<'END'
Usage: launch/tpu_vm.sh COMMAND [OPTION...] [EXPERIMENT [FLAG...]]

Runs an experiment on a Cloud TPU VM, on all of its workers. Needs gcloud (https://cloud.google.com/sdk/docs/install,
then `gcloud auth login`), a project with billing, and in it, once, `gcloud services enable tpu.googleapis.com`.

  babysit   all of the below until the experiment has ended: creates the VM if there is none, sets it up, runs, and
            after a pre-emption does so again; the run continues under its id. Fetches what came out. Called again
            while the run goes on, it finds it.
  create    creates the VM
  setup     copies the files that git tracks, as they are now, to every worker and installs them there
  run       starts the experiment, detached: a lost connection does not end it
  status    the state of the VM and of the run, and the last lines of its log
  logs      the log of worker 0, until the run ends
  fetch     copies the run from worker 0 (or the bucket) to --to
  stop      asks the run to save and end
  delete    deletes the VM and all on its disk, after asking

Options, before the experiment:
  --name=NAME        of the VM (e2h)
  --zone=ZONE        e.g. us-central1-a (gcloud's compute/zone)
  --project=ID       (gcloud's project)
  --type=TYPE        accelerator type (v5litepod-1: one chip); what a zone has is told by
                     gcloud compute tpus tpu-vm accelerator-types list --zone=ZONE
  --version=VERSION  software of the VM (the one for JAX on that type)
  --spot             cheaper, may be taken away at any moment
  --queued           asks through a queued resource, which waits for a free TPU; say it to every command
  --bucket=gs://B    keeps a copy of the run there, which is continued on another VM; the VM's service account must be
                     allowed to write there (role Storage Object User). Without, what is not fetched goes with the VM.
  --sync=SECONDS     between two copies to the bucket (300)
  --run=RUN          id of the run (the experiment and a hash of its flags, so the same words continue the same run;
                     of status, logs, fetch and stop without an experiment: the latest; fetch: all)
  --to=DIRECTORY     where fetch puts runs (runs/tpu)
  --yes              delete without asking
  --dry_run          prints the commands instead, to be read or pasted; runs none
  --poll=SECONDS     babysit: between two looks (60)
  --tries=N          babysit: gives up after N attempts in a row that ended within --quick=SECONDS (5, 300)
  --delete           babysit: deletes the VM at the end, however it ended, if what came out has been fetched

Cost: a VM is billed from create to delete, whether it computes or not, a spot VM at a lower price
(https://cloud.google.com/tpu/pricing); a bucket by its size. Nothing but `delete` and `babysit --delete` ends it.
Clean up with `delete`, then look: gcloud compute tpus tpu-vm list --zone=ZONE, and queued-resources likewise.

Copying to several workers needs gcloud's ssh key in an agent: eval "$(ssh-agent)" && ssh-add ~/.ssh/google_compute_engine

Ends with 0; 2 for a request that makes no sense here; 75 if there is no free TPU now; 1 if something else failed;
babysit with the code of the experiment.
END
}

say() { echo "tpu_vm: $*" >&2; }
refuse() {
  say "$1"
  exit 2
}

# Words as one line that a shell reads back as the same words.
quoted() {
  local word line=''
  for word in "$@"; do
    case $word in
      '' | *[!A-Za-z0-9_./:=@%+,-]*) word=\'${word//\'/\'\\\'\'}\' ;;
    esac
    line+="${line:+ }$word"
  done
  echo "$line"
}

act() {
  if [[ -n $dry_run ]]; then quoted "$@"; else "$@"; fi
}
tpus() { act gcloud compute tpus "$@" "${where[@]}"; }
on_worker() {
  local workers=$1
  shift
  tpus tpu-vm ssh "$name" --worker="$workers" --command="$(quoted bash e2h/launch/_tpu_worker.sh "$@")"
}

# gcloud, whose messages are seen at once and explained if it fails.
explained() {
  local status=0
  { "$@" 2>&1 >&3 3>&- | tee "$scratch/messages" >&2; } 3>&1 || status=$?
  if ((status)); then launch/_tpu_explain.sh "$type" "$version" "${where[@]}" <"$scratch/messages"; fi
}

# What gcloud says the state is, or `absent`.
described() {
  if tpus "$@" 2>"$scratch/messages"; then return; fi
  if grep -qiE 'not_found|not found' "$scratch/messages"; then echo absent && return; fi
  cat "$scratch/messages" >&2
  launch/_tpu_explain.sh "$type" "$version" "${where[@]}" <"$scratch/messages"
}

# The state of the VM, or while there is none that of the request for it.
vm_state() {
  local request=ACTIVE
  if [[ -n $queued ]]; then
    request=$(described queued-resources describe "$name" --format='value(state.state)')
    if [[ $request != ACTIVE ]]; then echo "$request"; fi
  fi
  if [[ -n $dry_run || $request == ACTIVE ]]; then described tpu-vm describe "$name" --format='value(state)'; fi
}

create() {
  local asked=(--accelerator-type="$type") kind=tpu-vm
  if [[ -n $queued ]]; then
    kind="queued-resources"
    asked+=(--runtime-version="$version" --node-id="$name")
  else
    asked+=(--version="$version")
  fi
  if [[ -n $spot ]]; then asked+=(--spot); fi
  if [[ -n $bucket ]]; then asked+=(--scopes=https://www.googleapis.com/auth/cloud-platform); fi
  explained tpus "$kind" create "$name" "${asked[@]}"
  if [[ -z $dry_run ]]; then
    say "$name ($type${spot:+, spot}) is billed from now on, until: $(quoted launch/tpu_vm.sh delete "${same[@]}")"
  fi
}

# `git stash create` makes a commit of the tracked files as they are now, and touches nothing.
setup() {
  local packed=$scratch/e2h.tar.gz commit
  commit=$(git describe --always --exclude='*' --abbrev=12 --dirty=+changes)
  if [[ -n $dry_run ]]; then packed=/tmp/e2h.tar.gz && quoted cd "$PWD"; fi
  # shellcheck disable=SC2016 # for the bash that is called
  act bash -c 'now=$(git stash create) && git archive --format=tar.gz --output="$0" "${now:-HEAD}"' "$packed"
  explained tpus tpu-vm scp "$packed" "$name:e2h.tar.gz" --worker=all
  explained tpus tpu-vm ssh "$name" --worker=all --command="rm -rf e2h.new && mkdir e2h.new && \
tar -xzf e2h.tar.gz -C e2h.new && bash e2h.new/launch/_tpu_worker.sh install $commit"
}

run() {
  explained on_worker all start "$id" "$bucket" "$sync" "${words[@]}"
  if [[ -z $dry_run ]]; then say "$id runs on $name; see: $(quoted launch/tpu_vm.sh logs "${same[@]}" --run="$id")"; fi
}

run_states() { on_worker all state "$id"; }

status() {
  local now
  now=$(vm_state)
  if [[ -n $dry_run ]]; then echo "$now"; else echo "$name: $now"; fi
  if [[ -n $dry_run || $now == READY ]]; then
    { run_states && on_worker 0 last_lines "$id"; } || say "There is no such run there."
  fi
}

logs() { on_worker 0 logs "$id"; }

stop() { on_worker all stop "$id"; }

fetch() {
  act mkdir -p "$to"
  if [[ -n $bucket ]]; then
    [[ -n $id ]] || refuse "Say which run to fetch from the bucket: --run=RUN, or the experiment and its flags."
    explained act gcloud storage cp "$bucket/$id.tar" "$to/$id.tar" --quiet
    act tar -xf "$to/$id.tar" -C "$to"
    act rm "$to/$id.tar"
  else
    explained tpus tpu-vm scp "$name:e2h-runs/${id:-*}" "$to" --recurse --worker=0
  fi
  if [[ -z $dry_run ]]; then say "fetched ${id:-all runs} to $to."; fi
}

delete() {
  local answer=''
  if [[ -z $yes && -z $dry_run ]]; then
    read -rp "Delete $name with all on its disk (${where[*]:2})? [y/N] " answer || true
    [[ $answer == [yY]* ]] || { say "Not deleted." && exit 1; }
  fi
  if [[ -n $queued ]]; then
    explained tpus queued-resources delete "$name" --force
  else
    explained tpus tpu-vm delete "$name"
  fi
}

# The defaults are asked for once, so that a change of gcloud's settings does not lead to another VM.
place() {
  where=(--quiet)
  if [[ -z $dry_run ]]; then
    command -v gcloud >/dev/null || refuse "gcloud is missing: https://cloud.google.com/sdk/docs/install"
    project=${project:-$(gcloud config get-value project 2>/dev/null)} || true
    zone=${zone:-$(gcloud config get-value compute/zone 2>/dev/null)} || true
    [[ -n $project ]] || refuse "Which project? --project=ID, or: gcloud config set project ID"
    [[ -n $zone ]] || refuse "Which zone? --zone=ZONE, or: gcloud config set compute/zone ZONE"
  fi
  if [[ -n $zone ]]; then where+=(--zone="$zone"); fi
  if [[ -n $project ]]; then where+=(--project="$project"); fi
}

check() {
  [[ $name =~ ^[a-z]([-a-z0-9]*[a-z0-9])?$ ]] || refuse "A VM's name is of a-z, 0-9 and -, not '$name'."
  [[ $id =~ ^([A-Za-z0-9][A-Za-z0-9._-]*)?$ ]] || refuse "A run's id is of letters, digits, '.', '_' and -, not '$id'."
  [[ $bucket =~ ^(gs://[a-z0-9][^[:space:]]*[^/[:space:]])?$ ]] || refuse "A bucket is gs://NAME, not '$bucket'."
  [[ $sync =~ ^[1-9][0-9]*$ ]] || refuse "--sync is a number of seconds, not '$sync'."
  [[ $tries =~ ^[1-9][0-9]*$ && $quick =~ ^[0-9]+$ && $poll =~ ^[0-9]*\.?[0-9]+$ ]] ||
    refuse "--tries, --quick and --poll are numbers, not '$tries', '$quick' and '$poll'."
  case $type in
    v6e-*) version=${version:-v2-alpha-tpuv6e} ;;
    v5p-*) version=${version:-v2-alpha-tpuv5} ;;
    v5litepod-*) version=${version:-v2-alpha-tpuv5-lite} ;;
    v2-* | v3-* | v4-*) version=${version:-tpu-ubuntu2204-base} ;;
  esac
  [[ -n $version ]] || refuse "The types known here are v2-, v3-, v4-, v5litepod-, v5p- and v6e-SIZE; for '$type' say \
its software, too: --version=VERSION"
}

# Before a VM is paid for that could not use it. An empty bucket is listed as an error, too.
check_bucket() {
  local root=${bucket#gs://} answer
  root=gs://${root%%/*}
  if ! answer=$(gcloud storage ls "$root" 2>&1) && [[ $answer != *"matched no objects"* ]]; then
    echo "$answer" >&2
    refuse "Cannot look into $root; to make it: gcloud storage buckets create $root --project=$project"
  fi
}

check_words() {
  local word tools=' report benchmark '
  case $command in
    run | babysit) [[ $# != 0 ]] || refuse "Name an experiment; see launch/reproduce.sh --help." ;;
    create | setup | delete) [[ $# == 0 ]] || refuse "$command takes no '$1'; a VM is named by --name=NAME." ;;
  esac
  (($#)) || return 0
  [[ -f experiments/$1.py && $1 != [_.]* && $1 != */* && $tools != *" $1 "* ]] ||
    refuse "There is no experiment '$1'; see launch/reproduce.sh --help."
  git ls-files --error-unmatch "experiments/$1.py" &>/dev/null ||
    refuse "git does not track experiments/$1.py, so it would not be copied: git add it."
  for word in "$@"; do
    case $word in
      --runs | --runs=* | --results | --results=*) refuse "${word%%=*} is chosen by the launcher, for fetch to find." ;;
    esac
  done
  id=${id:-$1-$(printf '%s\0' "$@" | cksum | cut -d ' ' -f 1)}
}

case ${1:-} in
  -h | --help)
    usage
    exit
    ;;
  babysit | create | setup | run | status | logs | fetch | stop | delete | vm_state | run_states) command=$1 ;;
  *) refuse "There is no command '${1:-}'; see launch/tpu_vm.sh --help." ;;
esac
shift

name=e2h zone='' project='' type=v5litepod-1 version='' spot='' queued='' bucket='' sync=300 id='' to=runs/tpu
yes='' dry_run='' poll=60 tries=5 quick=300 delete=''
options=()
while (($#)); do
  case $1 in
    --name=* | --zone=* | --project=* | --type=* | --version=* | --bucket=* | --sync=* | --to=* | \
      --poll=* | --tries=* | --quick=*)
      option=${1%%=*}
      printf -v "${option#--}" %s "${1#*=}"
      ;;
    --run=*) id=${1#*=} ;;
    --spot | --queued | --yes | --dry_run | --delete) printf -v "${1#--}" 1 ;;
    -*) refuse "There is no option '$1'; see launch/tpu_vm.sh --help." ;;
    *) break ;;
  esac
  options+=("$1")
  shift
done
words=("$@")

case $to in /*) ;; *) to=$PWD/$to ;; esac
CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
check
check_words "$@"
place
if [[ -n $bucket && -z $dry_run && $command == create ]]; then check_bucket; fi
same=(--name="$name" "${where[@]:1}")
if [[ -n $queued ]]; then same+=(--queued); fi

if [[ $command == babysit ]]; then
  export E2H_POLL=$poll E2H_TRIES=$tries E2H_QUICK=$quick E2H_DELETE=$delete E2H_DRY_RUN=$dry_run
  options+=("${same[@]}" --run="$id" --to="$to")
  exec launch/_tpu_babysit.sh "${#options[@]}" "${options[@]}" "$@"
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$command"
