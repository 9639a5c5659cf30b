#!/bin/sh
# Messages between Prefect's servers. They survive a restart (appendonly) and are never evicted.
set -eu
umask 077
printf '%s\n' "requirepass $ATELIER_REDIS_PASSWORD" 'appendonly yes' 'dir /data' 'maxmemory-policy noeviction' >/tmp/redis.conf
exec redis-server /tmp/redis.conf
