#!/usr/bin/env bash
# Install the servers and tools that the tests need: a no-op unless we are root on Debian and
# something is missing. Called by .ci/run; on a laptop the tests that need them skip themselves.
set -euo pipefail

missing=()
command -v redis-server >/dev/null || missing+=(redis-server)
command -v nginx >/dev/null || missing+=(nginx-light)
command -v faketime >/dev/null || missing+=(faketime)
# A large real site of static pages.
[ -d /usr/share/doc/python3-doc ] || missing+=(python3-doc)

if [ ${#missing[@]} -eq 0 ] || [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    exit 0
fi

echo "installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get -qq update >/dev/null
apt-get -qq install --yes --no-install-recommends "${missing[@]}" >/dev/null
