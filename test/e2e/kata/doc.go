// Package kata has Kata Containers' own shim drive a real longshore-guest, under a real
// containerd. The shim's remote hypervisor is a service of the test. It starts the agent
// on this machine, in the shim's namespaces, without a virtual machine, and for one test
// in a virtual machine.
//
// Start at newRig. KATA_SHIM names the shim and CONTAINERD containerd; without them the
// tests are skipped.
package kata
