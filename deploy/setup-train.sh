#!/usr/bin/env bash
# Puts torch into .venv, for common/training.py and its tests. Called by make; safe to run again.
#
# A CPU build where one can be had: it is a tenth of the usual build for Linux, which brings CUDA
# along. The version is the one that the tests were written with. TORCH=2.14.0 names another.
set -euo pipefail

venv=.venv
version=${TORCH:-2.13.0}
log=$(mktemp)

say() { printf '%s\n' "$*" >&2; }
here() { "$venv/bin/python" -c 'import torch; print(torch.__version__)' 2>/dev/null; }

# Where pip is told of a folder or an index that has it, that one; else uv knows PyTorch's own.
cpu_by_pip() { "$venv/bin/pip" install -q --disable-pip-version-check "torch==$version+cpu"; }
cpu_by_uv() {
    UV_HTTP_TIMEOUT=60 UV_HTTP_RETRIES=1 "$venv/bin/uv" pip install -q --python "$venv" \
        --torch-backend cpu "torch==$version"
}
usual() { "$venv/bin/pip" install -q --disable-pip-version-check "torch==$version"; }

if found=$(here); then
    say "torch $found is there already"
else
    say "Installing torch $version, the CPU build if there is one"
    { cpu_by_pip || cpu_by_uv; } >>"$log" 2>&1 || {
        say "No CPU build can be had here; taking the usual one (on Linux some 3 GB, minutes)"
        usual >>"$log" 2>&1 || true
    }
    found=$(here) || {
        tail -n 15 "$log" >&2
        say "Error: torch $version could not be installed for $("$venv/bin/python" --version)."
        say "  The whole output is in $log."
        say "  Name a version that can be had: TORCH=... make train-setup"
        exit 1
    }
    say "torch $found"
fi
# For the test of its StatefulDataLoader; nothing of ours needs it.
"$venv/bin/python" -c 'import torchdata' 2>/dev/null ||
    "$venv/bin/pip" install -q --disable-pip-version-check --no-deps torchdata==0.11.0 >>"$log" 2>&1 ||
    say "torchdata could not be installed; the test of its loader is left out"
rm -f "$log"
