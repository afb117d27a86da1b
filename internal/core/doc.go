// Package core holds the nouns of Longshore: the plain types that every other
// package speaks, and the ports (interfaces) that the engine needs filled.
//
// It imports the standard library and the OCI specifications only, and no type of an
// orchestrator's API appears in it: of orchestrators it has the names of the owners of
// objects (OwnerCRI and others) and the log format that kubelet reads (FormatCRI).
// Start reading at meta.go, then container.go, then ports.go.
package core
