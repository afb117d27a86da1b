// Package cri drives the real agent by the CRI, as kubelet's and crictl's users do: by crictl
// itself, and by a client for requests that crictl cannot make. It knows the agent by its socket
// only.
package cri
