#!/usr/bin/env bash
# Makes every secret of a deployment, once: deploy/make-secrets.sh [FOLDER] [REDIS]
#
# FOLDER (deploy/secrets) gets users.acl with a password for each Redis user, the URL of each, keys
# for a store that is still to be set up (write those of a store that is there over them), and
# Grafana's password. REDIS (redis:6379) is where the services find it.
# The folder is private; the files in it may be read, because containers do so as other users.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
folder=${1:-$here/secrets}
redis=${2:-redis:6379}

if [ -e "$folder/users.acl" ]; then
    echo "Error: $folder holds secrets already; nothing was changed." >&2
    echo "  To make others, move it away: mv $folder $folder.old" >&2
    exit 7
fi
umask 022
mkdir -p "$folder"
chmod 700 "$folder"

secret() { head -c 24 /dev/urandom | od -An -v -tx1 | tr -d ' \n'; echo; }
keep() { cat >"$folder/$1"; }

cp "$here/users.acl" "$folder/users.acl.new"
for user in admin producer consumer sink monitor; do
    password=$(secret)
    hash=$(printf %s "$password" | sha256sum | cut -d ' ' -f 1)
    sed -i "s/^user $user on/& #$hash/" "$folder/users.acl.new"
    echo "redis://$user:$password@$redis/0" | keep "redis-url.$user"
done
echo "genq-$(secret | cut -c 1-8)" | keep s3-access-key
secret | keep s3-secret-key
secret | keep grafana-password
# Last: an interrupted run is begun anew.
mv "$folder/users.acl.new" "$folder/users.acl"
echo "Secrets are in $folder" >&2
