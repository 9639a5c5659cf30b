#!/bin/sh
# The messages of Prefect's servers. They outlive a restart (appendonly), and none is thrown away for another.
set -eu
umask 077
printf '%s\n' "requirepass $ATELIER_REDIS_PASSWORD" 'appendonly yes' 'dir /data' 'maxmemory-policy noeviction' >/tmp/redis.conf
exec redis-server /tmp/redis.conf
