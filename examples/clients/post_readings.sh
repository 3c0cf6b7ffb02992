#!/bin/sh
# Sends readings over HTTP with curl. `--retry` repeats the request after 429 and 503 and respects Retry-After. Because
# these readings have no time, the idempotency key makes sure that a repetition has no second effect.
set -eu
gateway=${1:-http://127.0.0.1:8080}
curl --fail-with-body --silent --show-error --retry 5 "$gateway/v1/readings" \
    --header 'content-type: application/json' \
    --header "idempotency-key: $(cat /proc/sys/kernel/random/uuid)" \
    --data '[{"device":"shell-1","metric":"temperature","value":21.5,"unit":"Cel"},
             {"device":"shell-1","metric":"humidity","value":48,"unit":"%RH"}]'
echo
