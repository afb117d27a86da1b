// Package core holds the nouns of Longshore: the plain types that every other
// package speaks, and the ports (interfaces) that the engine needs filled.
//
// It imports the standard library and the OCI specifications, nothing else, and
// knows no orchestrator: no word of Kubernetes, Swarm, Nomad, Mesos or Kata
// stands here. Start reading at meta.go, then container.go, then ports.go.
package core
