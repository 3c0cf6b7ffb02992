#!/usr/bin/env bash
# A handler for the transport `exec`: a process runs one task. Needs jq.
#
# The payload is on standard input: {"path": "/srv/a.png"}. The output is what the script prints: {"sha256": "…", "bytes": 5120}.
# The exit code is the outcome: 0 done, 65 a dead letter, 75 or any other a retry. The error is the last line on
# standard error. GARENNE_TASK_ID, GARENNE_TASK_KIND and GARENNE_TASK_ATTEMPT name the task.
set -euo pipefail

reject() {
    echo "$1" >&2
    exit 65
}

path=$(jq --exit-status --raw-output '.path | strings' 2>/dev/null) || reject "the payload has no path"
[[ -f $path ]] || reject "$path is no file"
if [[ ! -r $path ]]; then
    echo "$path cannot be read yet" >&2
    exit 75
fi
sum=$(sha256sum <"$path")
jq --null-input --compact-output --arg sha256 "${sum%% *}" --argjson bytes "$(wc -c <"$path")" '{$sha256, $bytes}'
