#!/usr/bin/env bash
set -euo pipefail

usage() {
  cat <<'END'
Usage: launch/setup.sh [EXTRA...]
       launch/setup.sh --which

Makes .venv at the root of the repository: this package, the JAX build for this machine and the named extras of
pyproject.toml (dev, ray, tfds), beside those of earlier calls. Installs nothing if nothing has changed.
--which only prints the JAX build: cpu, cuda or tpu.

E2H_JAX=cpu|cuda|tpu chooses the build, E2H_PYTHON=PROGRAM the Python that .venv is made from.
END
}

say() { echo "setup: $1" >&2; }
refuse() {
  say "$1"
  exit 2
}

# The device numbers are those that JAX looks for. Google's vendor number alone will not do: its network cards carry it.
has_tpu() {
  local device vendor id
  # E2H_ROOT_DIR stands for / in the tests.
  for device in "${E2H_ROOT_DIR:-}"/sys/bus/pci/devices/*/; do
    { read -r vendor <"${device}vendor" && read -r id <"${device}device"; } 2>/dev/null || continue
    case $vendor:$id in
      0x1ae0:0x0027 | 0x1ae0:0x0056 | 0x1ae0:0x005e | 0x1ae0:0x0062 | 0x1ae0:0x0063 | 0x1ae0:0x006f | 0x1ae0:0x0076)
        return 0
        ;;
    esac
  done
  return 1
}

which_jax() {
  case ${E2H_JAX:-} in
    cpu | cuda | tpu) echo "$E2H_JAX" ;;
    '')
      if [[ $(nvidia-smi -L 2>/dev/null) == GPU* ]]; then
        echo cuda
      elif has_tpu; then
        echo tpu
      else
        echo cpu
      fi
      ;;
    *) refuse "E2H_JAX is cpu, cuda or tpu, not '$E2H_JAX'." ;;
  esac
}

# Runs each candidate, because a name on PATH may be a shim that has no Python behind it.
find_python() {
  local candidate candidates=(python3 python3.13 python3.12 python3.11 python3.14)
  if [[ -n ${E2H_PYTHON:-} ]]; then candidates=("$E2H_PYTHON"); fi
  for candidate in "${candidates[@]}"; do
    if "$candidate" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' &>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  refuse "No Python 3.11 or later that can make virtual environments among: ${candidates[*]}; install one (Debian and \
Ubuntu: python3 and python3-venv) or name one in E2H_PYTHON."
}

case ${1:-} in
  -h | --help)
    usage
    exit
    ;;
  --which)
    which_jax
    exit
    ;;
  -*) refuse "There is no option '$1'; see launch/setup.sh --help." ;;
esac

CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
kind=$(which_jax)

# Two setups of one checkout take turns, where the machine and the file system can do that.
if command -v flock >/dev/null; then
  exec 9>.venv.lock
  flock -n 9 || { say "waiting for another setup of this checkout." && flock 9; } || true
fi

# The stamp says what .venv holds: a key, then the extras. It reads 'installing' from before pip starts until pip has
# succeeded, so an interrupted installation counts as broken.
stamp=.venv/e2h-stamp
stamped_key='' stamped_extras=''
if [[ -r $stamp ]]; then
  { read -r stamped_key && read -r stamped_extras; } <"$stamp" || true
fi
key="$kind $(cksum <pyproject.toml) $PWD"
extras=$(printf '%s\n' "$stamped_extras" "$@" | tr -s ' ' '\n' | sort -u | xargs)

if [[ $stamped_key == installing ]] ||
  ! .venv/bin/python -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' &>/dev/null; then
  python=$(find_python)
  stamped_key=''
  "$python" -m venv --clear .venv
fi

if [[ $stamped_key == "$key" && $stamped_extras == "$extras" ]]; then
  say "JAX for $kind; .venv is up to date."
  exit
fi

wanted=$extras
if [[ $kind != cpu ]]; then wanted="$extras $kind"; fi
wanted=$(xargs <<<"$wanted")
package=".${wanted:+[${wanted// /,}]}"
say "JAX for $kind; installing e2h${package#.} into .venv, which takes minutes the first time."
printf 'installing\n%s\n' "$extras" >"$stamp"
.venv/bin/python -m pip install --quiet --disable-pip-version-check --editable "$package"
printf '%s\n%s\n' "$key" "$extras" >"$stamp.new"
mv "$stamp.new" "$stamp"
