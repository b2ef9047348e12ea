#!/usr/bin/env bash
# The far end of launch/tpu_vm.sh: what it calls over ssh on the workers of a TPU VM.
#
#   install COMMIT                                 make e2h.new, unpacked beside e2h, the code that runs, and set it up
#   start RUN BUCKET SECONDS EXPERIMENT [FLAG...]  begin or continue a run, detached from whoever calls
#   state|last_lines|logs|stop [RUN]               by default of the run begun last
#
# A run is a directory, ~/e2h-runs/RUN: log, pid, exit (its code, once it has ended), runs/ and results/.
set -euo pipefail

home=$HOME/e2h
runs=$HOME/e2h-runs

say() { echo "$(hostname): $*" >&2; }
fail() {
  say "$1"
  exit 1
}

latest() {
  local log newest=''
  for log in "$runs"/*/log; do
    if [[ -e $log && (-z $newest || $log -nt $newest) ]]; then newest=$log; fi
  done
  [[ -n $newest ]] || fail "no run has begun here."
  basename "$(dirname "$newest")"
}

# The supervisor's process is asked for by name, since another may have got its number.
alive() {
  local pid
  { read -r pid <"$runs/$1/pid"; } 2>/dev/null && ps -p "$pid" -o args= | grep -qF " supervise $1 "
}

anyone_alive() {
  local pid
  for pid in "$runs"/*/pid; do
    if [[ -e $pid ]] && alive "$(basename "$(dirname "$pid")")"; then basename "$(dirname "$pid")" && return; fi
  done
  return 1
}

# `running`, `exit CODE`, `dead` (it vanished without a code) or `absent`, on a line that cannot be mistaken.
state() {
  local code
  if alive "$1"; then
    echo "e2h-state: running"
  elif { read -r code <"$runs/$1/exit"; } 2>/dev/null; then
    echo "e2h-state: exit $code"
  elif [[ -d $runs/$1 ]]; then
    echo "e2h-state: dead"
  else
    echo "e2h-state: absent"
  fi
}

# A file of Google Cloud Storage appears whole or not at all, so a run is stored as one. Checkpoints are packed before
# the rows, which are therefore never behind them. tar ends with 1 when a file changed while it was read.
store() {
  local run=$1 bucket=$2 packed=$runs/.$1.tar
  {
    cd "$runs"
    find "$run" -path '*/checkpoints*' -print0
    find "$run" -not -path '*/checkpoints*' -not -name pid -not -name exit -print0
  } | tar --null --no-recursion --ignore-failed-read --warning=no-file-changed -cf "$packed" -C "$runs" -T - ||
    (($? == 1)) || return
  gcloud storage cp "$packed" "$bucket/$run.tar" --quiet
}

keep_stored() {
  local run=$1 bucket=$2 seconds=$3 nap
  trap 'kill "$nap" 2>/dev/null || true; exit' TERM # acted on between commands: an upload is never cut
  while true; do
    sleep "$seconds" &
    nap=$!
    wait "$nap"
    store "$run" "$bucket" || say "could not store to $bucket; trying again in $seconds s."
  done
}

# A bucket that cannot be read must stop the start: a run begun anew would be stored over the old one.
restore() {
  local run=$1 bucket=$2 answer
  if ! answer=$(gcloud storage ls "$bucket/$run.tar" 2>&1); then
    [[ $answer == *"matched no objects"* ]] || fail "cannot read $bucket: $answer"
    say "nothing is stored of $run; it begins."
    return
  fi
  gcloud storage cp "$bucket/$run.tar" "$runs/.$run.tar" --quiet
  rm -rf "$runs/.restored"
  mkdir "$runs/.restored"
  tar -xf "$runs/.$run.tar" -C "$runs/.restored"
  mv "$runs/.restored/$run" "$runs/$run"
  rm -rf "$runs/.restored" "$runs/.$run.tar"
  say "restored $run from $bucket."
}

# Worker 0 writes for all: TPU VMs are named after the number of the worker, and a single one may be named anyhow.
first_worker() { [[ ! $(hostname) =~ -w-([0-9]+)$ || ${BASH_REMATCH[1]} == 0 ]]; }

start() {
  local run=$1 bucket=$2 seconds=$3 other
  shift 3
  if alive "$run"; then say "$run is running already." && return; fi
  if other=$(anyone_alive); then fail "$other is running, and a TPU serves one run at a time."; fi
  [[ -x $home/.venv/bin/python ]] || fail "not set up."
  mkdir -p "$runs"
  if [[ -n $bucket && ! -d $runs/$run ]]; then restore "$run" "$bucket"; fi
  mkdir -p "$runs/$run"
  rm -f "$runs/$run/exit"
  echo "$(date -u +%FT%TZ) e2h $(cat "$home/.commit"): $*" >>"$runs/$run/log"
  if [[ -n $bucket ]] && first_worker; then # better to hear now than after a pre-emption that nothing can be stored
    store "$run" "$bucket" || fail "cannot write to $bucket: give the VM's service account the role Storage Object User."
  fi
  setsid bash "$home/launch/_tpu_worker.sh" supervise "$run" "$bucket" "$seconds" "$@" \
    </dev/null >>"$runs/$run/log" 2>&1 &
  echo $! >"$runs/$run/pid"
  for _ in {1..50}; do # until the name that `alive` looks for is there
    if alive "$run" || [[ -e $runs/$run/exit ]]; then break; fi
    sleep 0.1
  done
  say "started $run."
}

supervise() {
  local run=$1 bucket=$2 seconds=$3 experiment=$4 child keeper='' asked='' status
  shift 4
  cd "$home"
  PYTHONUNBUFFERED=1 .venv/bin/python -m "experiments.$experiment" "$@" \
    --runs="$runs/$run/runs" --results="$runs/$run/results" &
  child=$!
  trap 'asked=1; kill -TERM "$child" 2>/dev/null || true' TERM # the run saves and ends with 75
  if [[ -n $bucket ]] && first_worker; then
    keep_stored "$run" "$bucket" "$seconds" &
    keeper=$!
  fi
  while wait "$child" && status=0 || status=$?; [[ -n $asked ]]; do asked=''; done # a signal interrupts wait
  if [[ -n $keeper ]]; then
    kill -TERM "$keeper"
    wait "$keeper" || true
    store "$run" "$bucket" || say "could not store to $bucket."
  fi
  say "$experiment ended with $status."
  echo "$status" >"$runs/$run/exit"
}

stop() {
  local pid
  alive "$1" || return 0
  read -r pid <"$runs/$1/pid"
  kill -TERM "$pid"
  for _ in {1..3000}; do
    alive "$1" || return 0
    sleep 0.1
  done
  say "$1 has not ended after five minutes: killing it."
  kill -KILL -- "-$pid" # the supervisor leads its group
}

last_lines() { tail -n 5 "$runs/$1/log"; }

logs() {
  if alive "$1"; then
    tail -n 50 -F --pid="$(<"$runs/$1/pid")" "$runs/$1/log"
  else
    tail -n 50 "$runs/$1/log"
  fi
}

# The images of TPU VMs come with Python 3.10. setup.sh refuses with 2; uv brings a Python without a package manager.
install() {
  local other
  if other=$(anyone_alive); then fail "$other is running; its code is not replaced."; fi
  rm -rf "$HOME/e2h.old"
  if [[ -d $home ]]; then mv "$home" "$HOME/e2h.old"; fi
  mv "$HOME/e2h.new" "$home"
  if [[ -d $HOME/e2h.old/.venv ]]; then mv "$HOME/e2h.old/.venv" "$home/.venv"; fi
  rm -rf "$HOME/e2h.old"
  echo "$1" >"$home/.commit"
  export E2H_JAX=tpu
  "$home/launch/setup.sh" && return || (($? == 2)) || exit 1
  say "bringing a Python that is new enough."
  python3 -m pip install --quiet --user uv
  python3 -m uv python install --quiet 3.12
  E2H_PYTHON=$(python3 -m uv python find 3.12) "$home/launch/setup.sh"
}

verb=$1
shift
case $verb in
  install | start | supervise) "$verb" "$@" ;;
  state | last_lines | logs | stop)
    run=${1:-$(latest)}
    "$verb" "$run"
    ;;
esac
