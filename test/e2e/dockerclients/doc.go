// Package dockerclients has the clients of Docker's Engine API that are Go modules. It is a module of its own:
// only it links them. build.sh builds docker's command line and compose, which test/dockerclients drives.
package dockerclients
