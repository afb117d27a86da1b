// Package mesosgo drives the agent of this tree by mesos-go, a real client of
// Mesos' agent API, in JSON and in protobuf, and holds our codecs against its. It
// is a module of its own: only these tests link mesos-go. Start at
// calls_root_test.go.
package mesosgo
