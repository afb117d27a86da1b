// Package service runs a container as the main process of a systemd service, prints units that do this, and is the systemd
// generator of Quadlet files. The container itself belongs to the agent's cgroups, not to the unit's. Start reading at
// main.go.
package service
