// Package translate converts requests of the control API to the engine's configurations: a sandbox, a container with its spec,
// the process of an exec, limits, and places on networks. It refuses invalid requests, and needs neither the engine nor the
// records of other objects. Start reading at create.go.
package translate
