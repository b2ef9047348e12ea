#!/usr/bin/env bash
set -euo pipefail

CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

tools=$'report\nbenchmark'  # run like experiments, but not offered as such; TOOLS in experiments/_main.py

known() {
  local file name
  for file in experiments/*.py; do
    name=$(basename "$file" .py)
    if [[ $name != [_*]* ]] && ! grep -qxF -e "$name" <<<"$tools"; then echo "$name"; fi
  done
}

# Prints the line of standard input that is the fewest edits away from $1. In awk, since it must work before there is a
# Python; the name goes through the environment, since awk -v would read backslashes in it.
nearest() {
  target=$1 awk '
    {
      target = ENVIRON["target"]
      for (j = 0; j <= length(target); j++) edits[j] = j
      for (i = 1; i <= length($0); i++) {
        diagonal = edits[0]
        edits[0] = i
        for (j = 1; j <= length(target); j++) {
          best = diagonal + (substr($0, i, 1) != substr(target, j, 1))
          if (edits[j] + 1 < best) best = edits[j] + 1
          if (edits[j - 1] + 1 < best) best = edits[j - 1] + 1
          diagonal = edits[j]
          edits[j] = best
        }
      }
      if (NR == 1 || edits[length(target)] < fewest) {
        fewest = edits[length(target)]
        name = $0
      }
    }
    END { print name }'
}

names=$(known)
list=$(paste -s -d , - <<<"$names" | sed 's/,/, /g')

case ${1:-} in
  -h | --help)
    cat <<END
Usage: launch/reproduce.sh NAME [FLAG...]

Sets up .venv and runs the experiment NAME with the flags, in the root of the repository.
Experiments: $list.
END
    exit
    ;;
  '')
    echo "reproduce: Name an experiment: $list." >&2
    exit 2
    ;;
esac

name=$1
shift
if ! grep -qxF -e "$name" <<<"$names"$'\n'"$tools"; then
  echo "reproduce: There is no experiment '$name'; the nearest is $(nearest "$name" <<<"$names") of $list." >&2
  exit 2
fi

launch/setup.sh
exec .venv/bin/python -m "experiments.$name" "$@"
