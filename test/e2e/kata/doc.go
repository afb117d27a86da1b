// Package kata has Kata Containers' own shim drive a real longshore-guest, under a real
// containerd. There is no virtual machine: the shim's remote hypervisor is a service of
// the test, which starts the agent on this machine, in the shim's namespaces.
//
// Start at newRig. KATA_SHIM names the shim and CONTAINERD containerd; without them the
// tests are skipped.
package kata
