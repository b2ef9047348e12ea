#!/usr/bin/env bash
# Says what a message of gcloud, the standard input, means for somebody who has not met it before.
# Usage: launch/_tpu_explain.sh TYPE VERSION --quiet --zone=ZONE --project=ID <MESSAGE
# Ends with 75 if it may be otherwise a little later, else with 1.
set -euo pipefail

type=$1 version=$2
where=("${@:3}")
say() { echo "tpu_vm: $*" >&2; }

offered() {
  gcloud compute tpus tpu-vm accelerator-types list "${where[@]}" --format='value(type)' 2>/dev/null |
    sort | paste -s -d ' ' -
}

message=$(tr '[:upper:]' '[:lower:]')
case $message in
  *"per minute"* | *"rate limit"* | *"try again later"*)
    say "Not just now."
    exit 75
    ;;
  *quota*)
    say "The project has no quota left for $type in this zone; spot and on demand have one each. To see and raise them:" \
      "https://console.cloud.google.com/iam-admin/quotas?service=tpu.googleapis.com"
    ;;
  *"no more capacity"* | *"insufficient capacity"* | *stockout* | *resource_exhausted*)
    say "There is no free $type in this zone now. Wait, or try --queued, another zone or another type."
    exit 75
    ;;
  *service_disabled* | *"has not been used in project"*)
    say "The API is not switched on: gcloud services enable tpu.googleapis.com ${where[*]:2}"
    ;;
  *"already exists"* | *already_exists*) say "It is there already: see status, or choose another --name." ;;
  *"active account"* | *"auth login"* | *reauthentication*) say "Log in first: gcloud auth login" ;;
  *"invalid choice"*) say "This gcloud is too old: gcloud components update" ;;
  *"queued resource"*) say "This VM belongs to a queued resource: add --queued." ;;
  *permission_denied* | *"does not have permission"*)
    say "This account may not do that (it needs the role TPU Admin), or there is no such project or zone."
    ;;
  *accelerator* | *runtime* | *invalid_argument* | *"not found"* | *not_found*)
    here=$(offered || true)
    say "Is there a VM, and are type ($type), software ($version) and zone right?${here:+ This zone has $here.}"
    ;;
esac
exit 1
