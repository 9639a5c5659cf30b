#!/bin/sh
# The database of a cluster. The first start creates roles and databases; every start sets their passwords.
# The superuser has no password and can connect only through the socket; each server reaches only its own databases.
set -eu
umask 077
bin=/usr/lib/postgresql/15/bin
export PGDATA=/data/15
single() { "$bin/postgres" --single -j -D "$1" postgres >/dev/null; }
if [ ! -d "$PGDATA" ]; then
  rm -rf /data/new
  "$bin/initdb" -D /data/new -E UTF8 --locale=C.UTF-8 --auth-local=peer --auth-host=reject >/dev/null
  single /data/new <<SQL
CREATE ROLE prefect LOGIN;

CREATE ROLE mlflow LOGIN;

CREATE DATABASE prefect OWNER prefect;

CREATE DATABASE mlflow OWNER mlflow;

CREATE DATABASE mlflow_users OWNER mlflow;
SQL
  mv /data/new "$PGDATA"  # atomic
fi
printf '%s\n' 'local all atelier peer' 'host prefect prefect samenet scram-sha-256' \
  'host mlflow,mlflow_users mlflow samenet scram-sha-256' >"$PGDATA/pg_hba.conf"
single "$PGDATA" <<SQL
ALTER ROLE prefect PASSWORD '$ATELIER_PREFECT_DB_PASSWORD';

ALTER ROLE mlflow PASSWORD '$ATELIER_MLFLOW_DB_PASSWORD';
SQL
unset ATELIER_PREFECT_DB_PASSWORD ATELIER_MLFLOW_DB_PASSWORD
exec "$bin/postgres" -c listen_addresses='*' -c unix_socket_directories=/tmp -c max_connections=200
