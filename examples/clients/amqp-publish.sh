#!/bin/sh
# Publishes a task with only a routing key from the command line (Debian package amqp-tools). Set a message id with
# --message-id if your version has that option; without one, readings are identified by device, metric and time.
set -eu
url=${1:-amqp://guest:guest@127.0.0.1:5672/%2f}
amqp-publish --url "$url" --exchange garenne.tasks --routing-key reading.process --persistent \
    --body "{\"device\":\"shell-2\",\"metric\":\"temperature\",\"value\":21.5,\"unit\":\"Cel\",\"time\":$(date +%s)}"
