#!/usr/bin/env bash
# The loop of launch/tpu_vm.sh babysit, over its other commands.
# Usage: launch/_tpu_babysit.sh N OPTION... EXPERIMENT [FLAG...], the first N words being options of tpu_vm.sh.
set -euo pipefail

options=("${@:2:$1}")
words=("${@:$1 + 2}")
answered=''  # whether gcloud has ever had an answer
unanswered=0 # looks in a row to which gcloud had no answer
quick=0      # attempts in a row that ended soon
verdict=''

say() { echo "babysit: $(date +%H:%M:%S) $*" >&2; }
tpu_vm() { launch/tpu_vm.sh "$1" "${options[@]}" "${@:2}"; }

finish() {
  local fetched=''
  say "$2"
  if tpu_vm fetch; then fetched=1; else say "nothing was fetched."; fi
  if [[ -n $E2H_DELETE && -n $fetched ]] && tpu_vm delete --yes; then
    say "the VM is deleted."
  else
    say "the VM, if there is one, is kept and billed until: launch/tpu_vm.sh delete, with the same --name, --zone and --project."
  fi
  exit "$1"
}

no_answer() {
  [[ -n $answered ]] || exit 1 # it has said why, and so will it the next time
  unanswered=$((unanswered + 1))
  if ((unanswered >= 30)); then
    say "no answer 30 times; the run may be going on, and is billed. The same command finds it again."
    exit 1
  fi
}

count_if_quick() {
  if (($1 < E2H_QUICK)); then quick=$((quick + 1)); else quick=0; fi
  if ((quick >= E2H_TRIES)); then finish 1 "$quick attempts in a row ended within $E2H_QUICK s: giving up."; fi
}

# Returns with a VM that is ready.
obtain() {
  local now status
  while true; do
    now=$(tpu_vm vm_state) || now=''
    if [[ -n $now ]]; then answered=1 && unanswered=0; fi
    case $now in
      READY) return ;;
      absent)
        say "creating the VM."
        status=0
        tpu_vm create || status=$?
        case $status in
          0) continue ;;
          75) say "asking again in $E2H_POLL s." ;;
          *) exit "$status" ;;
        esac
        ;;
      PREEMPTED | TERMINATED | SUSPENDED | FAILED)
        say "the VM is $now: deleting what is left of it."
        if [[ $now == FAILED ]]; then count_if_quick 0; fi
        if tpu_vm delete --yes; then continue; fi
        no_answer
        ;;
      STOPPED | HIDDEN | UNKNOWN)
        say "the VM is $now, which is not of my doing: start or delete it, and call again."
        exit 1
        ;;
      '') no_answer ;;
      *) say "the VM is $now." ;;
    esac
    sleep "$E2H_POLL"
  done
}

# Of the workers' states, the standard input: running; of those that have ended done, again or `exit CODE`; and while
# others are running, the word mixed before that.
judge() {
  local states ended verdict
  states=$(sed -n 's/^e2h-state: //p')
  ended=$(grep -vx running <<<"$states" | sort -u) || true
  if [[ -z $states ]]; then
    return 1
  elif [[ -z $ended ]]; then
    verdict=running
  elif [[ $ended == "exit 0" ]]; then
    verdict="done"
  elif grep -qxE 'exit (75|143)|dead|absent' <<<"$ended"; then # 75: saved and stopped; 143: before it could save
    verdict=again
  else
    verdict=$(grep -vx 'exit 0' <<<"$ended" | head -n 1)
  fi
  if [[ -n $ended ]] && grep -qx running <<<"$states"; then verdict="mixed $verdict"; fi
  echo "$verdict"
}

look() { tpu_vm run_states | judge; }

# Waits for the run's end and puts it into `verdict`.
watch() {
  local now mixed=0
  while sleep "$E2H_POLL"; do
    if verdict=$(look); then
      unanswered=0
    else
      now=$(tpu_vm vm_state) || now=''
      if [[ $now != READY && -n $now ]]; then
        verdict="the VM is $now"
        return
      fi
      no_answer
      continue
    fi
    case $verdict in
      running | "mixed done") mixed=0 ;;
      mixed\ *) # the others follow a worker that has ended early, or wait for it for ever
        mixed=$((mixed + 1))
        ((mixed == 2)) || continue
        verdict=${verdict#mixed }
        tpu_vm stop || true
        return
        ;;
      *) return ;;
    esac
  done
}

attempt() {
  verdict=$(look 2>/dev/null) || verdict=absent
  case $verdict in
    running | mixed*) say "it is running already." ;;
    "done") return ;;
    *)
      verdict="setup failed"
      tpu_vm setup || return 0
      verdict="the start failed"
      tpu_vm run "${words[@]}" || return 0
      ;;
  esac
  watch
}

rehearse() {
  echo "# unless there is a VM:" && tpu_vm create
  echo "# unless the run is going on there:" && tpu_vm setup && tpu_vm run "${words[@]}"
  echo "# every $E2H_POLL s:" && tpu_vm run_states && tpu_vm vm_state
  echo "# if the VM is PREEMPTED, TERMINATED, SUSPENDED or FAILED, and then from the beginning:" && tpu_vm delete
  echo "# at the end:" && tpu_vm fetch
  if [[ -n $E2H_DELETE ]]; then tpu_vm delete; fi
}

if [[ -n $E2H_DRY_RUN ]]; then rehearse && exit; fi
trap 'say "the VM and the run go on, and are billed. The same command finds them again."; exit 130' INT
while true; do
  obtain
  began=$SECONDS
  attempt
  case $verdict in
    "done") finish 0 "the run has ended." ;;
    exit\ *) finish "${verdict#exit }" "the run failed ($verdict), which another try would not change." ;;
  esac
  say "the run has not ended ($verdict)."
  count_if_quick $((SECONDS - began))
done
