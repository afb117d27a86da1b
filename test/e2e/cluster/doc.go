// Package cluster runs a whole Kubernetes on this machine, etcd to kubelets, with
// two nodes in network namespaces whose runtime is the agent of this tree, and
// checks what a cluster's users see. It is a module of its own, with that of
// CoreDNS below it. Start at cluster_root_test.go; checks_root_test.go lists the
// checks.
package cluster
