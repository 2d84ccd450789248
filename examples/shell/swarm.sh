#!/usr/bin/env bash
# Records three workers that check one backup each, at the same time, and shows how they ended.
set -euo pipefail
cd "${1:-$(mktemp -d)}"
swarmletfs init swarm
export SWARMLET_STORE=$PWD/swarm
echo 'all my notes' | gzip | tee notes.gz | head -c 20 > mail.gz # the second backup is torn

honest() { # does its job
    swarmletfs record -- gzip -tv notes.gz
    zcat notes.gz | swarmletfs worker put outputs/notes.txt
    swarmletfs worker finish --result - <<< 'The backup of the notes is fine: outputs/notes.txt'
}
failing() { # says that it failed
    swarmletfs record -- gzip -tv mail.gz ||
        swarmletfs worker finish --exit-code $? --error 'the backup is torn'
}
claiming() { # says that all is well, although its command failed
    swarmletfs worker message <<< '{"role": "assistant", "content": "I check the bills."}'
    swarmletfs record -- gzip -tv bills.gz || true
    swarmletfs worker finish --result - <<< 'The backup of the bills is fine.'
}

for worker in honest failing claiming; do
    id=$(swarmletfs worker create --id "$worker" --run 1 --task "Check a backup.")
    SWARMLET_WORKER=$id $worker & # the worker's commands find its id in the environment
done
swarmletfs wait --timeout 1m
swarmletfs cat summary workers/claiming/evidence.1k.txt
