#!/usr/bin/env bash
# Names each direct module of go.mod that has a newer release. That alone is no failure: a
# newer one may need a newer Go. It fails only for a pseudo-version that is older than a release.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$(hack/go.sh):$PATH"
export GOTOOLCHAIN=local GOFLAGS=-mod=readonly

mapfile -t direct < <(go mod edit -json | jq -r '.Require[] | select(.Indirect | not) | .Path')
# One call; -e reports a failed lookup instead of ending.
if ! list=$(timeout 120 go list -m -u -e -json "${direct[@]}" 2>/dev/null) ||
  [ "$(jq -s 'map(select(.Error)) | length' <<<"$list")" -eq "${#direct[@]}" ]; then
  echo 'outdated: the module proxy cannot be reached: nothing was looked up'
  exit 0
fi
jq -r 'select(.Error) | "outdated: \(.Path) was not looked up: \(.Error.Err | split("\n")[0])"' <<<"$list"
jq -r 'select(.Update) | "   \(.Path) \(.Version), newest \(.Update.Version)"' <<<"$list"
echo "   $(jq -s 'map(select(.Update)) | length' <<<"$list") of ${#direct[@]} direct modules have a newer release"
pseudo=$(jq -r 'select(.Update and (.Version | test("[-.][0-9]{14}-[0-9a-f]{12}(\\+incompatible)?$")))
  | "outdated: \(.Path) \(.Version) is no release, and \(.Update.Version) is newer: require that"' <<<"$list")
[ -z "$pseudo" ] || { echo "$pseudo" >&2; exit 1; }
