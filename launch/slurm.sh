#!/usr/bin/env bash
#SBATCH --job-name=e2h
#SBATCH --signal=B:TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

usage() {
  cat <<'END'
Usage: launch/slurm.sh [SBATCH OPTION...] [--dry_run] EXPERIMENT [FLAG...]
       launch/slurm.sh [SBATCH OPTION...] [--dry_run] --lines=FILE

Submits an experiment to SLURM, or with --array=0-9 ten of them: {i} in a flag stands for the number of the task.
--lines=FILE submits one task for each line, EXPERIMENT [FLAG...], quoted as for a shell; {i} is the line's number.
SBATCH OPTIONs have the form --option=value: --time=4:00:00, --partition=gpu, --gres=gpu:1, --nodes=4. Once before,
where there is a network: E2H_JAX=cuda ./launch/setup.sh. `sbatch SBATCH OPTION... launch/slurm.sh EXPERIMENT ...` in
the root of the repository does the same without the checks.

Two minutes before its time is over (--signal=B:TERM@SECONDS for another notice) a job saves, ends with 75, and is queued
again under its number, to continue; any other code ends it. A pre-empted job is queued again by SLURM, and continues.
With several tasks (--nodes, --ntasks) srun starts one process for each, and JAX reads from SLURM's variables which is
which. A file slurm-NUMBER.out has what was printed. To end a job for good: scancel NUMBER.

    launch/slurm.sh --array=0-9 --time=1:00:00 --gres=gpu:1 grokking --seeds=1 --first_seed={i}
END
}

say() { echo "slurm: $*" >&2; }
refuse() {
  say "$1"
  exit 2
}

python=.venv/bin/python
again=75  # AGAIN in e2h/run.py
most=1000 # times that a job is queued again: far more than any run needs

check() {
  [[ -x $python ]] || refuse "There is no .venv here: E2H_JAX=cuda ./launch/setup.sh (or cpu, tpu) makes it."
  [[ -n ${1:-} ]] || refuse "Name an experiment; see launch/reproduce.sh --help."
  [[ -f experiments/$1.py && $1 != [_.]* && $1 != */* ]] ||
    refuse "There is no experiment '$1'; see launch/reproduce.sh --help."
}

# Puts the words of line $2 of the file $1 into `words`. xargs reads quotes like a shell, and runs nothing.
read_line() {
  local line word
  line=$(sed -n "$2p" "$1")
  [[ -n $line ]] || refuse "$1 has no line $2."
  words=()
  while IFS= read -r -d '' word; do words+=("$word"); done < <(xargs printf '%s\0' <<<"$line")
}

submit() {
  local sbatch=(sbatch) lines='' array='' dry_run='' count i
  while (($#)); do
    case $1 in
      -h | --help) usage && exit ;;
      --dry_run) dry_run=1 ;;
      --lines=*) lines=${1#*=} ;;
      --array=*) array=1 && sbatch+=("$1") ;;
      -*) sbatch+=("$1") ;;
      *) break ;;
    esac
    shift
  done
  if [[ -n $lines ]]; then
    [[ $lines == /* ]] || lines=$here/$lines
    [[ $# == 0 ]] || refuse "The experiments are those of $lines; there is no place for '$1'."
    [[ -r $lines && -s $lines ]] || refuse "There are no lines in $lines."
    count=$(grep -c '' "$lines")
    for ((i = 1; i <= count; i++)); do read_line "$lines" "$i" && check "${words[@]}"; done
    if [[ -z $array ]]; then sbatch+=(--array="1-$count"); fi
    set -- --lines="$lines"
  else
    check "$@"
    [[ -n $array || "$*" != *"{i}"* ]] || refuse "{i} is the number of an array's task: --array=0-9"
  fi
  sbatch+=(launch/slurm.sh "$@")
  if [[ -n $dry_run ]]; then
    printf '%q ' "${sbatch[@]}" && echo
  else
    command -v sbatch >/dev/null || refuse "There is no sbatch: this is not a machine of a SLURM cluster."
    "${sbatch[@]}"
  fi
}

# srun answers SIGTERM by killing its tasks, so they are told by scancel, which spares this shell. A process without
# srun is told directly.
tell() {
  asked=1
  if ((${SLURM_NTASKS:-1} > 1)); then
    scancel --signal=TERM "$SLURM_JOB_ID" || true
  else
    kill -TERM "$child" 2>/dev/null || true
  fi
}

# A job that scancel ends is told in the same way, and saves, but is not to come back: then it is no longer running.
queue_again() {
  local state
  state=$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%T) || state=gone
  if [[ $state != RUNNING ]]; then
    say "job $SLURM_JOB_ID is $state: not queueing it again."
  elif (($1 >= most)); then
    say "job $SLURM_JOB_ID was queued again $most times: that is enough."
  else
    say "queueing job $SLURM_JOB_ID again."
    scontrol requeue "$SLURM_JOB_ID"
  fi
}

work() {
  local task=${SLURM_ARRAY_TASK_ID:-} restarts=${SLURM_RESTART_COUNT:-0} asked='' told=0 child status
  cd "${SLURM_SUBMIT_DIR:-.}"
  words=("$@")
  if [[ ${1:-} == --lines=* ]]; then read_line "${1#*=}" "${task:?}"; fi
  [[ -n $task || "${words[*]}" != *"{i}"* ]] || refuse "{i} is the number of an array's task: --array=0-9"
  words=("${words[@]//"{i}"/$task}")
  check "${words[@]}"
  words=("$python" -m "experiments.${words[0]}" "${words[@]:1}")
  if ((${SLURM_NTASKS:-1} > 1)); then words=(srun "${words[@]}"); fi
  echo "$(date -u +%FT%TZ) job $SLURM_JOB_ID on $(hostname), start $((restarts + 1)): ${words[*]}"
  PYTHONUNBUFFERED=1 "${words[@]}" &
  child=$!
  trap tell TERM
  while wait "$child" && status=0 || status=$?; [[ -n $asked ]]; do asked='' && told=1; done # a signal interrupts wait
  if ((status == again || status == 143 && told)); then queue_again "$restarts"; fi # 143: told before it could save
  exit "$status"
}

if [[ -n ${SLURM_JOB_ID:-} ]]; then
  work "$@"
else
  here=$PWD
  CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
  submit "$@"
fi
