// Package servers runs Debian's nginx, redis-server and PostgreSQL as a user would, on one network
// and with volumes, and kills the agent below them: test files only. LONGSHORE_SERVERS_DIR names
// the directory that hack/servers.sh has filled; without it nothing runs.
package servers
