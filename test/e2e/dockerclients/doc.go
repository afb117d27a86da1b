// Package dockerclients drives the agent of this tree by clients of Docker's Engine API that are Go modules:
// testcontainers-go and Prometheus' discovery. It is a module of its own: only it links them. build.sh builds
// docker's command line and compose, which test/dockerclients drives. Start at rig_test.go.
package dockerclients
