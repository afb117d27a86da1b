// Package core holds the nouns of Longshore: the plain types that all other packages use, and the
// ports, the interfaces that the engine needs implemented.
//
// It imports only the standard library and the OCI specifications, and contains no type of an
// orchestrator's API. Its only facts about orchestrators are the names of the owners of objects
// (OwnerCRI and others) and the log format that kubelet reads (FormatCRI). Start reading at
// meta.go, then container.go, then ports.go.
package core
