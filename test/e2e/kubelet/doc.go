// Package kubelet runs the real kubelet, without an API server, on the agent of
// this tree, and tests what pods see. It is a module of its own: only these tests
// link Kubernetes. Start at node_root_test.go.
package kubelet
